"""Shape of one training iteration, its operations, and their measured costs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple, get_args

from joulecut_engine.graph.clock_option import ClockOption

Kind = Literal[
    "forward",
    "backward",  # whole: gradients of the input, then of the weights
    "input",  # the part of a backward that the stage before waits for
    "weight",  # the part that no other stage waits for
    "tensor-forward",  # collective of a tensor-parallel group after a forward
    "tensor-backward",
    "send-forward",  # one activation sent to another GPU, beside computation
    "send-backward",
    "collective",  # gradients of the data-parallel siblings, once per GPU and iteration
    "optimizer",
]
Schedule = Literal[
    "gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v",
    "forward-only", "explicit",
]  # fmt: skip
Granularity = Literal["gpu", "changes", "computation"]
Transfers = Literal["free", "overlapped", "synchronous"]

# Kinds that every running job reports and every plain schedule has.
KINDS: tuple[Kind, ...] = ("forward", "backward")
KINDS_ALL: tuple[Kind, ...] = get_args(Kind)
SENDS: tuple[Kind, ...] = ("send-forward", "send-backward")
# Schedules of running jobs: one part of the model per GPU and whole backwards, because reports hold
# the times of these two kinds only.
SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b")
EVALUATION: Schedule = "forward-only"  # of a running job; no file names it
# Schedules of training that a shape alone determines.
SCHEDULES_ALL: tuple[Schedule, ...] = tuple(
    s for s in get_args(Schedule) if s not in ("explicit", EVALUATION)
)
GRANULARITIES: tuple[Granularity, ...] = ("gpu", "changes", "computation")
# Wrong units are off by 1,000; published work draws 1.5 to 8 times the blocking power.
UNITS_APART = 100.0
GPU_POWER_W_MAX = 10_000.0  # several times the largest card


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The shape of one iteration. `stages` and `microbatches` are at least 1.

    A stage is a GPU (or the GPUs of one lock-step group); it holds `chunks` parts of
    the model. `expert_parallel` divides `context_parallel` x `data_parallel`. `transfers`
    says whether sending to another GPU takes time and whether both sides wait for it; the
    three switches add collectives and the optimizer step. `explicit` stands for a graph from
    a file.
    """

    schedule: Schedule
    stages: int
    microbatches: int
    tensor_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    data_parallel: int = 1
    sync: Literal["iteration", "layer"] = "iteration"
    chunks: int = 1
    transfers: Transfers = "free"
    tensor_collective: bool = False
    data_collective: bool = False
    optimizer: bool = False

    @property
    def lockstep(self) -> int:
        """GPUs of one stage that wait for each other in every layer: a tensor-parallel group,
        together with the context- and expert-parallel groups of its members.
        """
        return self.tensor_parallel * math.lcm(self.context_parallel, self.expert_parallel)

    @property
    def width(self) -> int:
        """GPUs of one stage."""
        return self.tensor_parallel * self.context_parallel * self.data_parallel

    @property
    def replicas(self) -> int:
        """Pipelines side by side that meet once per iteration, to add up their gradients."""
        return self.width // self.lockstep


class Operation(NamedTuple):
    """One uninterrupted piece of a GPU's work; stages, microbatches and chunks count from 0.

    `stage` is the GPU, `chunk` one of its parts of the model. Once-per-iteration operations have
    microbatch 0. `name` is the id from a graph file, empty elsewhere.
    """

    stage: int
    microbatch: int
    kind: Kind
    chunk: int = 0
    name: str = ""

    def __str__(self) -> str:
        chunk = f" chunk {self.chunk}" if self.chunk else ""
        return self.name or f"{self.kind} {self.microbatch} of stage {self.stage}{chunk}"


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured clock options per (stage, kind), as swept; dominated ones included.

    If GPUs hold several parts of the model, the first number may count these parts instead, in
    model order. `source` names the origin in messages. One that is `predicted` from other jobs was
    not measured below default clocks, and has the power (W) of a GPU that waits.
    """

    options: Mapping[tuple[int, Kind], tuple[ClockOption, ...]]
    source: str = ""
    predicted: bool = False
    blocking_power_w: float = 0.0

    @property
    def stages(self) -> int:
        return 1 + max(stage for stage, _ in self.options)

    def units_fault(self, blocking_power_w: float) -> str:
        """A fault in the units of time or energy, seen from the power of the work; else empty.

        Work draws more than waiting. A median a hundred times below the blocking power, or above
        what any GPU draws, comes from milliseconds or millijoules.
        """
        powers_w = [one.power_w for options in self.options.values() for one in options]
        power_w = median(powers_w) if powers_w else blocking_power_w
        if power_w * UNITS_APART < blocking_power_w:
            return f"work draws {power_w:.2g} W, waiting {blocking_power_w:g} W: milliseconds?"
        if power_w > GPU_POWER_W_MAX:
            return f"work draws {power_w:.2g} W: millijoules?"
        return ""
