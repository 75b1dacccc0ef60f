"""One measured window of a job, at default clocks or under one plan.

A window is minutes long and holds only iterations that ran wholly under its clocks, after
the warm-up. It is kept as a record of the topic `window`, so that a report can be made long
after the controller that measured it is gone.
"""

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import msgspec

Arm = Literal["default", "plan"]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # what every float holds exactly
TOPIC = "window"
KEPT_S = 35 * 86_400.0  # a report of a whole month, made some days later


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """Means over one window. Times in seconds, energy in joules of all the job's GPUs per
    iteration, from their energy counters; 0 where these cover too little.

    `shape` names pipeline, GPUs and profile; windows of two shapes, or of two phases of a job, are
    never compared. `generation` is the plan's, 0 for default clocks. `left_out` counts iterations
    inside the window that belong to no step of training (checkpoint, evaluation). The predicted
    figures are those of the plan in force for this arm, None where there was none.
    """

    job: str
    shape: str
    arm: Arm
    generation: Count
    begun_unix_s: float
    ended_unix_s: float
    gpus: Count
    iterations: Count
    time_mean_s: float
    time_sd_s: float
    energy_j: float
    left_out: Count = 0
    predicted_time_s: float | None = None
    predicted_energy_j: float | None = None
    phase: str = ""

    @property
    def middle_unix_s(self) -> float:
        return (self.begun_unix_s + self.ended_unix_s) / 2.0


def to_json(window: MeasuredWindow) -> str:
    """Raises ValueError where a number is not finite."""
    return json.dumps(asdict(window), allow_nan=False, separators=(",", ":"), sort_keys=True)


def from_json(text: str) -> MeasuredWindow:
    """Takes keys it does not know for those of a newer version. Raises ValueError otherwise."""
    try:
        return msgspec.json.decode(text, type=MeasuredWindow)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"a window holds what is no measurement: {error}") from None
