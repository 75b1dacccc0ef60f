"""Tensor-parallel groups spread over agents: held as one, reverted as one, paced by their slowest.

Two stages of two GPUs; each agent has one GPU of either group, and one GPU takes 5 % longer.
"""

import asyncio

import pytest
from enforced import enforcing
from hypothesis import given, settings
from hypothesis import strategies as st
from possible import search_in_jitter
from tensor_parallel import GroupWorld
from unprofiled import UnprofiledWorld
from worlds import Call, Controller

from joulecut_controller.plan.plan import Action, Plan, verb_of
from joulecut_controller.policy.policy import Slo
from joulecut_controller.reconcile.leases import Leases
from joulecut_controller.store.database import DatabaseStore
from joulecut_sim.plant import Noise

BUDGET = 0.03
TTL_S = 30.0
CLOCKS_MHZ = (1005, 1200, 1305, 1410)


class UnprofiledGroups(GroupWorld, UnprofiledWorld):
    """The same groups, of which only the rate is reported."""


def saved(world: GroupWorld) -> float:
    """What the clocks in force save, by the plant's own means without jitter."""
    jitter, world.plant.noise = world.plant.noise, Noise(operation=0.0)
    default = [world.sku.clock_max_mhz] * len(world.uuids)
    held = [world.clocks_mhz()[uuid] for uuid in world.uuids]
    ratio = world.plant.iterate(held).energy_j / world.plant.iterate(default).energy_j
    world.plant.noise = jitter
    return 1.0 - ratio


def stages_at_one_clock(world: GroupWorld) -> bool:
    clocks = world.clocks_mhz()
    return all(clocks[f"GPU-{stage}-0"] == clocks[f"GPU-{stage}-1"] for stage in range(2))


@pytest.mark.parametrize("slow", [0, 3])
def test_groups_save_what_is_possible_in_time(store: DatabaseStore, slow: int) -> None:
    world = GroupWorld(slow=slow)
    controller = enforcing(world, store, slo=Slo(max_slowdown=BUDGET))
    controller.run(120, until=lambda: not stages_at_one_clock(world))
    assert stages_at_one_clock(world)
    assert len(controller.job.applied.actions if controller.job.applied else ()) == 4
    possible = search_in_jitter(world.plant, BUDGET).saved_ratio
    assert saved(world) >= possible - 0.01, controller.job.sentence
    baseline = controller.job.view.measured.baseline
    assert world.recent_s(200) <= baseline.time_mean_s * (1.0 + BUDGET + 0.002)


@pytest.mark.long
def test_groups_without_a_profile_save_what_is_possible(store: DatabaseStore) -> None:
    world = UnprofiledGroups()
    controller = Controller(world, store, world.unprofiled(budget=BUDGET))
    controller.run(600)
    assert stages_at_one_clock(world)
    possible = search_in_jitter(world.plant, BUDGET).saved_ratio
    assert saved(world) >= possible - 0.01, controller.job.sentence


def test_a_group_with_a_silent_gpu_is_released(store: DatabaseStore) -> None:
    """Its reports stop while the others go on: no group is held in part."""
    world = GroupWorld()
    controller = enforcing(world, store)
    take = world.take_reports
    world.take_reports = lambda: tuple(one for one in take() if one.report.uuid != "GPU-1-1")
    controller.run(30, until=world.at_default)
    sent = len(world.sent("apply"))
    controller.run(40)
    assert world.at_default()
    assert len(world.sent("apply")) == sent
    assert "stages have 1 to 2 GPUs" in controller.job.sentence


# -- the order of commands -----------------------------------------------------------------


def _plan(world: GroupWorld, generation: int, clocks: tuple[int, int], now: dict[str, int]) -> Plan:
    top = world.sku.clock_max_mhz
    actions = tuple(
        Action(uuid, stage, *verb_of(clocks[stage], now[uuid], top, now[uuid] < top), "test")
        for uuid, stage in world.stage_of.items()
    )
    return Plan(world.job, generation, 0, "enforce", "gpu", actions, "test", 1.8e9)


class _Watched(GroupWorld):
    """Notes the clocks after every command; an agent may refuse lowering."""

    def __init__(self, refuses: str) -> None:
        super().__init__()
        self.refuses = refuses
        self.seen: list[tuple[Call, dict[str, int]]] = []

    async def apply(self, address, command):
        clocks = self.clocks_mhz()
        lowers = any(s.clock_max_mhz < clocks[s.uuid] for s in command.settings)
        self.agents[address].refuse = "no" if lowers and address == self.refuses else ""
        results = await super().apply(address, command)
        self.seen.append((self.calls[-1], self.clocks_mhz()))
        return results


pairs = st.tuples(st.sampled_from(CLOCKS_MHZ), st.sampled_from(CLOCKS_MHZ))


@settings(deadline=None, max_examples=60)
@given(before=pairs, after=pairs, refuses=st.sampled_from(["", "n1:1", "n2:1"]))
def test_all_groups_are_raised_before_one_is_lowered_and_a_refusal_reverts_all(
    before: tuple[int, int], after: tuple[int, int], refuses: str
) -> None:
    world = _Watched("")
    gpus = {gpu.uuid: gpu for gpu in world.observe(world.now_s).gpus}
    leases = Leases(world, 1)

    async def change() -> bool:
        await leases.apply(_plan(world, 1, before, world.clocks_mhz()), gpus, TTL_S)
        assert stages_at_one_clock(world)
        world.seen.clear()
        world.refuses = refuses
        outcome = await leases.apply(_plan(world, 2, after, world.clocks_mhz()), gpus, TTL_S)
        return not outcome.refused

    if asyncio.run(change()):
        assert {u: after[stage] for u, stage in world.stage_of.items()} == world.clocks_mhz()
    else:
        assert world.at_default()
        assert leases.of(world.job) is None
    lowered = False
    for _, clocks in world.seen:
        raised = all(clocks[u] >= after[stage] for u, stage in world.stage_of.items())
        lowered |= any(clocks[u] < before[stage] for u, stage in world.stage_of.items())
        assert raised or not lowered
