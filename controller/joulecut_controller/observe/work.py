"""Inferred work: how long an iteration's operations take beside the first ones at the same clocks.

A longer sequence lengthens the operations of every GPU by about the same factor, whatever the
clocks. Iteration times divided by that factor vary less, so that fewer of them tell the effect of
a clock (covariate adjustment: Deng et al., "Improving the Sensitivity of Online Controlled
Experiments by Utilizing Pre-Experiment Data", WSDM 2013). A wrong report is a wrong factor, so
nothing that guards a promise uses it: breaker and savings take times as measured. Pure.
"""

import statistics
from collections.abc import Mapping

Busy = Mapping[str, tuple[float, float]]  # kind of operation -> (busy seconds, operations)

FACTOR_MAX = 16.0  # of an iteration; beyond it the report is damaged, or another kind of iteration


class InferredWork:
    """Factors of iterations under one set of clocks, over the first whose operations are known."""

    def __init__(self) -> None:
        self._first: dict[str, Busy] = {}

    def factor(self, operations: Mapping[str, Busy]) -> float | None:
        """The median over GPUs of the time of their operations over that of the same operations in
        the first iteration; None where no GPU reports operations.
        """
        known = {uuid: busy for uuid, busy in operations.items() if busy}
        if not known:
            return None
        for uuid, busy in known.items():
            self._first.setdefault(uuid, busy)
        factors = [_over(busy, self._first[uuid]) for uuid, busy in known.items()]
        usable = [factor for factor in factors if 1.0 / FACTOR_MAX < factor < FACTOR_MAX]
        return statistics.median(usable) if usable else None


def _over(busy: Busy, first: Busy) -> float:
    """Mean times of single operations, weighted as in the first iteration; 0 where none is in both.

    How many operations ran is counted work and cancels out.
    """
    now_s = first_s = 0.0
    for kind, (seconds, count) in busy.items():
        usual_s, usual = first.get(kind, (0.0, 0.0))
        if count > 0.0 and usual > 0.0:
            now_s += usual * seconds / count
            first_s += usual_s
    return now_s / first_s if first_s > 0.0 else 0.0
