"""Iterations as they were measured, operation by operation.

Means per kind and stage explain an iteration whose operations are alike. Where work depends on its
data (sequences of different length), whichever microbatch is long delays the others, in every
stage. Times of single operations explain such iterations, and plans are judged on them.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from joulecut_engine.graph import Graph
from joulecut_engine.graph.pipeline import SENDS
from joulecut_engine.optimize.levels import Floats

# By stage: seconds of its operations of one kind, in the order they ran.
StageTimes = Mapping[str, Sequence[float] | Floats]


class Recorded:
    """Times of every operation in measured iterations of one pipeline, relative to the mean of
    their stage and kind.

    `factors` is (iterations, operations), in the order of the graph's operations. Equal content is
    equal.
    """

    __slots__ = ("_digest", "factors")

    def __init__(self, factors: Floats) -> None:
        self.factors = factors
        self._digest = hashlib.sha256(factors.tobytes()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recorded) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)


def misfit(graph: Graph, stages: Sequence[StageTimes], orders: Sequence[Sequence[str]]) -> str:
    """Why measured operations are not those of the graph; "" where they are.

    `orders[s]` are the kinds of stage s as they ran; empty where unknown.
    """
    if len(stages) != len(graph.order):
        return f"{len(stages)} stages were measured; the pipeline has {len(graph.order)}"
    for stage, times in enumerate(stages):
        kinds = _kinds(graph, stage)
        for kind in sorted({*kinds, *times}):
            seen, expected = len(times.get(kind, ())), kinds.count(kind)
            if seen != expected:
                return f"stage {stage} ran {seen} x {kind}; the schedule has {expected}"
        ran = tuple(orders[stage]) if orders else ()
        wrong = next((i for i, (a, b) in enumerate(zip(ran, kinds, strict=False)) if a != b), None)
        if wrong is not None:
            return (
                f"operation {wrong} of stage {stage} was {ran[wrong]}; "
                f"the schedule has {kinds[wrong]} there"
            )
    return ""


def by_operation(graph: Graph, pipelines: Sequence[Sequence[StageTimes]]) -> Floats:
    """Seconds (pipelines, operations) of the graph's operations; 0 for sends, which are not
    measured. Raises KeyError or ValueError where `misfit` complains.
    """
    seconds = np.zeros((len(pipelines), len(graph.operations)))
    for (stage, kind), columns in _columns(graph).items():
        seconds[:, columns] = np.stack([stages[stage][kind] for stages in pipelines])
    return seconds


def recorded(graph: Graph, seconds: Floats) -> Recorded:
    """What a plan is judged on, from seconds (pipelines, operations)."""
    factors = np.ones_like(seconds)
    for columns in _columns(graph).values():
        mean_s = seconds[:, columns].mean()
        if mean_s > 0.0:
            factors[:, columns] = seconds[:, columns] / mean_s
    return Recorded(factors)


def _columns(graph: Graph) -> dict[tuple[int, str], list[int]]:
    """Indices of the operations of each stage and kind, in the order they run."""
    found: dict[tuple[int, str], list[int]] = {}
    for stage, order in enumerate(graph.order):
        for i in order:
            kind = graph.operations[i].kind
            if kind not in SENDS:
                found.setdefault((stage, kind), []).append(i)
    return found


def _kinds(graph: Graph, stage: int) -> list[str]:
    kinds = (graph.operations[i].kind for i in graph.order[stage])
    return [kind for kind in kinds if kind not in SENDS]
