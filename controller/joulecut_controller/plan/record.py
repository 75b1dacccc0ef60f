"""A plan as plain values: one shape for store, page, API and tests.

Units are in the keys. Only finite numbers leave: JSON knows no others, and readers in
other languages stop at them.
"""

import math
from collections import defaultdict
from dataclasses import asdict
from typing import Any

from joulecut_controller import answer as a
from joulecut_controller.answer import Answer, Key, listed, maybe, number, one_of
from joulecut_controller.plan.plan import Action, Forecast
from joulecut_controller.policy.policy import Mode
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.problem import Solution

MODE = one_of("Mode", Mode)


def _known(value: Any) -> Any:
    """Plain values all the way down, without numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _known(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_known(one) for one in value]
    return number(value) if isinstance(value, float) else value


def _action(action: Action) -> dict[str, Any]:
    """The clocks of an iteration, by seconds from its start; nothing where there is one clock."""
    made = _ACTION.json(action)
    if action.power_limit_w is not None:
        made["power_limit_w"] = number(action.power_limit_w)
    if action.unused_mhz:
        made["clock_unused_mhz"] = action.unused_mhz
    if not action.steps:
        return made
    steps = [
        {"offset_s": number(step.offset_s), "clock_mhz": step.clock_max_mhz}
        for step in action.steps
    ]
    return made | {"steps": steps}


def _forecast(forecast: Forecast) -> dict[str, Any]:
    made: dict[str, Any] = _known(asdict(forecast))
    del made["saved_by_granularity"], made["modelled"], made["operations"]
    if forecast.band is None:
        del made["band"]
    return made | {
        "constant_s": 0.0,  # until 0.3.0
        "saved_ratio": number(forecast.saved_ratio) if forecast.baseline_energy_j else None,
        "slowdown_ratio": number(forecast.slowdown_ratio) if forecast.baseline_time_s else None,
        "saved_ratio_by_granularity": _known(dict(forecast.saved_by_granularity)),
    }


def _solution(solution: Solution) -> dict[str, Any]:
    at: defaultdict[int, list[ClockOption]] = defaultdict(list)
    for option in solution.clocks:
        at[option.clock_mhz].append(option)
    return {
        "granularity": solution.granularity,
        "iteration_time_s": number(solution.iteration_time_s),
        "energy_j": number(solution.energy_j),
        "lower_bound_j": number(solution.lower_bound_j),
        "bound_granularity": solution.bound_granularity,
        "gap": number(solution.gap) if solution.lower_bound_j else None,
        "solve_seconds": number(solution.solve_seconds),
        "changes_per_iteration": solution.limits.per_iteration if solution.limits else None,
        "min_dwell_s": number(solution.limits.min_dwell_s) if solution.limits else None,
        "operations_by_clock": [
            {
                "clock_mhz": clock_mhz,
                "operations": len(options),
                "time_s": number(math.fsum(option.time_s for option in options)),
                "energy_j": number(math.fsum(option.energy_j for option in options)),
            }
            for clock_mhz, options in sorted(at.items())
        ],
    }


_ACTION = Answer(uuid=a.TEXT, stage=a.COUNT, verb=a.TEXT, clock_mhz=a.CLOCK, reason=a.TEXT)
# What one clock step costs an iteration of the whole job, predicted.
_STEP = maybe(Answer(clock_mhz=a.CLOCK, time_s=a.NUMBER, energy_j=a.NUMBER))
_REASON = Answer(
    stage=a.COUNT,
    pipelines=listed(a.COUNT).at(lambda _: ()),  # of all; until 0.3.0
    offset_s=a.NUMBER,
    clock_mhz=a.CLOCK,
    slack_s=a.NUMBER,
    lower=_STEP,
    higher=_STEP,
    binds=a.TEXT,
    text=a.TEXT,
)
# Per-operation lists of the solution are summed up by clock.
PLAN = Answer(
    "Plan",
    job=a.TEXT,
    generation=a.COUNT,
    parent=a.COUNT,
    mode=MODE,
    granularity=a.TEXT,
    granularity_asked=a.TEXT,
    granularity_why=a.TEXT,
    shortest_step_s=a.NUMBER,
    changes_nothing=a.FLAG,
    reason=a.TEXT,
    refused=a.TEXT,
    predicted_from=a.TEXT,
    made_at_unix_s=a.NUMBER,
    deadline_s=a.NUMBER,
    actions=listed(Key(_ACTION.schema, _action)),
    clock_reasons=listed(_REASON),
    forecast=maybe(Key(a.OBJECT.schema, _forecast)),
    solution=maybe(Key(a.OBJECT.schema, _solution)),
)
