"""Savings: promised and measured, kept apart, and credited once."""

from dataclasses import replace

from joulecut_controller.observe.iteration_stats import Measured
from joulecut_controller.plan.plan import Forecast, Plan
from joulecut_controller.reconcile.applied_plan import SavedEnergy
from joulecut_controller.view import Window

PLAN = Plan(
    job="job",
    generation=1,
    parent=0,
    mode="enforce",
    granularity="gpu",
    actions=(),
    reason="",
    made_at_unix_s=0.0,
    forecast=Forecast(1.0, 80.0, 1.0, 100.0, 75.0, 0.05),
)


def seen(fresh: int, total: int, energy_j: float | None, straggling: bool = False) -> Measured:
    return Measured(
        baseline=Window(60, 1.0, 0.0, 100.0, 100.0),
        current=Window(total, 1.0, 0.0, energy_j, energy_j),
        current_iterations=total,
        straggling=straggling,
        peer_iteration_time_s=None,
        loads=(),
        fresh=(),
        fresh_iterations=fresh,
        locks={},
        at_default=False,
        settled=True,
    )


def test_iterations_wait_for_their_energy_and_are_credited_once() -> None:
    account = SavedEnergy().after(seen(5, 5, None), PLAN).after(seen(5, 10, None), PLAN)
    assert (account.predicted_j, account.measured_j, account.unmeasured) == (200.0, 0.0, 10)
    account = account.after(seen(5, 15, 90.0), PLAN)
    assert (account.predicted_j, account.measured_j, account.unmeasured) == (300.0, 150.0, 0)
    assert account.after(seen(0, 15, 90.0), PLAN) == account


def test_what_was_never_measured_is_never_credited() -> None:
    account = SavedEnergy().after(seen(5, 5, None), PLAN)
    account = account.after(seen(2, 2, 90.0), PLAN)  # the clocks changed in between
    assert account.measured_j == 20.0


def test_no_measured_saving_while_a_straggler_is_waited_for() -> None:
    assert SavedEnergy().after(seen(5, 9, 50.0, straggling=True), PLAN).measured_j == 0.0


def test_a_plan_that_costs_energy_is_not_hidden() -> None:
    worse = replace(PLAN, forecast=replace(PLAN.forecast, energy_j=110.0))  # type: ignore[type-var]
    account = SavedEnergy().after(seen(1, 9, 120.0), worse)
    assert (account.predicted_j, account.measured_j) == (-10.0, -20.0)
