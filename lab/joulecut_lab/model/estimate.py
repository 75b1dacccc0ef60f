"""What the model says of one run: the values behind `joulecut model --json`.

Times are seconds of one iteration on the slowest pipeline, exposed: work hidden behind other work
counts nothing. Energy is joules of one iteration over all GPUs; `host` comes on top.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

BREAKDOWN = (
    "forward",
    "backward",
    "recompute",
    "embedding_loss",
    "optimizer",
    "offload",
    "tensor_comm",
    "pipeline_comm",
    "data_comm",
    "expert_comm",
    "context_comm",
    "bubble",
)
COMPONENTS = ("compute", "memory", "network", "launch", "waiting")
ENERGIES = ("compute", "memory", "scale_up", "scale_out", "waiting", "static", "host")
MEMORIES = (
    "weights_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "activations_bytes",
    "temporary_bytes",
)


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Peak memory of one GPU of a stage, by kind."""

    stage: int
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    temporary_bytes: float

    @property
    def total_bytes(self) -> float:
        return float(sum(getattr(self, kind) for kind in MEMORIES))


@dataclass(frozen=True, slots=True)
class Estimate:
    """One run. `breakdown_s` is of the slowest stage, `mean_breakdown_s` of the mean GPU, whose
    bubble holds what it waits for slower stages; both sum to `iteration_time_s`, and
    `energy_breakdown_j`, of all GPUs, to energy + host.

    `hidden_s` is communication that runs beside computation. `clock_mhz` is the clock that the
    power cap leaves. `energy_phase_j` are joules of all GPUs by phase.
    """

    parameters: int
    model_flops: float
    hardware_flops: float
    iteration_time_s: float
    breakdown_s: dict[str, float]
    component_time_s: dict[str, float]
    memory: tuple[StageMemory, ...]
    energy_j: float
    energy_breakdown_j: dict[str, float]
    power_w_per_gpu: float
    node_power_w: float
    tokens_per_s: float
    mfu: float
    hfu: float
    fits: bool
    level: str = "formula"
    clock_mhz: float = 0.0
    hidden_s: dict[str, float] = field(default_factory=dict)
    energy_phase_j: dict[str, float] = field(default_factory=dict)
    mean_breakdown_s: dict[str, float] = field(default_factory=dict)

    @property
    def host_j(self) -> float:
        return self.energy_breakdown_j["host"]

    @property
    def joules_per_token(self) -> float:
        """Of GPUs and hosts."""
        tokens = self.tokens_per_s * self.iteration_time_s
        return (self.energy_j + self.host_j) / tokens

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of the command."""
        answer = asdict(self)
        for stage, row in zip(self.memory, answer["memory"], strict=True):
            row["total_bytes"] = stage.total_bytes
        answer["joules_per_token"] = self.joules_per_token
        return answer
