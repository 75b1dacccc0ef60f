"""Joules saved since this controller began: iterations under plans, times what one of them saves.

What an iteration saves is measured by the hold-outs of its shape and phase, and by nothing else:
the counter and the measured ratio are one figure. Iterations count from before the first interval
on. A plan that costs energy lowers the sum. Pure and bounded.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from joulecut_controller.trust.saving import Saving

Kind = tuple[str, str]  # shape and phase
KINDS_MAX = 64  # of one job; the oldest is settled then
SETTLED_S = 86_400.0  # later hold-outs change no older joules


@dataclass(slots=True)
class _Ran:
    """Iterations of one kind under plans. `each_j` is what one saves, None before it is known."""

    begun_s: float
    seconds: float = 0.0
    iterations: int = 0
    promised_j: float = 0.0
    each_j: float | None = None

    @property
    def sums(self) -> tuple[float, float, float]:
        """Joules saved and promised, and seconds; zeros where it is not known."""
        if self.each_j is None:
            return 0.0, 0.0, 0.0
        return self.iterations * self.each_j, self.promised_j, self.seconds


class SavedEnergy:
    """Of one job. `predicted_j` is what plans' forecasts promise for all iterations under plans."""

    def __init__(self) -> None:
        self.predicted_j = self._all_s = 0.0
        self._settled = (0.0, 0.0, 0.0)
        self._ran: dict[Kind, _Ran] = {}

    def add(
        self, kind: Kind, now_s: float, seconds: float, iterations: int, promised_j: float
    ) -> None:
        """Time under plans, with what they promise for its iterations."""
        ran = self._ran.setdefault(kind, _Ran(now_s))
        ran.seconds += seconds
        ran.iterations += iterations
        ran.promised_j += promised_j
        self._all_s += seconds
        self.predicted_j += promised_j
        if len(self._ran) > KINDS_MAX:
            self._settle(next(iter(self._ran)))

    def learn(self, savings: Iterable[Saving], now_s: float) -> None:
        """What hold-outs say now."""
        for one in savings:
            ran = self._ran.get((one.shape, one.phase))
            if ran is None or one.saved_ratio is None:
                continue
            assert one.default_energy_j is not None
            assert one.plan_energy_j is not None
            ran.each_j = one.default_energy_j - one.plan_energy_j
            if now_s - ran.begun_s >= SETTLED_S:
                self._settle((one.shape, one.phase))

    def _settle(self, kind: Kind) -> None:
        before, more = self._settled, self._ran.pop(kind).sums
        self._settled = (before[0] + more[0], before[1] + more[1], before[2] + more[2])

    def measured(self) -> tuple[float, float, float] | None:
        """Joules saved, signed, what plans promised for the same iterations, and their share of the
        time under plans; None where hold-outs gave no interval.
        """
        known = (self._settled, *(one.sums for one in self._ran.values()))
        saved_j, promised_j, known_s = map(sum, zip(*known, strict=True))
        return (saved_j, promised_j, known_s / self._all_s) if known_s > 0.0 else None
