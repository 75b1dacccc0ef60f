"""Tensor-parallel groups spread over agents: released as one, raised, lowered and reverted as one.

Two stages of two GPUs; each agent has one GPU of either group. `test_shapes.py` has their saving.
"""

import asyncio

from enforced import enforcing
from hypothesis import given
from hypothesis import strategies as st
from shapes import ShapeWorld
from worlds import Agent, Call

from joulecut_controller.plan.plan import Action, Plan, verb_of
from joulecut_controller.reconcile.leases import Leases
from joulecut_controller.store.database import DatabaseStore
from joulecut_engine.graph.pipeline import Pipeline

TTL_S = 30.0
CLOCKS_MHZ = (1005, 1200, 1305, 1410)


class GroupWorld(ShapeWorld):
    """One GPU of each pair is on either node."""

    def __init__(self) -> None:
        super().__init__(Pipeline("1f1b", 2, 12, tensor_parallel=2))
        self.agents = {f"n{n}:1": Agent(f"n{n}:1", f"n{n}", self.uuids[n - 1 :: 2]) for n in (1, 2)}


def stages_at_one_clock(world: GroupWorld) -> bool:
    clocks = world.clocks_mhz()
    return all(clocks[f"GPU-{stage}-0-0"] == clocks[f"GPU-{stage}-0-1"] for stage in range(2))


def test_a_group_with_a_silent_gpu_is_released(store: DatabaseStore) -> None:
    """Its reports stop while the others go on: no group is held in part."""
    world = GroupWorld()
    controller = enforcing(world, store)
    take = world.take_reports
    world.take_reports = lambda: tuple(one for one in take() if one.report.uuid != "GPU-1-0-1")
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
