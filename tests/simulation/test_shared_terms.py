"""Two controllers of one store on a virtual clock: jobs are handed over and taken over, by reach as
well, and orders reach the one that has the job. A table in memory stands in for the database's
claims.
"""

import asyncio
import math
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from statistics import fmean

import pytest
from sharing import OVER_RATIO, Sharing, at_default, drawn
from sqlalchemy import Connection, select
from worlds import Controller, few_points, studied

from joulecut_controller.election.claims import Claims, Group, divided
from joulecut_controller.election.fenced_fleet import FencedFleet
from joulecut_controller.election.power_table import PowerTable
from joulecut_controller.election.reach import LATE_S, LOST_S
from joulecut_controller.orders import Done, Order
from joulecut_controller.ports import ArrivedReport, FleetState
from joulecut_controller.power.limits import RAMP_S
from joulecut_controller.reconcile.pacing import Pacing
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.store.schema import BASELINES, POWER
from joulecut_controller.view import BUDGET_JOB
from joulecut_wire.errors import Unavailable
from joulecut_wire.messages import Command, Result

SILENT = (Result("", accepted=False, reason="no answer"),)
MEAN_S = 20  # over which the controller measures power
TTL_S = Pacing(interval_s=5.0, watch_s=1.0).ttl_within_s(0.0)  # of a controller as shipped


@dataclass
class Seat:
    """The agents as one controller watches them: every report comes to each. Those at `lost`
    addresses it does not reach, and without a stream those that are not `needed` (None: all are).
    `told` are the jobs that its commands reached agents for.
    """

    world: Sharing
    reports: list[ArrivedReport] = field(default_factory=list)
    lost: frozenset[str] = frozenset()
    needed: frozenset[str] | None = None
    told: list[str] = field(default_factory=list)

    def observe(self, now_s: float, addresses: Collection[str] = ()) -> FleetState:
        state = self.world.observe(now_s, addresses)
        return FleetState(
            tuple(replace(one, connected=one.address not in self.lost) for one in state.nodes),
            tuple(
                replace(one, snapshot=None, age_s=math.inf) if one.address in self.lost else one
                for one in state.gpus
            ),
        )

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        known = self.world.agents
        watched = known.keys() if self.needed is None else self.needed
        hidden = {
            uuid
            for address, agent in known.items()
            for uuid in agent.uuids
            if address in self.lost or address not in watched
        }
        taken, self.reports = self.reports, []
        return tuple(one for one in taken if one.report.uuid not in hidden)

    def _reaches(self, address: str, job: str) -> bool:
        if job == BUDGET_JOB:  # a limit of that job's GPUs
            job = next(one.job for one in self.world.worlds if address in one.agents)
        self.told += (job,) if address not in self.lost else ()
        return address not in self.lost

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]:
        if not self._reaches(address, command.job):
            return SILENT
        return await self.world.apply(address, command)

    async def renew(
        self, address: str, epoch: int, job: str, generation: int, ttl_s: float
    ) -> tuple[Result, ...]:
        if not self._reaches(address, job):
            return SILENT
        return await self.world.renew(address, epoch, job, generation, ttl_s)

    async def clear(
        self, address: str, epoch: int, job: str, uuids: Sequence[str], reason: str
    ) -> tuple[Result, ...]:
        if not self._reaches(address, job):
            return SILENT
        return await self.world.clear(address, epoch, job, uuids, reason)


@dataclass
class _Session:
    """The store for one controller: whose session has ended writes nothing."""

    split: "Split"
    number: int

    def writing(self, *, beside_others: bool = False) -> AbstractContextManager[Connection]:
        if self.number not in self.split.live:
            raise Unavailable("the session has ended")
        return self.split.store.writing(beside_others=beside_others)

    def reading(self) -> AbstractContextManager[Connection]:
        return self.split.store.reading()


@dataclass
class Split:
    """Two controllers, and two jobs on agents of their own: every reading of the claims and every
    command, with who may send it.
    """

    world: Sharing
    store: DatabaseStore
    holders: dict[str, int]
    live: set[int] = field(default_factory=lambda: {1, 2})
    barred: set[tuple[int, str]] = field(default_factory=set)
    reporting: dict[int, frozenset[tuple[str, str]]] = field(default_factory=dict)
    budget_w: float | None = None
    kept_from: set[tuple[int, str]] = field(default_factory=set)  # jobs that one is not to have
    late: set[int] = field(default_factory=set)  # controllers whose event loop runs late
    frozen: set[int] = field(default_factory=set)  # they stand still
    unaware: set[int] = field(default_factory=set)  # of the end of their session
    members: dict[int, tuple[Controller, Claims, Seat]] = field(default_factory=dict)
    stays_w: list[float] = field(default_factory=list)  # limits that outlive leases, every second
    drawn_w: list[float] = field(default_factory=list)
    default_s: dict[str, int] = field(default_factory=dict)  # longest, of each job
    masters: list[str] = field(default_factory=list)  # commands of any but the holder

    def __post_init__(self) -> None:
        policy = replace(self.world.policy(0.0, 0.05), power_budget_w=self.budget_w)
        for number in sorted(self.live):
            claims = Claims(self.store.next_epoch(0), self.group(number))

            async def epoch_above(
                epoch: int, number: int = number, claims: Claims = claims
            ) -> bool:
                if number in self.live:
                    claims.follow(self.group(number))
                return claims.epoch > epoch

            seat = Seat(self.world)
            fleet = FencedFleet(
                seat,
                lambda number=number: number in self.live | self.unaware,
                claims.first,
                claims=claims,
                epoch_above=epoch_above,
            )
            made = Controller(
                self.world, self.store, policy, claims=claims, fleet=fleet,
                power_table=PowerTable(_Session(self, number)),
                **({} if self.budget_w is None else {"frontier": few_points}),
            )  # fmt: skip
            self.members[number] = made, claims, seat

    def group(self, number: int) -> Group:
        leader, live = min(self.live), frozenset(self.live)
        wanted = divided(self.holders, live, self.barred | self.kept_from)
        others = (one for of, one in self.reporting.items() if of in live - {number})
        return Group(
            number,
            self.store.epoch(),
            leader,
            live,
            dict(self.holders),
            wanted,
            holds=hash(self.store.records("hold")),
            barred=frozenset(self.barred),
            reporting=frozenset().union(*others),
        )

    def check(self, number: int) -> None:
        controller, claims, _ = self.members[number]
        wish = controller.reconciler.wish()
        self.barred = {one for one in self.barred if one[0] != number and one[0] in self.live}
        self.barred |= {(number, job) for job in wish.barred}
        self.reporting[number] = wish.reporting
        wanted = self.group(number).wanted
        for job, holder in self.holders.items():
            if holder not in self.live and wanted[job] == number:
                self.store.next_epoch(0)
                self.holders[job] = number
            elif job in claims.given and holder == number:
                self.holders[job] = wanted[job]
        controller.reconciler.follow(self.group(number))
        self.members[number][2].needed = controller.reconciler.agents()

    def run(self, seconds: int) -> None:
        at_default = {world.job: 0 for world in self.world.worlds}
        self.default_s = dict(at_default)

        async def go() -> None:
            for _ in range(seconds):
                self.world.advance(1.0)
                reports = self.world.take_reports()
                for number, (controller, _, seat) in self.members.items():
                    seat.reports += reports
                    if number in self.frozen:
                        continue
                    if number in self.live:
                        self.check(number)
                    before = dict(self.holders)
                    if number in self.late:
                        controller.reconciler.run_late(LATE_S)
                    await controller.reconciler.beat_all()
                    controller.boards.append(await controller.reconciler.run_pass())
                    await studied()
                    self.masters += [one for one in seat.told if before.get(one) != number]
                    seat.told.clear()
                self.stays_w.append(sum(world.stays_w() for world in self.world.worlds))
                self.drawn_w.append(sum(world.power_w() for world in self.world.worlds))
                for world in self.world.worlds:
                    count = at_default[world.job] + 1 if world.at_default() else 0
                    at_default[world.job] = count
                    self.default_s[world.job] = max(self.default_s[world.job], count)

        asyncio.run(go())

    def run_until_lowered(self, seconds: int) -> None:
        """At most so long, until every job has clocks of a plan."""
        for _ in range(seconds):
            if any(world.at_default() for world in self.world.worlds):
                self.run(1)

    def cut(self, number: int, *groups: int) -> None:
        """The controller reaches no agent of these jobs from now on."""
        agents = (self.world.worlds[group].agents for group in groups)
        self.members[number][2].lost = frozenset(one for group in agents for one in group)


def test_a_controller_whose_loop_is_late_judges_no_agent(store: DatabaseStore) -> None:
    split = Split(drawn(0, 2, shapes=((2, 6),)), store, {"job-0": 1, "job-1": 2})
    split.late = {1}
    split.cut(1, 0)
    split.run(30)
    assert split.holders["job-0"] == 1
    assert not split.barred
    split.late.clear()
    split.run(round(LOST_S) + 10)
    assert split.holders["job-0"] == 2


def test_a_job_of_a_living_controller_moves_after_its_first_baseline(store: DatabaseStore) -> None:
    """Controllers that come and go would otherwise keep it at default clocks for ever."""
    jobs = {"job-0": 1, "job-1": 1}
    split = Split(drawn(0, 2, shapes=((2, 6),)), store, dict(jobs))
    split.kept_from = {(2, "job-0"), (2, "job-1")}
    split.run(10)
    split.kept_from.clear()  # controller 2 joins
    split.run(3)
    assert split.holders == jobs
    while split.holders == jobs:
        split.run(1)
        assert len(split.drawn_w) < 90
    with store.reading() as connection:
        measured = set(connection.execute(select(BASELINES.c.job)).scalars())
    assert {job for job, holder in split.holders.items() if holder == 2} <= measured
    split.run(20)
    assert max(split.default_s.values()) < TTL_S, "both hold clocks"
    assert not split.masters


@pytest.fixture
def split(store: DatabaseStore) -> Split:
    made = Split(drawn(0, 2, shapes=((2, 6),)), store, {"job-0": 1, "job-1": 2})
    made.run(45)
    assert not any(world.at_default() for world in made.world.worlds)
    return made


def epochs(split: Split, number: int) -> set[int]:
    """Of the leases of a job."""
    agents = split.world.worlds[number].agents.values()
    return {lease.epoch for agent in agents for lease, _ in agent.leases.values()}


def test_a_job_is_handed_over_within_a_lease_and_orders_reach_it_by_either(split: Split) -> None:
    world, begun = split.world.worlds[0], epochs(split, 0)
    split.kept_from = {(1, "job-0")}
    split.run(20)
    assert split.holders == {"job-0": 2, "job-1": 1}, "the shares stay even"
    assert not world.at_default()
    assert max(split.default_s.values()) < TTL_S
    assert epochs(split, 0) == begun, "its holder stopped first"
    first = split.members[1][0]
    assert [job.view.policy.name for job in first.boards[-1].jobs] == ["job-1"]

    def obeyed(op: str, **words: str) -> Done:
        return asyncio.run(first.reconciler.commands.execute(Order(op, by="alice", **words)))

    done = obeyed("pause", job="job-0")
    assert (done.refused, done.jobs) == ("", ("job-0",))
    split.run(3)
    assert world.at_default()
    assert obeyed("pause", job="other").refused == "unknown"
    assert not obeyed("resume", job="job-0").refused
    split.run_until_lowered(60)
    assert not world.at_default()
    assert obeyed("adopt", node="n1").refused, "by the leader alone"
    assert not split.masters


def test_a_controller_that_is_gone_commands_nothing_that_another_has_taken(split: Split) -> None:
    """Frozen: its session has ended, and it does not know."""
    world = split.world.worlds[0]
    split.live, split.frozen, split.unaware = {2}, {1}, {1}
    split.run(10)
    assert set(split.holders.values()) == {2}
    assert not world.at_default()
    assert split.default_s["job-0"] < TTL_S
    split.frozen, before = set(), len(world.history)
    split.run(20)  # it wakes, and nothing but the agents stops it
    assert not world.at_default()
    clocks = {tuple(one.values()) for _, _, one in world.history[before:]}
    assert (world.sku.clock_max_mhz,) * world.stages not in clocks
    newest = split.store.epoch()
    assert any(call.op == "renew" for call in world.calls if call.epoch < newest), "it tried"
    assert epochs(split, 0) == {newest}


def test_a_job_whose_row_was_gone_has_one_master_when_it_is_back(split: Split) -> None:
    del split.holders["job-0"]
    split.run(3)
    split.masters.clear()
    split.run(5)
    assert not split.masters, "its holder commands it no more"
    split.holders["job-0"] = 2
    split.run(5)
    split.run_until_lowered(35)
    assert not any(world.at_default() for world in split.world.worlds)
    assert not split.masters


def test_a_job_comes_back_where_agents_are_reached_again_and_its_controller_is_gone(
    split: Split,
) -> None:
    split.cut(1, 0)
    split.cut(2, 0)
    split.run(40)
    held = dict(split.holders)
    split.run(20)
    assert split.holders == held, "no controller reaches its agents, so it stays where it is"
    assert split.world.worlds[0].at_default(), "leases run out"
    split.cut(1)  # the one that has the database does not reach the agents, and the other way
    split.live.discard(1)
    split.run(40)
    assert set(split.holders.values()) == {2}
    assert split.world.worlds[0].at_default()
    assert not split.masters
    split.members[1][2].told.append("job-0")
    split.run(1)
    assert split.masters == ["job-0"], "one command more would be found"
    split.masters.clear()
    split.cut(2)
    split.run_until_lowered(40)
    assert not any(world.at_default() for world in split.world.worlds), "found by its reports"
    assert not split.masters


@pytest.fixture
def budgeted(store: DatabaseStore) -> Split:
    """Two controllers under one power budget of three quarters of what both jobs would draw."""
    world = drawn(0, 2, shapes=((2, 6),))
    budget_w = 0.75 * sum(at_default(one).power_w for one in world.worlds)
    made = Split(world, store, {"job-0": 1, "job-1": 2}, budget_w=budget_w)
    made.run(30)
    made.masters.clear()  # before a job is seen the leader sets the limits of its GPUs
    made.run(35)
    return made


def within(split: Split, budget_w: float, seconds: int) -> None:
    """Limits within the budget in each of the last seconds, and used at their end. A job may draw
    more than its own, by what its clocks draw on average: the mean power keeps the budget.
    """
    assert max(split.stays_w[-seconds:]) <= budget_w
    drawn_w = split.drawn_w[-seconds:]
    means_w = [fmean(drawn_w[at : at + MEAN_S]) for at in range(len(drawn_w) - MEAN_S + 1)]
    assert max(means_w) <= budget_w
    assert max(drawn_w) <= (1.0 + 2.0 * OVER_RATIO) * budget_w, "until a prediction is corrected"
    assert min(split.stays_w[-5:]) >= 0.95 * budget_w, "used, not wasted"


def test_one_leader_divides_a_power_budget_and_each_controller_sets_its_limits(
    budgeted: Split,
) -> None:
    budget_w = budgeted.budget_w or 0.0
    within(budgeted, budget_w, 50)
    assert not any(world.at_default() for world in budgeted.world.worlds)
    # The leader is gone: limits stay, and the other goes on with all of them.
    budgeted.live.discard(1)
    budgeted.run(40)
    assert set(budgeted.holders.values()) == {2}
    within(budgeted, budget_w, 40)
    assert not budgeted.masters


@pytest.mark.nightly
def test_no_share_of_a_power_budget_counts_twice_whatever_moves(budgeted: Split) -> None:
    """Jobs change hands, the budget moves, a controller is gone and its job with it."""
    budget_w = budgeted.budget_w or 0.0

    def moves(ratio: float) -> None:
        for controller, _, _ in budgeted.members.values():
            policy = controller.reconciler.policy_read
            newer_w = ratio * budget_w
            controller.source.put(replace(policy, power_budget_w=newer_w, digest=str(ratio)))

    budgeted.kept_from = {(2, "job-1"), (1, "job-0")}  # they change hands
    budgeted.run(30)
    assert budgeted.holders == {"job-0": 2, "job-1": 1}
    within(budgeted, budget_w, 30)
    moves(1.1)
    budgeted.run(40)
    within(budgeted, 1.1 * budget_w, 40)
    moves(0.9)
    budgeted.run(40)
    within(budgeted, 0.9 * budget_w, 20)
    budgeted.live.discard(2)  # not the leader
    budgeted.run(60)
    assert set(budgeted.holders.values()) == {1}
    within(budgeted, 0.9 * budget_w, 60)
    assert not budgeted.masters


@pytest.mark.nightly
def test_limits_of_another_controller_go_back_after_the_budget(budgeted: Split) -> None:
    for controller, _, _ in budgeted.members.values():
        policy = controller.reconciler.policy_read
        controller.source.put(replace(policy, power_budget_w=None, digest="none"))
    budgeted.run(round(RAMP_S) + 10)
    agents = budgeted.world.agents.values()
    assert not any(agent.kept for agent in agents)
    with budgeted.store.reading() as connection:
        assert not connection.execute(select(POWER)).all()
