"""The part of a job that delays its iterations: a GPU, a pipeline or a stage.

A part delays an iteration by as much as the iteration would be shorter if the part took what its
peers take, their median, operation by operation (the what-if analysis of Lin et al., "Understanding
Stragglers in Large Model Training Using What-if Analysis", OSDI'25). Peers of a GPU are the GPUs of
the same stage in other pipelines; peers of a pipeline are the other pipelines; peers of a stage
are the other stages, as far as they run the same operations.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from joulecut_engine.graph import Graph
from joulecut_engine.graph.pipeline import SENDS
from joulecut_engine.optimize.levels import Floats, Ints, Levels, levels_of

# A part that delays by less is not named: operations vary by some percent anyway.
DELAY_RATIO_MIN = 0.05
SHARE_MIN = 0.8  # a part that explains this much of the largest delay may be its cause
PEERS_MIN = 3  # with two, nothing says which of them is the odd one
# A GPU with a slow clock is slow at every operation: half of its operations are within this of
# their common factor. Sequences of different length differ by tens of percent (29 % measured).
EVEN_RATIO = 0.1

Cause = Literal["compute", "data", "network"]
# By stage: seconds of its operations of one kind, in the order they ran.
StageTimes = Mapping[str, Sequence[float] | Floats]


@dataclass(frozen=True, slots=True)
class SlowPart:
    """`pipeline` and `stage` are set as far as the part is one: both for a GPU. `delay_ratio` is
    the share of the iteration that it costs; `factor` its median time over that of its peers.
    """

    pipeline: int | None
    stage: int | None
    cause: Cause
    delay_ratio: float
    factor: float

    @property
    def is_gpu(self) -> bool:
        return self.pipeline is not None and self.stage is not None

    @property
    def name(self) -> str:
        words = [
            f"{kind} {number}"
            for kind, number in (("pipeline", self.pipeline), ("stage", self.stage))
            if number is not None
        ]
        return " ".join(words)


def slow_part(graph: Graph, seconds: Floats, measured_s: Sequence[float]) -> SlowPart | None:
    """The part that delays this iteration most, if any does by `DELAY_RATIO_MIN`.

    `seconds` is (pipelines, operations) of one iteration, `measured_s` what each pipeline took.
    Time that its operations do not explain counts as its network.
    """
    what_if = _WhatIf(levels_of(graph), seconds)
    if what_if.step_s <= 0.0:
        return None
    columns = [np.array(_measured(graph, stage)) for stage in range(len(graph.order))]
    found: list[SlowPart] = []
    if len(seconds) >= PEERS_MIN:
        usual = np.broadcast_to(np.median(seconds, axis=0), seconds.shape)
        row = int(what_if.own_s.argmax())  # the others do not delay the iteration
        found.append(what_if.part(usual, row, None, np.concatenate(columns)))
        gpus = [what_if.part(usual, row, stage, mine) for stage, mine in enumerate(columns)]
        found += [gpu for gpu in gpus if gpu.cause == "compute"]
        found.append(_slow_network(what_if.own_s, np.asarray(measured_s)))
    beside = _usual_stage(graph, seconds, columns)
    if beside is not None:
        found += [what_if.part(beside, None, stage, mine) for stage, mine in enumerate(columns)]
    most = max((part.delay_ratio for part in found), default=0.0)
    if most < DELAY_RATIO_MIN:
        return None
    # Of several that explain the delay: a GPU, which belongs to the others.
    likely = [part for part in found if part.delay_ratio >= SHARE_MIN * most]
    return max(likely, key=lambda part: (part.is_gpu, part.delay_ratio))


def misfit(graph: Graph, stages: Sequence[StageTimes]) -> bool:
    """Whether measured operations are not those of the graph."""
    if len(stages) != len(graph.order):
        return True
    expected = (
        Counter(graph.operations[i].kind for i in _measured(graph, stage))
        for stage in range(len(stages))
    )
    shown = (Counter({kind: len(each) for kind, each in times.items()}) for times in stages)
    return any(a != b for a, b in zip(shown, expected, strict=True))


def by_operation(graph: Graph, pipelines: Sequence[Sequence[StageTimes]]) -> Floats:
    """Seconds (pipelines, operations) of the graph's operations; 0 for sends, which are not
    measured. Raises KeyError or ValueError where there is a `misfit`.
    """
    seconds = np.zeros((len(pipelines), len(graph.operations)))
    columns: dict[tuple[int, str], list[int]] = {}
    for stage in range(len(graph.order)):
        for i in _measured(graph, stage):
            columns.setdefault((stage, graph.operations[i].kind), []).append(i)
    for (stage, kind), at in columns.items():
        seconds[:, at] = np.stack([stages[stage][kind] for stages in pipelines])
    return seconds


def _measured(graph: Graph, stage: int) -> list[int]:
    """Indices of the operations of a stage that reports have, in the order they run."""
    return [i for i in graph.order[stage] if graph.operations[i].kind not in SENDS]


class _WhatIf:
    """One iteration of all pipelines, and how long it takes with other times of some part."""

    def __init__(self, levels: Levels, seconds: Floats) -> None:
        self._levels, self._seconds = levels, seconds
        self.own_s = self._times(seconds)
        self.step_s = float(self.own_s.max())

    def part(self, usual: Floats, row: int | None, stage: int | None, columns: Ints) -> SlowPart:
        """The operations `columns` of pipeline `row` (all: None) against their usual seconds."""
        rows = slice(None) if row is None else slice(row, row + 1)
        changed = self._seconds.copy()
        changed[rows, columns] = usual[rows, columns]
        times_s = self.own_s.copy()
        times_s[rows] = self._times(changed[rows])
        before = usual[rows, columns]
        factors = (self._seconds[rows, columns] / np.where(before > 0.0, before, 1.0)).ravel()
        delay_ratio = 1.0 - float(times_s.max()) / self.step_s
        return SlowPart(row, stage, _cause(factors), delay_ratio, float(np.median(factors)))

    def _times(self, seconds: Floats) -> Floats:
        return self._levels.iteration_times(seconds.T)


def _cause(factors: Floats) -> Cause:
    """Even factors are a slow GPU, uneven ones its data."""
    middle = float(np.median(factors))
    near = np.abs(factors - middle) <= EVEN_RATIO * middle
    return "compute" if near.mean() >= 0.5 else "data"


def _slow_network(own_s: Floats, measured_s: Floats) -> SlowPart:
    """The last pipeline, as far as its operations do not explain that it is the last."""
    row = int(measured_s.argmax())
    beside_s = measured_s - own_s
    usual_s = float(np.median(beside_s))
    after_s = measured_s.copy()
    after_s[row] = own_s[row] + usual_s
    factor = float(beside_s[row]) / usual_s if usual_s > 0.0 else np.inf
    return SlowPart(row, None, "network", 1.0 - float(after_s.max() / measured_s[row]), factor)


def _usual_stage(graph: Graph, seconds: Floats, columns: Sequence[Ints]) -> Floats | None:
    """Seconds of the same operation in the other stages, their median; None where stages run
    different operations, or too few do.
    """
    operations = graph.operations
    indices = [
        {(operations[i].kind, operations[i].microbatch): i for i in mine} for mine in columns
    ]
    if len(columns) < PEERS_MIN or any(one.keys() != indices[0].keys() for one in indices):
        return None
    usual = np.zeros_like(seconds)
    for name in indices[0]:
        same = [one[name] for one in indices]
        usual[:, same] = np.median(seconds[:, same], axis=1, keepdims=True)
    return usual
