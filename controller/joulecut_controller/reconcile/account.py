"""What was saved, counted only while a plan's clocks were really held.

Two separate sums: what the plan promised per iteration, and what the energy counters say
against the measured baseline. Neither is ever made from the other.
"""

from dataclasses import dataclass

from joulecut_controller.observe.iteration_stats import Measured
from joulecut_controller.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Account:
    """Joules since this controller began; a plan that costs energy makes them fall.

    `unmeasured` iterations wait until the counters have spanned enough to say what they
    took; where the clocks change before that, they are never credited.
    """

    predicted_j: float = 0.0
    measured_j: float = 0.0
    unmeasured: int = 0

    def after(self, measured: Measured, applied: Plan) -> "Account":
        """The account after the iterations this pass added under `applied`."""
        count, forecast = measured.fresh_iterations, applied.forecast
        predicted_j = measured_j = 0.0
        if forecast is not None:
            predicted_j = count * (forecast.baseline_energy_j - forecast.energy_j)
        began_anew = measured.current_iterations <= count
        waiting = count if began_anew else self.unmeasured + count
        # While a straggler is waited for, no baseline was measured to compare with.
        baseline = None if measured.straggling else measured.baseline
        before_j = baseline.energy_j if baseline else None
        now_j = measured.current.energy_j if measured.current else None
        if before_j is not None and now_j is not None:
            measured_j = waiting * (before_j - now_j)
            waiting = 0
        return Account(self.predicted_j + predicted_j, self.measured_j + measured_j, waiting)
