"""What a training job does in one iteration, and what is known about its cost.

`Pipeline` is what an operator writes, `Operation` what the graph is made of,
`Profile` the measured cost of each (stage, kind) at each clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from joulecut_engine.graph.clock_option import ClockOption

Kind = Literal[
    "forward",
    "backward",  # whole: gradients of the input, then of the weights
    "input",  # the part of a backward that the stage before waits for
    "weight",  # the part that nobody waits for
    "tensor-forward",  # collective of a tensor-parallel group after a forward
    "tensor-backward",
    "send-forward",  # one activation on its way to another GPU, beside what GPUs compute
    "send-backward",
    "collective",  # gradients of the data-parallel siblings, once per GPU and iteration
    "optimizer",
]
Schedule = Literal[
    "gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "explicit"
]
Granularity = Literal["gpu", "edge", "computation"]
Transfers = Literal["free", "overlapped", "synchronous"]

# What every running job reports and every plain schedule is made of.
KINDS: tuple[Kind, ...] = ("forward", "backward")
KINDS_ALL: tuple[Kind, ...] = get_args(Kind)
SENDS: tuple[Kind, ...] = ("send-forward", "send-backward")
# One part of the model per GPU and whole backwards: what a running job may have, since its
# reports tell the time of these two kinds and nothing else.
SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b")
# Everything that can be laid out from a shape alone.
SCHEDULES_ALL: tuple[Schedule, ...] = tuple(s for s in get_args(Schedule) if s != "explicit")
GRANULARITIES: tuple[Granularity, ...] = ("gpu", "edge", "computation")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The shape of one iteration. `stages` and `microbatches` are at least 1.

    A stage is a GPU (or the GPUs of one tensor-parallel group); it holds `chunks` parts of
    the model. `transfers` says whether sending to another GPU takes time and whether both
    sides wait for it; the three switches add collectives and the optimizer step.
    `explicit` stands for a graph from a file, which no shape describes.
    """

    schedule: Schedule
    stages: int
    microbatches: int
    tensor_parallel: int = 1
    data_parallel: int = 1
    sync: Literal["iteration", "layer"] = "iteration"
    chunks: int = 1
    transfers: Transfers = "free"
    tensor_collective: bool = False
    data_collective: bool = False
    optimizer: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Operation:
    """What one GPU does without interruption; stages, microbatches and chunks count from 0.

    `stage` is the GPU, `chunk` which of its parts of the model. What is done once per
    iteration has microbatch 0. `name` is the id from a graph file, empty elsewhere.
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

    Where GPUs hold several parts of the model, the first number may count these parts
    instead, in the order of the model. `source` says where it came from, for reasons and reports.
    """

    options: Mapping[tuple[int, Kind], tuple[ClockOption, ...]]
    source: str = ""

    @property
    def stages(self) -> int:
        return 1 + max(stage for stage, _ in self.options)
