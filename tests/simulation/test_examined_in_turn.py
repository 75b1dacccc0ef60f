"""Of very many jobs each is examined in turn. A job out of its turn still gets its plan, and loses
it at once where it is late, cannot be seen, or is asked for something else.
"""

import pytest
from enforced import enforcing
from worlds import Controller, World

from joulecut_controller.policy.policy import Slo
from joulecut_controller.reconcile import job_controller
from joulecut_controller.store.database import DatabaseStore

PASSES = 25


@pytest.fixture
def unexamined(world: World, store: DatabaseStore, monkeypatch: pytest.MonkeyPatch) -> Controller:
    """A controller that holds a plan, as one job of very many: its turn never comes."""
    monkeypatch.setattr(job_controller, "EXAMINED_PER_INTERVAL", 1e-6)
    return enforcing(world, store)


def test_a_late_job_does_not_wait_for_its_turn(unexamined: Controller, world: World) -> None:
    before = world.clocks_mhz()
    assert unexamined.job.sentence == "plan 1 unchanged"
    world.hidden_ratio = 1.04
    unexamined.run(PASSES, until=lambda: world.clocks_mhz() != before)
    assert sum(world.clocks_mhz().values()) > sum(before.values())


def test_another_policy_and_a_lost_agent_count_at_once(
    unexamined: Controller, world: World
) -> None:
    before = world.clocks_mhz()
    unexamined.source.put(world.policy(slo=Slo(max_slowdown=0.06)))
    unexamined.run(PASSES, until=lambda: world.clocks_mhz() != before)
    assert sum(world.clocks_mhz().values()) < sum(before.values())
    unexamined.run(5)
    world.agents["n1:1"].connected = False
    unexamined.run(5, until=lambda: unexamined.job.applied is None)
    assert unexamined.job.applied is None
