"""What a training job does in one iteration, and what is known about its cost.

`Pipeline` is what an operator writes, `Operation` what the graph is made of,
`Profile` the measured cost of each (stage, kind) at each clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from joulecut_controller.hardware import ClockOption

Kind = Literal["forward", "backward"]
Schedule = Literal["gpipe", "1f1b"]
Granularity = Literal["gpu", "edge", "computation"]

KINDS: tuple[Kind, ...] = ("forward", "backward")
SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b")
GRANULARITIES: tuple[Granularity, ...] = ("gpu", "edge", "computation")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The shape of one iteration. `stages` and `microbatches` are at least 1."""

    schedule: Schedule
    stages: int
    microbatches: int
    tensor_parallel: int = 1
    data_parallel: int = 1
    sync: Literal["iteration", "layer"] = "iteration"


@dataclass(frozen=True, slots=True, order=True)
class Operation:
    """One forward or backward of one microbatch on one stage; both count from 0."""

    stage: int
    microbatch: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured clock options per (stage, kind), as swept; dominated ones included.

    `source` says where it came from, for reasons and reports.
    """

    options: Mapping[tuple[int, Kind], tuple[ClockOption, ...]]
    source: str = ""

    @property
    def stages(self) -> int:
        return 1 + max(stage for stage, _ in self.options)
