"""A new leader reads a stored plan exactly as it was written, or rejects it."""

import json
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_controller.plan.earlier import EarlierPlan, clock_runs, clocks_of, read
from joulecut_controller.plan.plan import Forecast, Plan, Resumption
from joulecut_controller.plan.record import plan_json, stored_json
from joulecut_engine.optimize.problem import ChangeLimits

CLOCKS = st.lists(st.sampled_from((900, 1200, 1410)), min_size=1, max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=4)


def stored(order: list[list[int]], clocks: tuple[int, ...]) -> Plan:
    resumption = Resumption("ab12", clock_runs(order, clocks), ChangeLimits(2, 0.25))
    forecast = Forecast(6.1, 900.0, 6.0, 1000.0, 880.0, 0.02)
    return Plan(
        "job", 7, 6, "enforce", "gpu", (), "slack", 1.7e9, forecast=forecast, resumption=resumption
    )


@given(st.lists(CLOCKS, min_size=1, max_size=4), st.randoms())
def test_the_clocks_come_back_operation_by_operation(
    by_stage: list[list[int]], luck: Random
) -> None:
    clocks = tuple(mhz for stage in by_stage for mhz in stage)
    indices = list(range(len(clocks)))
    luck.shuffle(indices)
    order, at = [], 0
    for stage in by_stage:
        order.append(indices[at : at + len(stage)])
        at += len(stage)
    found = read(json.dumps(stored_json(stored(order, clocks))))
    assert found is not None
    assert clocks_of(found, order) == clocks
    longer = [*order[:-1], [*order[-1], len(clocks)]]
    assert clocks_of(found, longer) is None, "of another graph"


@settings(max_examples=300)
@given(st.data())
def test_damaged_plans_are_not_read(data: st.DataObject) -> None:
    """Anything in place of anything: the answer is a plan with sound numbers, or none."""
    content = json.loads(json.dumps(stored_json(stored([[0, 1], [2]], (900, 900, 1410)))))
    places = ["mode", "refused", "granularity", "generation", "forecast", "resumption"]
    inner = {"forecast": ["iteration_time_s", "gap_ratio"]}
    inner["resumption"] = ["rests_on", "clocks_by_stage", "changes_per_iteration", "min_dwell_s"]
    place = data.draw(st.sampled_from(places))
    holder = content
    if place in inner and data.draw(st.booleans()):
        holder, place = content[place], data.draw(st.sampled_from(inner[place]))
    if data.draw(st.booleans()):
        del holder[place]
    else:
        holder[place] = data.draw(JSON)
    found = read(json.dumps(content))
    assert found is None or isinstance(found, EarlierPlan)
    if found is not None:
        assert found.iteration_time_s > 0.0
        assert clocks_of(found, [[0, 1], [2]]) is None or len(found.resumption.clocks) == 2


def test_plans_of_versions_before_are_not_read() -> None:
    content = plan_json(stored([[0]], (900,)))
    assert read(json.dumps(content)) is None
    assert read("") is None
