"""What clock changes do to a plan, for `joulecut plan`: how many, when, and at what price."""

from dataclasses import asdict, dataclass
from typing import Any

from joulecut_cli import figures
from joulecut_engine.optimize.clock_changes import UNLIMITED, Switched, Switching
from joulecut_engine.optimize.problem import Solution


@dataclass(frozen=True, slots=True)
class Limited:
    """Plans under switching at given slowdowns, None where there is none; or why there are none."""

    plans: tuple[Switched | None, ...]
    refused: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "refused": self.refused,
            "points": [
                {
                    "iteration_time_s": each.plan.iteration_time_s,
                    "energy_j": each.plan.energy_j,
                    "lower_bound_j": each.plan.lower_bound_j,
                    "switches": sum(map(len, each.changes)),
                }
                for each in self.plans
                if each is not None
            ],
        }

    def as_text(self) -> list[str]:
        if self.refused is not None:
            return [f"computation, switching: refused, latency_s {self.refused}"]
        found = [each for each in self.plans if each is not None]
        if not found:
            return ["computation, switching: no plan keeps the limits within these slowdowns"]
        most = max(len(changes) for each in found for changes in each.changes)
        gap = max(each.plan.gap for each in found)
        counts = f"at most {most} clock changes per GPU"
        return [f"computation, switching: {counts}, gap at most {gap * 100:.2f} %"]


def as_json(switching: Switching, switched: Switched, free: Solution) -> dict[str, Any]:
    """Beside the plan's own fields, which tell what is really run. `free` is the same
    granularity's plan where changing clocks is free and instant."""
    most = switching.max_per_iteration
    return {
        "switching": asdict(switching)
        | {"max_per_iteration": None if most >= UNLIMITED else most}
        | {"switches": sum(map(len, switched.changes))}
        | {
            "without_limits": {
                "iteration_time_s": free.iteration_time_s,
                "energy_j": free.energy_j,
            }
        },
        "stages": [
            {
                "stage": stage,
                "switches": [
                    {
                        "before_operation": change.operation,
                        "asked_s": change.asked_s,
                        "lands_s": change.lands_s,
                        "from_mhz": change.from_mhz,
                        "to_mhz": change.to_mhz,
                    }
                    for change in changes
                ],
            }
            for stage, changes in enumerate(switched.changes)
        ],
    }


def as_text(switched: Switched, fastest: Solution, free: Solution) -> list[str]:
    """One line of counts, one of the price."""
    counts = [len(changes) for changes in switched.changes]
    spread = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    late = sum(
        switched.plan.start_s[change.operation] < change.lands_s
        for changes in switched.changes
        for change in changes
    )
    given_up = figures.percent((switched.plan.energy_j - free.energy_j) / fastest.energy_j)
    changed = f"{sum(counts)} clock changes per iteration, {spread} per GPU"
    freely = f"clocks that change freely and at once would save {given_up} more"
    return [
        f"{changed}; {late} come after the next operation began",
        f"times and energy are those really run; {freely}",
    ]
