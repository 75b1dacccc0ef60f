"""The sentence of a pass that changed nothing."""

from dataclasses import replace

from boards import board, job, measuring

from joulecut_controller.reconcile.cluster_board import steady_sentence


def test_plans_that_wait_for_mode_enforce_are_counted() -> None:
    one = job("recommend")
    assert one.decision is not None
    assert one.decision.forecast is not None
    saved = f"{-one.decision.forecast.saved_ratio:+.1%}".replace("%", " %")
    assert steady_sentence((one,)) == (
        f"all jobs steady. 1 plan available: {saved} energy (recommend)"
    )
    cheaper = replace(one.decision.forecast, energy_j=0.5 * one.decision.forecast.baseline_energy_j)
    two = replace(one, decision=replace(one.decision, forecast=cheaper))
    assert steady_sentence((one, two)) == (
        f"all jobs steady. 2 plans available: {saved} to -50.0 % energy (recommend)"
    )
    refused = replace(one, decision=replace(one.decision, refused="stale"))
    assert steady_sentence((refused,)) == "all jobs steady"


def test_a_job_without_a_baseline_is_not_called_steady() -> None:
    assert steady_sentence(board("enforce").jobs) == "all jobs steady"
    assert steady_sentence(measuring().jobs) == "no change"
    assert steady_sentence(()) == "no job in the policy"
