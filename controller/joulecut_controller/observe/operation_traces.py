"""Times of single operations, by pipeline, from complete iterations.

A pipeline is a data-parallel replica. The GPUs of a lock-step group run the same operations
together, and the slowest of them counts. Pure.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.observe.work import Busy
from joulecut_controller.view import PipelineTrace, Stages
from joulecut_wire.messages import IterationReport

PIPELINES_MIN = 3  # of two, nothing says which is the odd one
SLOWER_RATIO_MIN = 0.05  # a part that delays by less is not named

# One GPU's operations of one iteration: seconds by kind, in the order they ran.
Timed = Mapping[str, tuple[float, ...]]


def timed_of(report: IterationReport) -> Timed | None:
    """The operations of a report, if it has the time of each."""
    operations = report.operations
    if not operations or not all(len(op.durations_s) == op.count for op in operations):
        return None
    return {op.kind: op.durations_s for op in operations}


def traces_of(
    number: int,
    timed: Mapping[str, Timed],
    durations_s: Mapping[str, float],
    pipelines: Sequence[Sequence[Sequence[str]]],
) -> tuple[PipelineTrace, ...]:
    """The pipelines of one iteration; none unless every GPU timed its operations, and those of a
    group the same ones. `pipelines` has the GPUs by replica, then by stage.
    """
    made = []
    for members in pipelines:
        stages = [_together([timed.get(uuid) for uuid in group]) for group in members]
        known = [stage for stage in stages if stage is not None]
        if len(known) < len(stages):
            return ()
        uuids = [uuid for group in members for uuid in group]
        made.append(
            PipelineTrace(
                iteration=number,
                measured_s=max(durations_s[uuid] for uuid in uuids),
                stages=tuple(known),
                uuids=tuple(map(tuple, members)),
            )
        )
    return tuple(made)


def mean_traces_of(
    number: int,
    operations: Mapping[str, Busy],
    durations_s: Mapping[str, float],
    pipelines: Sequence[Stages],
) -> tuple[PipelineTrace, ...]:
    """The same from sums of operations, as large reports hold them: each operation takes the mean
    of its kind. None unless some group takes longer than those of the other pipelines.
    """
    if len(pipelines) < PIPELINES_MIN:
        return ()
    groups = [[_slowest([operations.get(u, {}) for u in one]) for one in p] for p in pipelines]
    if not all(all(stages) for stages in groups):
        return ()
    made = tuple(
        PipelineTrace(
            iteration=number,
            measured_s=max(durations_s[uuid] for group in members for uuid in group),
            stages=tuple(
                {kind: np.full(int(n), s / n) for kind, (s, n) in one.items() if n > 0}
                for one in stages
            ),
            uuids=members,
        )
        for members, stages in zip(pipelines, groups, strict=True)
    )
    return made if slow_group(made) else ()


def slow_group(traces: Sequence[PipelineTrace]) -> bool:
    """Whether a group of one pipeline takes longer than those of the same stage usually do."""
    if len(traces) < PIPELINES_MIN:
        return False
    busy_s = np.array([[sum(map(np.sum, one.values())) for one in t.stages] for t in traces])
    return bool((busy_s > np.median(busy_s, axis=0) * (1.0 + SLOWER_RATIO_MIN)).any())


def _slowest(members: Sequence[Busy]) -> Busy:
    """Of a group; empty where its members ran other operations."""
    counts = {kind: n for kind, (_, n) in members[0].items()}
    if any({kind: n for kind, (_, n) in one.items()} != counts for one in members):
        return {}
    return max(members, key=lambda one: sum(seconds for seconds, _ in one.values()))


def _together(members: Sequence[Timed | None]) -> Mapping[str, NDArray[np.float64]] | None:
    known = [one for one in members if one is not None]
    if not known or len(known) < len(members):
        return None
    counts = {kind: len(seconds) for kind, seconds in known[0].items()}
    if any({k: len(s) for k, s in times.items()} != counts for times in known):
        return None
    slowest = max(known, key=lambda times: sum(map(sum, times.values())))
    return {kind: np.asarray(seconds) for kind, seconds in slowest.items()}
