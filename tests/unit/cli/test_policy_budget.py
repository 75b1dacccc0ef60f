"""`policy check` says what a power budget means, and refuses one that no limits can keep."""

from typing import Any

import pytest

from joulecut_cli.policy import budget_check, hindrances
from joulecut_controller.policy.policy import Cost, GpuRef, JobPolicy, Policy, Slo
from joulecut_wire.errors import BadInput

JOB = JobPolicy("a", "enforce", Slo(max_slowdown=0.0), gpus=(GpuRef("n1", 0), GpuRef("n1", 1)))


def board(*, keeps: bool = True, settable: bool = True) -> dict[str, Any]:
    gpu = {
        "node": "n1",
        "power_limit_w": 500.0,
        "power_limit_least_w": 100.0,
        "power_controllable": settable,
        "why_not_controllable": "" if settable else "MIG is on",
    }
    return {
        "nodes": [{"node": "n1", "keeps_power_limits": keeps}],
        "gpus": [{**gpu, "index": index} for index in range(2)],
    }


def policy(budget_w: float | None, host_power_w: float = 0.0) -> Policy:
    cost = Cost(host_power_w=host_power_w)
    return Policy(jobs=(JOB,), cost=cost, power_budget_w=budget_w, source="p.yaml")


def test_without_a_budget_there_is_nothing_to_say() -> None:
    assert budget_check(policy(None), board()) is None


def test_a_budget_below_the_least_limits_is_refused_with_the_least_figure() -> None:
    with pytest.raises(BadInput, match=r"cluster\.power_budget_w.*allowed: 260 W or more"):
        budget_check(policy(250.0, host_power_w=30.0), board())
    with pytest.raises(BadInput, match="allowed: 60 W or more"):
        budget_check(policy(50.0, host_power_w=30.0), None)


@pytest.mark.parametrize(
    ("given", "why"), [({"keeps": False}, "keeper"), ({"settable": False}, "MIG is on")]
)
def test_what_cannot_be_limited_makes_it_best_effort(given: dict[str, bool], why: str) -> None:
    found = budget_check(policy(1500.0), board(**given))
    assert found is not None
    assert why in found["text"]
    assert len(found["best_effort"]) == 2
    fine = budget_check(policy(1500.0), board())
    assert fine is not None
    assert fine["best_effort"] == []


def test_gpus_that_no_command_can_reach_are_named() -> None:
    one = {**board(settable=False), "jobs": []}
    assert hindrances(policy(None), None) == {}
    assert hindrances(policy(None), one) == {"a": "GPU n1/0: not controllable: MIG is on"}
    assert hindrances(policy(None), {**board(), "jobs": [], "gpus": []}) == {
        "a": "GPU n1/0: no agent has it"
    }
    known = {**board(), "jobs": [{"name": "a", "hindrance": "its agent sees drift"}]}
    assert hindrances(policy(None), known) == {"a": "its agent sees drift"}


def test_recommend_sends_nothing() -> None:
    quiet = JobPolicy("a", "recommend", Slo(max_slowdown=0.0))
    found = budget_check(Policy(jobs=(quiet,), power_budget_w=1500.0), board())
    assert found is not None
    assert "no command is sent" in found["text"]
