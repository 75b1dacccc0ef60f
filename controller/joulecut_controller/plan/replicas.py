"""Replicas of a job by the pace of their stages.

Data-parallel replicas meet once per iteration. One with a slow GPU sets the time, and the others
have room in every stage, not only in that of the slow GPU. So replicas of different paces are
pipelines of their own in the solver's question, and those of equal pace share one. Pure.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from joulecut_controller.view import Stages

CLASSES_MAX = 2  # slow replicas and the others: a solve takes two to four times as long as for one
# A slow GPU slows its stage in all replicas, whose other stages follow. Clocks of their own then
# save nothing more where it is 5 % slow, and 0.4-0.5 % of the energy where it is 10 % slow (8 x 24
# with 4 replicas, budget 2 %, simulated).
APART_RATIO = 0.07

Classes = tuple[tuple[int, ...], ...]  # replicas by class


def classes_of(pipelines: Sequence[Stages], ratios: Mapping[str, float]) -> Classes:
    """The replicas by class, the slowest ones first. `ratios` are the times of GPUs over those of
    the slowest of their stage. One class where replicas or times are unknown.

    Replicas of a class differ by less than APART_RATIO in every stage; beyond CLASSES_MAX a replica
    joins the class that it slows least.
    """
    together = (tuple(range(len(pipelines))),)
    if len(pipelines) < 2 or not ratios:
        return together
    paces = np.array(
        [[max(ratios.get(uuid, 1.0) for uuid in group) for group in one] for one in pipelines]
    )
    classes: list[list[int]] = []
    for replica in np.argsort(-paces.sum(axis=1), kind="stable").tolist():
        leaders = paces[[one[0] for one in classes]]
        apart = np.abs(leaders - paces[replica])
        alike = np.flatnonzero((apart < APART_RATIO).all(axis=1))
        if len(alike):
            classes[int(alike[0])].append(replica)
        elif len(classes) < CLASSES_MAX:
            classes.append([replica])
        else:
            slower = np.maximum(leaders, paces[replica]).sum(axis=1) - leaders.sum(axis=1)
            classes[int(slower.argmin())].append(replica)
    return tuple(tuple(sorted(one)) for one in classes)


def clocks_for(
    by_stage: Sequence[Sequence[int]], order: Sequence[Sequence[int]], stages: int
) -> tuple[int, ...] | None:
    """By operation, clocks that were chosen for other classes of the same replicas; None where the
    operations are others.

    `by_stage` are clocks by stage of the graph before, `order` is that of the new one. Where the
    classes are others, the highest clock of any of them counts.
    """
    if len(by_stage) != len(order):
        if len(by_stage) % stages or len(order) % stages or not by_stage:
            return None
        classes = [by_stage[stage::stages] for stage in range(stages)]
        highest = [[max(clocks) for clocks in zip(*one, strict=False)] for one in classes]
        by_stage = [highest[row % stages] for row in range(len(order))]
    if [len(clocks) for clocks in by_stage] != [len(indices) for indices in order]:
        return None
    found: dict[int, int] = {}
    for indices, clocks in zip(order, by_stage, strict=True):
        found |= dict(zip(indices, clocks, strict=True))
    return tuple(found[i] for i in range(len(found)))
