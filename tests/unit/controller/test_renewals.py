"""Renewals: few agents are asked together, and those of one job wait for no agent of another."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from joulecut_controller.plan.plan import Action, Plan
from joulecut_controller.reconcile.leases import CALLS_AT_ONCE, Leases
from joulecut_wire.messages import Command, Result

AGENTS = 3 * CALLS_AT_ONCE
ANSWER_S = 0.03
TTL_S = 0.6


class Agents:
    """A fleet whose agents answer after a moment; `most` were asked at one time."""

    def __init__(self) -> None:
        self.asked = self.most = self.renewed = 0
        self.mute: set[str] = set()  # agents that answer when they may, and refuse then
        self.may_answer = asyncio.Event()
        self.times: Counter[str] = Counter()  # each agent was asked

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]:
        return tuple(Result(one.uuid, accepted=True) for one in command.settings)

    async def clear(self, address: str, *_: object) -> tuple[Result, ...]:
        return (Result("", accepted=True),)

    async def renew(
        self, address: str, epoch: int, job: str, generation: int, ttl_s: float
    ) -> tuple[Result, ...]:
        self.asked += 1
        self.most = max(self.most, self.asked)
        self.times[address] += 1
        await (self.may_answer.wait() if address in self.mute else asyncio.sleep(ANSWER_S))
        self.asked, self.renewed = self.asked - 1, self.renewed + 1
        return (Result("", accepted=address not in self.mute),)


def plan_of(uuids: Sequence[str], job: str = "job") -> Plan:
    actions = tuple(Action(uuid, 0, "lower", 1200, "slack") for uuid in uuids)
    return Plan(job, 1, 0, "enforce", "gpu", actions, "slack", 1.8e9)


def test_a_round_of_renewals_asks_few_agents_at_once_and_all_of_them() -> None:
    fleet = Agents()
    leases = Leases(cast("Any", fleet), 1)
    gpus = {f"GPU-{i}": SimpleNamespace(address=f"n{i}:1") for i in range(AGENTS)}

    async def go() -> None:
        assert not (await leases.apply(plan_of([*gpus]), cast("Any", gpus), TTL_S)).refused
        assert not (await leases.renew("job", TTL_S)).refused

    asyncio.run(go())
    assert fleet.renewed == AGENTS
    assert fleet.most <= CALLS_AT_ONCE


def test_an_agent_that_does_not_answer_delays_no_renewal_of_another_job() -> None:
    async def go() -> None:
        fleet = Agents()
        fleet.mute = {"mute:1"}
        leases = Leases(cast("Any", fleet), 1)

        async def beat(job: str) -> bool:
            return not (await leases.renew(job, TTL_S)).refused

        async def asked(address: str, times: int) -> None:
            async with asyncio.timeout(60.0):
                while fleet.times[address] < times:
                    await asyncio.sleep(ANSWER_S)

        for job, address in (("first", "n1:1"), ("second", "mute:1")):
            gpus = {f"GPU-{job}": SimpleNamespace(address=address)}
            await leases.apply(plan_of([*gpus], job), cast("Any", gpus), TTL_S)
        keeping = asyncio.create_task(leases.keep(lambda: TTL_S, beat))
        await asked("mute:1", 1)
        await asked("n1:1", 4)
        assert fleet.times["mute:1"] == 1, "it has not answered yet"
        fleet.may_answer.set()
        await asked("mute:1", 3)
        await leases.release("first", "the end")
        times = fleet.times["n1:1"]
        await asked("mute:1", 6)
        assert fleet.times["n1:1"] == times, "nothing is held any more"
        keeping.cancel()

    asyncio.run(go())
