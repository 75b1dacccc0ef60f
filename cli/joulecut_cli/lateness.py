"""Iteration times of a plan under jitter, mean and P95, as text and JSON of `joulecut plan`."""

from typing import Any

from joulecut_cli import figures
from joulecut_cli.target import rounded_up
from joulecut_engine.optimize.jitter import Spread
from joulecut_engine.optimize.jitter_margin import Assured, of
from joulecut_engine.optimize.problem import Solution
from joulecut_wire.errors import BadInput

_WORDS = {"p95": "P95", "mean": "mean"}


def as_json(found: Assured) -> dict[str, Any]:
    """Beside the plan's own fields; ratios are fractions."""
    return {
        "p95_iteration_time_s": found.spread.p95_s,
        "mean_iteration_time_s": found.spread.mean_s,
        "jitter": {
            "hold": found.statistic,
            "target_s": found.target_s,
            "met": found.met,
            "baseline": _spread(found.baseline_spread),
            "without_margin": _spread(found.unassured_spread)
            | {"energy_j": found.unassured.energy_j},
            "given_up_j": found.given_up_j,
        },
    }


def as_text(found: Assured, fastest: Solution) -> list[str]:
    """Baseline, plan without margin and plan, under the same noise samples."""

    def row(name: str, spread: Spread, energy_j: float) -> list[str]:
        saving = figures.percent(1 - energy_j / fastest.energy_j)
        return [name, figures.seconds(spread.mean_s), figures.seconds(spread.p95_s), saving]

    head = ["with jitter", "mean", "P95", "saving"]
    rows = [
        row("baseline", found.baseline_spread, fastest.energy_j),
        row("without margin", found.unassured_spread, found.unassured.energy_j),
        row("plan", found.spread, found.plan.energy_j),
    ]
    word = _WORDS[found.statistic]
    kept = "is met" if found.met else "is missed even by the fastest plan of this granularity"
    given_up = figures.percent(found.given_up_j / fastest.energy_j)
    line = (
        f"{word} of at most {figures.seconds(found.target_s)} {kept}; "
        f"the margin gives up {given_up} of the baseline's energy"
    )
    return [*figures.table(head, rows, frozenset(head[1:])), line]


def too_late(found: Assured) -> BadInput:
    """The error for a deadline that jitter makes impossible, with the shortest possible one."""
    at_least = f"{rounded_up(of(found.spread, found.statistic), 5)} s"
    what = f"with this jitter the {_WORDS[found.statistic]} of even the fastest plan is {at_least}"
    return BadInput("--deadline", what, f"at least {at_least}")


def _spread(spread: Spread) -> dict[str, float]:
    return {"mean_iteration_time_s": spread.mean_s, "p95_iteration_time_s": spread.p95_s}
