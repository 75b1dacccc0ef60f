"""One measured stretch of a job, at default clocks or under one plan: what savings are made of.

A stretch is minutes long and holds only iterations that ran wholly under its clocks, after
the warm-up. It is kept as a record of the topic `window`, so that a report can be made long
after the controller that measured it is gone.
"""

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Arm = Literal["default", "plan"]
TOPIC = "window"
WORDS = frozenset({"job", "shape"})
OPTIONAL = frozenset({"temperature_celsius", "predicted_time_s", "predicted_energy_j"})


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """Means over one stretch. Times in seconds, energy in joules of all the job's GPUs per
    iteration, from their energy counters.

    `shape` names pipeline, GPUs and profile: windows of two shapes are never compared.
    `generation` is the plan's, 0 for default clocks. `temperature_celsius` is the mean over the
    job's GPUs. `left_out` counts iterations inside the stretch that belong to no step of
    training (checkpoint, evaluation). The predicted figures are those of the plan in force for
    this arm, None where there was none.
    """

    job: str
    shape: str
    arm: Arm
    generation: int
    begun_unix_s: float
    ended_unix_s: float
    gpus: int
    iterations: int
    time_mean_s: float
    time_sd_s: float
    energy_j: float
    left_out: int = 0
    temperature_celsius: float | None = None
    predicted_time_s: float | None = None
    predicted_energy_j: float | None = None


def to_json(window: MeasuredWindow) -> str:
    """Raises ValueError where a number is not finite."""
    return json.dumps(asdict(window), allow_nan=False, separators=(",", ":"), sort_keys=True)


def from_json(text: str) -> MeasuredWindow:
    """Takes keys it does not know for those of a newer version. Raises ValueError otherwise."""
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("a window is not a mapping")
    known = {field.name for field in fields(MeasuredWindow)}
    values: dict[str, Any] = {key: value for key, value in data.items() if key in known}
    try:
        window = MeasuredWindow(**values)
    except TypeError as error:
        raise ValueError(f"a window lacks something: {error}") from None
    if window.arm not in get_args(Arm) or not all(
        _fits(name, getattr(window, name)) for name in known - {"arm"}
    ):
        raise ValueError("a window holds what is no measurement")
    return window


def _fits(name: str, value: object) -> bool:
    if name in WORDS:
        return isinstance(value, str)
    if value is None:
        return name in OPTIONAL
    return isinstance(value, int | float) and math.isfinite(value)
