"""Orders to set power limits, between a leader and the controllers of the jobs: whatever was
answered is what stays.
"""

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from joulecut_controller.election.claims import Claims, Group
from joulecut_controller.election.power_table import OwnTable
from joulecut_controller.power.budget import Demand, Share
from joulecut_controller.reconcile.leases import LimitOutcome
from joulecut_controller.reconcile.shared_budget import NO_JOB, LimitOrder, SharedBudget

JOBS = ("a", "b")


class Numbers:
    """The store, as far as a table in memory uses it."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def next_generation(self) -> int:
        return next(self._numbers)


class Table(OwnTable):
    """One table of several controllers."""

    def exchange(self, since, said, gone=()):
        changed = max((row.changed for row in self._rows.values()), default=0) + 1
        super().exchange(
            since, {job: {**one, "changed": changed} for job, one in said.items()}, gone
        )
        return [row for row in self._rows.values() if row.changed > since] if self._rows else None


@dataclass
class Gpus:
    """Agents, which refuse a plan's number that is older than the newest of a GPU."""

    limits_w: dict[str, float] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)

    async def set(self, order: LimitOrder, generation: int) -> LimitOutcome:
        taken = {u for u in order.limits_w if generation > self.newest.get(u, 0)}
        self.newest |= dict.fromkeys(taken, generation)
        self.limits_w |= {u: w for u, w in order.limits_w.items() if u in taken}
        return LimitOutcome(frozenset(taken), dict.fromkeys(order.limits_w.keys() - taken, "older"))


def group(number: int, holders: Mapping[str, int], leader: int = 1) -> Group:
    return Group(number, 1, leader, frozenset((1, 2, 3)), holders, holders)


def keep(**limits_w: float) -> LimitOrder:
    return LimitOrder(limits_w, keep=True, above=False, reason="a budget")


@dataclass
class Three:
    """The leader 1, and the controllers 2 and 3, of which 2 has both jobs."""

    table: Table = field(default_factory=lambda: Table(Numbers()))
    gpus: Gpus = field(default_factory=Gpus)
    holders: dict[str, int] = field(default_factory=lambda: dict.fromkeys(JOBS, 2))
    claims: dict[int, Claims] = field(default_factory=dict)
    seats: dict[int, SharedBudget] = field(default_factory=dict)
    job_of: dict[str, str] = field(default_factory=lambda: {"g": "a", "h": "a", "i": "b"})

    def __post_init__(self) -> None:
        for number in (1, 2, 3):
            self.claims[number] = Claims(1, group(number, self.holders))
            self.seats[number] = SharedBudget(self.claims[number], self.table)

    def give(self, **holders: int) -> None:
        self.holders |= holders
        for number, claims in self.claims.items():
            claims.follow(group(number, dict(self.holders)))

    async def begin(self) -> None:
        needs = {
            "a": Demand("a", uuids=("g", "h"), mean_w=np.float64(400.0)),
            "b": Demand("b", uuids=("i",)),
        }
        self.seats[2].need(needs)
        for number in (2, 1, 3):
            await self.seats[number].exchange((NO_JOB, *JOBS))

    async def answered(self) -> list[tuple[LimitOrder, LimitOutcome]]:
        await self.seats[1].exchange((NO_JOB, *JOBS))
        return list(self.seats[1].answers())


def test_an_order_is_carried_out_once_and_answered() -> None:
    async def go() -> None:
        three = Three()
        await three.begin()
        leader, second = three.seats[1], three.seats[2]
        assert set(leader.demands) == set(JOBS)
        assert leader.demands["a"].mean_w == 400.0
        leader.give({"a": Share(1.5, 300.0)})
        leader.order(keep(g=200.0, h=210.0, z=90.0), three.job_of)
        assert await three.answered() == []
        await leader.carry_out(three.gpus.set)  # of the GPU without a job
        assert three.gpus.limits_w == {"z": 90.0}
        await second.carry_out(three.gpus.set)
        assert three.gpus.limits_w == {"z": 90.0, "g": 200.0, "h": 210.0}
        assert second.share("a") == Share(1.5, 300.0)
        assert {one for _, out in await three.answered() for one in out.taken} == {"g", "h", "z"}
        await second.carry_out(three.gpus.set)
        assert max(three.gpus.newest.values()) == 2, "not again"

    asyncio.run(go())


def test_an_order_that_was_taken_before_the_job_moved_comes_too_late() -> None:
    async def go() -> None:
        three, hold = Three(), asyncio.Event()
        await three.begin()
        leader, second, third = three.seats.values()
        late = LimitOutcome()

        async def late_set(order: LimitOrder, generation: int) -> LimitOutcome:
            nonlocal late
            await hold.wait()
            late = await three.gpus.set(order, generation)
            return late

        leader.order(keep(g=300.0), three.job_of)
        await leader.exchange()
        slow = asyncio.create_task(second.carry_out(late_set))
        await asyncio.sleep(0.05)
        three.give(a=3)
        leader.order(keep(g=200.0), three.job_of)
        await leader.exchange()
        await third.carry_out(three.gpus.set)
        assert [sorted(out.taken) for _, out in await three.answered()] == [["g"]]
        hold.set()
        await slow
        assert three.gpus.limits_w == {"g": 200.0}
        assert late.refused == {"g": "older"}

    asyncio.run(go())


def test_no_order_is_left_for_a_gpu_that_has_another_job() -> None:
    async def go() -> None:
        three = Three()
        await three.begin()
        leader, second = three.seats[1], three.seats[2]
        leader.order(keep(g=300.0, h=250.0), three.job_of)
        await leader.exchange()
        del three.job_of["g"]  # the leader's own now
        leader.narrow(three.job_of)
        leader.order(keep(g=100.0), three.job_of)
        await leader.carry_out(three.gpus.set)
        assert three.gpus.limits_w == {"g": 100.0}
        await second.carry_out(three.gpus.set)
        assert three.gpus.limits_w == {"g": 100.0, "h": 250.0}

    asyncio.run(go())


def test_a_leader_knows_which_orders_the_one_before_has_left() -> None:
    async def go() -> None:
        three = Three()
        await three.begin()
        three.seats[1].order(keep(g=300.0), three.job_of)
        await three.seats[1].exchange()
        for number in (2, 3):
            gone = replace(group(number, three.holders, leader=3), live=frozenset((2, 3)))
            three.claims[number].follow(gone)
        third = three.seats[3]
        await third.exchange((NO_JOB, *JOBS))
        assert (third.unsettled, set(third.pending)) == ({"g"}, {"a"})
        assert set(third.demands) == set(JOBS)
        third.order(keep(h=100.0), three.job_of)
        await third.exchange()
        await three.seats[2].carry_out(three.gpus.set)
        assert three.gpus.limits_w == {"g": 300.0, "h": 100.0}, "both are part of the newer order"

    asyncio.run(go())
