"""Controllers that share the jobs: what each commands, and in which epoch it says so."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.election.capacity import WINDOW_S, Capacity
from joulecut_controller.election.claims import Claims, Group, divided, home
from joulecut_controller.election.fenced_fleet import UNKNOWN_S, FencedFleet
from joulecut_controller.ports import FleetState
from joulecut_controller.view import NodeView
from joulecut_wire.messages import Command, Result

HOLDERS = st.dictionaries(st.text("abcdefgh", min_size=1), st.integers(0, 8), max_size=20)
LIVE = st.sets(st.integers(1, 8), min_size=1)


@given(HOLDERS, LIVE)
def test_shares_are_even_and_moves_are_few(holders: dict[str, int], live: set[int]) -> None:
    wanted = divided(holders, live)
    assert wanted.keys() == holders.keys()
    shares = [sum(one == number for one in wanted.values()) for number in live]
    assert max(shares) - min(shares) <= 1
    held = {job: number for job, number in holders.items() if number in live}
    moved = [job for job in held if wanted[job] != held[job]]
    most = math.ceil(len(holders) / len(live))
    over = [max(0, sum(one == number for one in held.values()) - most) for number in live]
    # Besides what is above an even share, at most one of each moves: to one with two fewer.
    assert sum(over) <= len(moved) <= sum(over) + len(live)
    assert divided(wanted, live) == wanted, "what has moved stays"


@given(HOLDERS, LIVE)
def test_a_job_of_a_living_controller_stays_where_shares_differ_by_one(
    holders: dict[str, int], live: set[int]
) -> None:
    wanted = divided(holders, live)
    lost = min(live)
    if others := live - {lost}:
        after = divided(wanted, others)
        assert all(after[job] == one for job, one in wanted.items() if one in others), "a takeover"
    assert divided(holders, ()) == dict.fromkeys(holders, 0)


BARRED = st.sets(st.tuples(st.integers(1, 8), st.text("abcdefgh", min_size=1)), max_size=60)


@given(HOLDERS, LIVE, BARRED)
def test_a_barred_controller_has_a_job_only_where_all_are(
    holders: dict[str, int], live: set[int], barred: set[tuple[int, str]]
) -> None:
    wanted = divided(holders, live, barred)
    assert wanted.keys() == holders.keys()
    may = {job: {one for one in live if (one, job) not in barred} or live for job in holders}
    assert all(number in may[job] for job, number in wanted.items())
    shares = {one: [job for job, number in wanted.items() if number == one] for one in live}
    for job, number in wanted.items():
        fewest = min(len(shares[one]) for one in may[job])
        assert len(shares[number]) <= fewest + 1, "no single move makes shares more even"
    assert divided(wanted, live, barred) == wanted, "what has moved stays"


@given(HOLDERS, LIVE, st.dictionaries(st.integers(1, 8), st.integers(1, 4)))
def test_no_controller_is_to_have_more_than_it_can_keep(
    holders: dict[str, int], live: set[int], most: dict[int, int]
) -> None:
    wanted = divided(holders, live, most=most)
    assert wanted.keys() == holders.keys()
    shares = {one: sum(number == one for number in wanted.values()) for one in live}
    assert all(count <= most.get(one, count) for one, count in shares.items())
    left = sum(number == 0 for number in wanted.values())
    assert not left or all(count == most.get(one) for one, count in shares.items()), "all are full"
    assert divided(wanted, live, most=most) == wanted, "what has moved stays"


def test_a_controller_whose_event_loop_is_late_keeps_fewer_jobs_until_it_is_on_time() -> None:
    capacity, now_s = Capacity(), 0.0

    def ran(late_s: float, jobs: int, windows: int) -> int | None:
        nonlocal now_s
        end_s = now_s + windows * WINDOW_S
        while now_s < end_s:
            now_s += 0.1 + late_s
            capacity.run_late(late_s, jobs, now_s)
        return capacity.most

    assert ran(0.05, 20, 3) is None
    assert ran(0.4, 20, 3) is None, "below LATE_S"
    now_s += WINDOW_S
    capacity.run_late(WINDOW_S, 20, now_s)
    assert ran(0.05, 20, 3) is None, "a pause"
    assert ran(2.0, 20, 4) == 10
    assert (ran(0.05, 10, 6) or 0) > 10
    assert ran(2.0, 1, 4) == 1, "one is always tried"


@given(st.sets(st.text("abc:", min_size=1), max_size=30), LIVE)
def test_every_agent_has_one_home_and_few_move(agents: set[str], live: set[int]) -> None:
    jobs, lost = {str(number): number for number in live}, min(live)
    of = {number: Group(number, 1, lost, frozenset(live), jobs, jobs) for number in live}
    homes = [one for group in of.values() for one in group.at_home(agents)]
    assert sorted(homes) == sorted(agents)
    for one in agents:
        before = home(one, frozenset(live))
        if others := live - {before}:
            barred = replace(of[before], barred=frozenset(((before, one),)))
            assert list(barred.at_home((one,))) == [], "another reaches it"
            assert all(home(one, frozenset(live - {gone})) == before for gone in others), (
                "only agents of one that is gone move"
            )


@dataclass
class Agent:
    """An agent that has seen an epoch, and refuses older ones."""

    epoch: int
    sent: list[int] = field(default_factory=list)

    def observe(self, now_s: float, addresses: object = ()) -> FleetState:
        return FleetState((NodeView("n1:1", "n1", True, epoch_seen=self.epoch),), ())

    def take_reports(self) -> tuple[()]:
        return ()

    def _take(self, epoch: int) -> tuple[Result, ...]:
        self.sent.append(epoch)
        if epoch < self.epoch:
            return (Result("GPU-a", False, f"epoch {epoch} is older than {self.epoch}"),)
        self.epoch = epoch
        return (Result("GPU-a", True, ""),)

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]:
        return self._take(command.epoch)

    async def renew(self, address: str, epoch: int, *_: object) -> tuple[Result, ...]:
        return self._take(epoch)

    async def clear(
        self, address: str, epoch: int, job: str, uuids: Sequence[str], reason: str
    ) -> tuple[Result, ...]:
        return self._take(epoch)


def _fleet(agent: Agent, claims: Claims, next_epoch: int, proven: list[bool]) -> FencedFleet:
    async def epoch_above(epoch: int) -> bool:
        """The next check shows this epoch."""
        assert claims.group is not None
        claims.follow(replace(claims.group, epoch=next_epoch))
        return next_epoch > epoch and proven[-1]

    return FencedFleet(
        agent, lambda: proven[0], claims.first, claims=claims, epoch_above=epoch_above
    )


GROUP = Group(1, 5, 1, frozenset({1, 2}), {"a": 1, "b": 2}, {"a": 1, "b": 2})
COMMAND = Command(epoch=5, job="a", generation=1, ttl_s=1.0, settings=(), reason="")


def test_a_command_that_is_older_than_the_group_is_sent_once_more() -> None:
    for next_epoch, sent in ((5, [5]), (6, [5, 6]), (7, [5, 7])):
        agent = Agent(epoch=6)
        fleet = _fleet(agent, Claims(5, GROUP), next_epoch, [True])
        [result] = asyncio.run(fleet.renew("n1:1", 5, "a", 1, 1.0))
        assert (agent.sent, result.accepted) == (sent, next_epoch >= 6)
    # Afterwards every command carries the epoch of the group.
    agent.sent.clear()
    asyncio.run(fleet.apply("n1:1", COMMAND))
    asyncio.run(fleet.clear("n1:1", 5, "a", [], "because"))
    assert agent.sent == [7, 7]


def test_without_a_proof_nothing_is_sent() -> None:
    for proven, sent in (([True, False], [5]), ([False, False], [])):
        agent = Agent(epoch=6)
        fleet = _fleet(agent, Claims(5, GROUP), 6, proven)
        [result] = asyncio.run(fleet.apply("n1:1", COMMAND))
        assert (agent.sent, result.accepted) == (sent, False)
    asyncio.run(fleet.renew("n1:1", 5, "a", 1, 1.0))
    asyncio.run(fleet.clear("n1:1", 5, "a", [], "because"))
    assert not agent.sent


def test_an_epoch_that_no_check_confirms_is_of_another_group() -> None:
    agent, claims = Agent(epoch=6), Claims(5, GROUP)
    fleet = _fleet(agent, claims, 5, [True])

    def judged(now_s: float) -> tuple[int, bool]:
        (node,) = fleet.observe(now_s).nodes
        return node.other_term, bool(node.quarantine)

    assert judged(100.0) == (0, False), "a check may show it as the group's"
    agent.epoch = 7
    assert judged(100.0 + UNKNOWN_S) == (7, True), "another number is no excuse"
    claims.follow(replace(GROUP, epoch=7))
    assert judged(200.0) == (0, False)
    agent.epoch = 8
    assert judged(300.0) == (0, False)


def test_a_job_that_was_handed_over_is_not_commanded_from_that_moment_on() -> None:
    claims = Claims(5, GROUP)
    assert (claims.has("a"), claims.has("b"), claims.elsewhere("b")) == (True, False, True)
    moving = replace(GROUP, wanted={"a": 2, "b": 2})
    claims.follow(moving)
    assert (claims.has("a"), set(claims.leaving)) == (True, {"a"})
    claims.given.add("a")
    claims.follow(moving)
    assert (claims.has("a"), claims.elsewhere("a"), set(claims.leaving)) == (False, True, set())
    claims.follow(replace(moving, holders={"a": 2, "b": 2}))
    assert not claims.given
    claims.given.add("a")
    claims.follow(GROUP)
    assert claims.has("a"), "the group wants it here again"
    alone = Claims(5)
    assert (alone.has("z"), alone.leads, alone.orphaned("z")) == (True, True, False)
    assert not alone.elsewhere("z")
