"""A plan as plain values: one shape for store, page, API and tests.

Units are in the keys. Only finite numbers leave: JSON knows no others, and readers in
other languages stop at them.
"""

import math
from collections import defaultdict
from dataclasses import asdict
from typing import Any

from joulecut_controller.plan.plan import Action, Forecast, Plan, Resumption
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.problem import Solution


def plan_json(plan: Plan) -> dict[str, Any]:
    """The whole plan; per-operation lists of the solution are summed up by clock.

    A number that is not finite becomes None, which reads as "not known".
    """
    return {
        "job": plan.job,
        "generation": plan.generation,
        "parent": plan.parent,
        "mode": plan.mode,
        "granularity": plan.granularity,
        "granularity_asked": plan.granularity_asked,
        "granularity_why": plan.granularity_why,
        "shortest_step_s": _finite(plan.shortest_step_s),
        "changes_nothing": plan.changes_nothing,
        "reason": plan.reason,
        "refused": plan.refused,
        "made_at_unix_s": _finite(plan.made_at_unix_s),
        "deadline_s": _finite(plan.deadline_s),
        "actions": [
            {
                "uuid": action.uuid,
                "stage": action.stage,
                "verb": action.verb,
                "clock_mhz": action.clock_mhz,
                "reason": action.reason,
            }
            | _steps(action)
            for action in plan.actions
        ],
        "clock_reasons": [_known(asdict(one)) for one in plan.clock_reasons],
        "forecast": plan.forecast and _forecast(plan.forecast),
        "solution": plan.solution and _solution(plan.solution),
    }


def stored_json(plan: Plan) -> dict[str, Any]:
    """`plan_json`, and what the next leader needs to go on with the plan."""
    again = plan.resumption
    return plan_json(plan) | ({"resumption": _resumption(again)} if again else {})


def _steps(action: Action) -> dict[str, Any]:
    """The clocks of an iteration, by seconds from its start; of those on marks only how many, since
    the solution has them; nothing where there is one clock."""
    if action.marks:
        return {"marked_operations": len(action.marks), "clock_lowest_mhz": action.lowest_mhz}
    if not action.steps:
        return {}
    return {
        "steps": [
            {"offset_s": _finite(step.offset_s), "clock_mhz": step.clock_max_mhz}
            for step in action.steps
        ]
    }


def _forecast(forecast: Forecast) -> dict[str, Any]:
    made: dict[str, Any] = _known(asdict(forecast))
    del made["saved_by_granularity"], made["work"]
    return made | {
        "saved_ratio": _finite(forecast.saved_ratio) if forecast.baseline_energy_j else None,
        "slowdown_ratio": _finite(forecast.slowdown_ratio) if forecast.baseline_time_s else None,
        "saved_ratio_by_granularity": _known(dict(forecast.saved_by_granularity)),
    }


def _resumption(resumption: Resumption) -> dict[str, Any]:
    return {
        "rests_on": resumption.rests_on,
        "clocks_by_stage": resumption.clocks,
        "changes_per_iteration": resumption.limits.per_iteration,
        "min_dwell_s": _finite(resumption.limits.min_dwell_s),
    }


def _solution(solution: Solution) -> dict[str, Any]:
    at: defaultdict[int, list[ClockOption]] = defaultdict(list)
    for option in solution.clocks:
        at[option.clock_mhz].append(option)
    return {
        "granularity": solution.granularity,
        "iteration_time_s": _finite(solution.iteration_time_s),
        "energy_j": _finite(solution.energy_j),
        "lower_bound_j": _finite(solution.lower_bound_j),
        "bound_granularity": solution.bound_granularity,
        "gap": _finite(solution.gap) if solution.lower_bound_j else None,
        "solve_seconds": _finite(solution.solve_seconds),
        "changes_per_iteration": solution.limits.per_iteration if solution.limits else None,
        "min_dwell_s": _finite(solution.limits.min_dwell_s) if solution.limits else None,
        "operations_by_clock": [
            {
                "clock_mhz": clock_mhz,
                "operations": len(options),
                "time_s": _finite(math.fsum(option.time_s for option in options)),
                "energy_j": _finite(math.fsum(option.energy_j for option in options)),
            }
            for clock_mhz, options in sorted(at.items())
        ],
    }


def _known(value: Any) -> Any:
    """Plain values all the way down, without numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _known(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_known(one) for one in value]
    return _finite(value) if isinstance(value, float) else value


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
