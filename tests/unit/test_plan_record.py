"""A plan as plain values: everything in it, and nothing JSON does not know."""

import json
import math

from joulecut_controller.plan import record
from joulecut_controller.plan.plan import Action, Forecast, Plan
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.problem import Solution

FAST, SLOW = ClockOption(1410, 0.05, 24.0), ClockOption(1200, 0.056, 19.0)
PLAN = Plan(
    job="gpt3",
    generation=7,
    parent=6,
    mode="enforce",
    granularity="gpu",
    actions=(
        Action("GPU-a", 0, "hold", 1410, "critical"),
        Action("GPU-b", 1, "clear", None, "released"),
    ),
    reason="slack on stage 1",
    made_at_unix_s=1.7e9,
    deadline_s=6.12,
    forecast=Forecast(6.1, 900.0, 6.0, 1000.0, 880.0, 0.02, (("gpu", 0.1), ("changes", 0.15))),
    solution=Solution(
        "gpu",
        (FAST, SLOW, SLOW),
        (0.0, 0.05, 0.106),
        6.1,
        900.0,
        880.0,
        "computation",
        solve_seconds=0.25,
    ),
)


def test_the_whole_plan_survives_json() -> None:
    content = json.loads(json.dumps(record.PLAN.json(PLAN), allow_nan=False))
    assert content["job"] == "gpt3"
    assert (content["generation"], content["parent"]) == (7, 6)
    assert content["deadline_s"] == 6.12
    assert content["changes_nothing"] is False
    assert content["actions"][1] == {
        "uuid": "GPU-b",
        "stage": 1,
        "verb": "clear",
        "clock_mhz": None,
        "reason": "released",
    }
    assert math.isclose(content["forecast"]["saved_ratio"], 0.1)
    assert math.isclose(content["forecast"]["slowdown_ratio"], 0.1 / 6.0)
    assert content["forecast"]["saved_ratio_by_granularity"] == {"gpu": 0.1, "changes": 0.15}
    assert math.isclose(content["solution"]["gap"], 20.0 / 880.0)
    assert content["solution"]["bound_granularity"] == "computation"


def test_operations_are_summed_by_clock() -> None:
    solution = record.PLAN.json(PLAN)["solution"]
    assert solution["operations_by_clock"] == [
        {"clock_mhz": 1200, "operations": 2, "time_s": 0.112, "energy_j": 38.0},
        {"clock_mhz": 1410, "operations": 1, "time_s": 0.05, "energy_j": 24.0},
    ]


def test_a_plan_that_says_only_why_nothing_changes() -> None:
    content = record.PLAN.json(Plan("a", 1, 0, "recommend", "gpu", (), "no profile", 0.0))
    assert content["changes_nothing"] is True
    assert content["forecast"] is None
    assert content["solution"] is None
    assert content["deadline_s"] is None


def test_numbers_that_are_none_become_null() -> None:
    nan = float("nan")
    broken = Plan(
        "a", 1, 0, "recommend", "gpu", (), "odd", nan, float("inf"),
        Forecast(nan, 1.0, 0.0, 0.0, -float("inf"), nan, (("gpu", nan),)),
        Solution("gpu", (ClockOption(1, nan, 1.0),), (0.0,), nan, 1.0, 0.0, "gpu"),
    )  # fmt: skip
    text = json.dumps(record.PLAN.json(broken), allow_nan=False)
    content = json.loads(text)
    assert content["deadline_s"] is None
    assert content["forecast"]["saved_ratio"] is None
    assert content["solution"]["gap"] is None
    assert content["solution"]["operations_by_clock"][0]["time_s"] is None
