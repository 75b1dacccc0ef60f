"""Renewals of many agents: they are not asked together, since their answers would be late then."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from joulecut_controller.plan.plan import Action, Plan
from joulecut_controller.reconcile.leases import CALLS_AT_ONCE, Leases
from joulecut_wire.messages import Command, Result

AGENTS = 3 * CALLS_AT_ONCE
ANSWER_S = 0.03  # less than a pause
TTL_S = 1.2


class Agents:
    """A fleet whose agents answer after a moment; `most` were asked at one time."""

    def __init__(self) -> None:
        self.asked = self.most = self.renewed = 0

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]:
        return tuple(Result(one.uuid, accepted=True) for one in command.settings)

    async def renew(
        self, address: str, epoch: int, job: str, generation: int, ttl_s: float
    ) -> tuple[Result, ...]:
        self.asked += 1
        self.most = max(self.most, self.asked)
        await asyncio.sleep(ANSWER_S)
        self.asked, self.renewed = self.asked - 1, self.renewed + 1
        return (Result("", accepted=True),)


def plan_of(uuids: Sequence[str]) -> Plan:
    actions = tuple(Action(uuid, 0, "lower", 1200, "slack") for uuid in uuids)
    return Plan("job", 1, 0, "enforce", "gpu", actions, "slack", 1.8e9)


def test_a_round_of_renewals_asks_few_agents_at_once_and_all_of_them() -> None:
    fleet = Agents()
    leases = Leases(cast("Any", fleet), 1)
    gpus = {f"GPU-{i}": SimpleNamespace(address=f"n{i}:1") for i in range(AGENTS)}

    async def go() -> None:
        assert not (await leases.apply(plan_of([*gpus]), cast("Any", gpus), TTL_S)).refused
        outcomes = await leases.renew(TTL_S, {"job"})
        assert not outcomes["job"].refused

    asyncio.run(go())
    assert fleet.renewed == AGENTS
    assert fleet.most <= CALLS_AT_ONCE
