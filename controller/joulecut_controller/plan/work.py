"""Inferred work of measured windows, by the predicted times of their operations.

Operations take longer because of their clocks, and longer or less because of their work (sequence
lengths). Beside the prediction for these clocks the second is left, and what the prediction misses.
Pure.
"""

import statistics
from collections.abc import Mapping, Set

from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.evaluation import Evaluation
from joulecut_controller.view import Window

HALVES = ("input", "weight")  # of a backward


def covered(kind: str, reported: Set[str]) -> tuple[str, ...]:
    """The kinds of operation that a reported kind stands for. A job that does not tell the halves
    of a backward apart reports them as one.
    """
    return (kind, *HALVES) if kind == "backward" and reported.isdisjoint(HALVES) else (kind,)


def work_of(window: Window, costs: Costs, ran: Evaluation) -> float | None:
    """Time of the window's operations over the prediction at the clocks that `ran` has: the median
    over stages, each by its slowest GPU. None where not every stage reports operations.
    """
    if not window.operations_s:
        return None
    ratios = []
    for stage, uuids in enumerate(costs.gpus):
        shown = [window.operations_s[uuid] for uuid in uuids if uuid in window.operations_s]
        found = [_ratio(one, _predicted_s(costs, ran, stage)) for one in shown]
        known = [ratio for ratio in found if ratio is not None]
        if not known:
            return None
        ratios.append(max(known))
    return statistics.median(ratios)


def _predicted_s(costs: Costs, ran: Evaluation, stage: int) -> dict[str, tuple[float, int]]:
    """By kind: seconds of all operations of a stage, and how many they are."""
    operations = costs.problem.graph.operations
    sums: dict[str, tuple[float, int]] = {}
    for i in costs.problem.graph.order[stage]:
        seconds, count = sums.get(operations[i].kind, (0.0, 0))
        sums[operations[i].kind] = (seconds + ran.options[i].time_s, count + 1)
    return sums


def _ratio(shown: Mapping[str, float], predicted: Mapping[str, tuple[float, int]]) -> float | None:
    measured_s = modelled_s = 0.0
    for kind, mean_s in shown.items():
        parts = covered(kind, shown.keys())
        known = [predicted[part] for part in parts if part in predicted]
        if known:
            count = max(count for _, count in known)
            measured_s += count * mean_s
            modelled_s += sum(seconds for seconds, _ in known)
    return measured_s / modelled_s if modelled_s > 0.0 else None
