"""Two controllers of one store on a virtual clock: jobs are handed over and taken over, and orders
reach the one that has the job. A table in memory stands in for the database's claims.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest
from enforced import enforcing
from worlds import Controller, World, studied

from joulecut_controller.election.claims import Claims, Group, divided
from joulecut_controller.election.fenced_fleet import FencedFleet
from joulecut_controller.orders import Order
from joulecut_controller.ports import ArrivedReport, FleetState
from joulecut_controller.reconcile.pacing import Pacing
from joulecut_controller.store.database import DatabaseStore
from joulecut_wire.messages import Command, Result

TTL_S = Pacing(interval_s=5.0, watch_s=1.0).ttl_within_s(0.0)  # of a controller as shipped


@dataclass
class Seat:
    """The agents as one controller watches them: every report comes to each."""

    world: World
    reports: list[ArrivedReport] = field(default_factory=list)

    def observe(self, now_s: float, addresses: Collection[str] = ()) -> FleetState:
        return self.world.observe(now_s, addresses)

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        taken, self.reports = tuple(self.reports), []
        return taken

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]:
        return await self.world.apply(address, command)

    async def renew(
        self, address: str, epoch: int, job: str, generation: int, ttl_s: float
    ) -> tuple[Result, ...]:
        return await self.world.renew(address, epoch, job, generation, ttl_s)

    async def clear(
        self, address: str, epoch: int, job: str, uuids: Sequence[str], reason: str
    ) -> tuple[Result, ...]:
        return await self.world.clear(address, epoch, job, uuids, reason)


@dataclass
class Table:
    """The claim of the one job, and who lives, leads and may share."""

    world: World
    store: DatabaseStore
    holder: int = 0
    leader: int = 1
    live: set[int] = field(default_factory=set)
    shared: bool = True
    members: dict[int, tuple[Controller, Claims, Seat]] = field(default_factory=dict)

    def group(self, number: int) -> Group:
        holders, live = {self.world.job: self.holder}, frozenset(self.live)
        wanted = divided(holders, live if self.shared else {self.leader})
        return Group(
            number,
            self.store.epoch(),
            self.leader,
            live,
            holders,
            wanted,
            alone=not self.shared,
            holds=len(self.store.records("hold")),
        )

    def join(self, number: int) -> Controller:
        self.live.add(number)
        claims, seat = Claims(self.store.next_epoch(0), self.group(number)), Seat(self.world)

        async def epoch_above(epoch: int) -> bool:
            if number in self.live:  # the database answers no session that it has ended
                claims.follow(self.group(number))
            return claims.epoch > epoch

        fleet = FencedFleet(
            seat, lambda: True, claims.first, claims=claims, epoch_above=epoch_above
        )
        made = Controller(
            self.world, self.store, self.world.policy(), claims=claims, fleet=fleet,
            reports=self.world.take_reports(),
        )  # fmt: skip
        self.members[number] = made, claims, seat
        return made

    def check(self, number: int) -> None:
        """What a reading of the claims does: what is given passes on, and what has no living holder
        is taken in a new epoch.
        """
        controller, claims, _ = self.members[number]
        wanted = self.group(number).wanted[self.world.job]
        if self.world.job in claims.given:
            self.holder = wanted
        if self.holder not in self.live and wanted == number:
            self.store.next_epoch(0)
            self.holder = number
        controller.reconciler.follow(self.group(number))

    def default_s(self, changes: int) -> float:
        """Of iterations at other clocks than the newest, among those after the first `changes`."""
        return sum(
            s for _, s, one in self.world.history[changes:] if one != self.world.clocks_mhz()
        )

    def run(self, seconds: int, *numbers: int) -> None:
        """The controllers `numbers` run; every other one stands still."""

        async def go() -> None:
            for _ in range(seconds):
                self.world.advance(1.0)
                reports = self.world.take_reports()
                for number in numbers:
                    controller, _, seat = self.members[number]
                    seat.reports += reports
                    if number in self.live:
                        self.check(number)
                    await controller.reconciler.beat()
                    controller.boards.append(await controller.reconciler.run_pass())
                    await studied()

        asyncio.run(go())


@pytest.fixture
def table(store: DatabaseStore) -> Table:
    """Controller 1 goes on with a plan that is held; controller 2 stands beside it."""
    world = World()
    enforcing(world, store)
    made = Table(world, store, holder=1)
    made.join(1)
    made.join(2)
    made.run(3, 1, 2)
    assert made.members[1][0].boards[-1].jobs
    assert not made.members[2][0].boards[-1].jobs
    assert not world.at_default()
    return made


def test_a_job_is_handed_over_within_a_lease(table: Table) -> None:
    world, clocks = table.world, table.world.clocks_mhz()
    changes, begun = len(world.history), table.store.epoch()
    table.leader, table.shared = 2, False  # the second has to hold all
    table.run(20, 1, 2)
    assert table.holder == 2
    assert world.clocks_mhz() == clocks
    assert table.default_s(changes) < TTL_S
    first, second = table.members[1][0].boards[-1], table.members[2][0].boards[-1]
    assert (len(first.jobs), len(second.jobs)) == (0, 1)
    leases = [lease for agent in world.agents.values() for lease, _ in agent.leases.values()]
    assert {lease.epoch for lease in leases} == {begun}, "its holder stopped first"
    # Both live on; a command of either carries the epoch of the group.
    table.leader = 1
    changes = len(world.history)
    table.run(20, 1, 2)
    assert (table.holder, world.clocks_mhz()) == (1, clocks)
    assert table.default_s(changes) < TTL_S


def test_a_controller_that_is_gone_commands_nothing_that_another_has_taken(table: Table) -> None:
    world, clocks = table.world, table.world.clocks_mhz()
    changes = len(world.history)
    table.live.discard(1)  # frozen: its session has ended, and it does not know
    table.leader = 2
    table.run(5, 2)
    assert (table.holder, world.clocks_mhz()) == (2, clocks)
    assert table.default_s(changes) < TTL_S
    changes = len(world.history)
    table.run(20, 1, 2)  # it wakes, and nothing but the agents stops it
    assert world.clocks_mhz() == clocks
    assert all(one == clocks for _, _, one in world.history[changes:])
    stale = [call for call in world.calls if call.epoch < table.store.epoch()]
    assert any(call.op == "renew" for call in stale), "it tried"
    leases = [lease for agent in world.agents.values() for lease, _ in agent.leases.values()]
    assert {lease.epoch for lease in leases} == {table.store.epoch()}


def test_an_order_to_the_other_controller_releases_the_job(table: Table) -> None:
    second, name = table.members[2][0], table.world.job
    done = asyncio.run(second.reconciler.commands.execute(Order("pause", job=name, by="alice")))
    assert (done.refused, done.jobs) == ("", (name,))
    table.run(3, 1, 2)
    assert table.world.at_default()
    unknown = asyncio.run(second.reconciler.commands.execute(Order("pause", job="other")))
    assert unknown.refused == "unknown"
    done = asyncio.run(second.reconciler.commands.execute(Order("resume", job=name, by="alice")))
    assert not done.refused
    table.run(120, 1, 2)
    assert not table.world.at_default()
    assert asyncio.run(second.reconciler.commands.execute(Order("adopt", node="n1"))).refused
