"""Controllers that share the jobs of a real PostgreSQL store: who holds which, and in which epoch.

The judge is outside the code: it knows from the steps alone which controllers live, and reads the
tables itself.
"""

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from databases import Database
from postgres_server import PASSWORD, Postgres

from joulecut_controller.election.claim_table import ClaimTable
from joulecut_controller.election.claims import Claims, Wish
from joulecut_controller.election.leader_lock import Timing
from joulecut_controller.election.postgres_lock import PostgresLock
from joulecut_controller.election.power_table import PowerTable
from joulecut_controller.store import postgres
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.store.postgres import LOCK_KEY
from joulecut_controller.store.postgres_url import parse_postgres_url
from joulecut_wire.errors import Unavailable

NUMBERS = itertools.count(1)
LIMIT_S = 60.0
ROUNDS = 4  # of checks, until jobs that are given, freed or new have a holder


@dataclass
class Member:
    """One controller: its session, and its claims where it has a term."""

    lock: PostgresLock
    store: DatabaseStore
    claims: Claims | None = None
    barred: frozenset[str] = frozenset()
    most: int | None = None

    def check(self, jobs: frozenset[str]) -> None:
        """What a process does once a second."""
        table = ClaimTable(self.store)
        if self.claims is None:
            leads = self.lock.acquire()
            group = table.share(self.lock.number)
            if leads or (group.among(group.wanted) and self.lock.join()):
                group = table.share(self.lock.number, Wish(above=0))
                self.store.fence(group.epoch, group.number)
                self.claims = Claims(group.epoch, group)
            return
        assert self.lock.check()
        wish = Wish(jobs, frozenset(self.claims.given), self.barred, most=self.most)
        group = table.share(self.lock.number, wish)
        self.claims.follow(group)
        self.claims.given |= set(self.claims.leaving)

    @property
    def number(self) -> int:
        return self.claims.group.number if self.claims and self.claims.group else 0

    @property
    def jobs(self) -> set[str]:
        claims = self.claims
        if claims is None or claims.group is None:
            return set()
        return {job for job in claims.group.holders if claims.has(job)}


@dataclass
class Group:
    database: Database
    jobs: frozenset[str]
    members: list[Member] = field(default_factory=list)

    def join(self, user: str = "joulecut") -> Member:
        url = self.database.url.replace("//joulecut@", f"//{user}@")
        place = parse_postgres_url(url, password_file=self.database.password_file)
        name = f"controller host:{next(NUMBERS)}"
        lock = PostgresLock(place, Timing(0.1, 600.0, 60.0), name)
        self.members.append(Member(lock, self.database.beside()))
        return self.members[-1]

    def kill(self, member: Member) -> None:
        """Its session ends; it has handed nothing over."""
        self.members.remove(member)
        member.lock.release()

    def settle(self, rounds: int = ROUNDS) -> None:
        for _ in range(rounds):
            for member in self.members:
                member.check(self.jobs)
                self.judge()

    def judge(self) -> None:
        """No job is commanded by two, and each by the holder in the database."""
        held = Counter(job for member in self.members for job in member.jobs)
        assert all(count == 1 for count in held.values()), held
        rows = {str(job): holder for job, holder in self.database.run("SELECT * FROM claim")}
        for member in self.members:
            for job in member.jobs:
                assert rows[job] == member.number

    @property
    def shares(self) -> list[int]:
        return sorted((len(member.jobs) for member in self.members), reverse=True)

    @property
    def epoch(self) -> int:
        return int(str(self.database.run("SELECT value FROM counter WHERE name = 'epoch'")[0][0]))


@pytest.fixture
def group(server: Postgres) -> Iterator[Group]:
    database = Database(server.make(f"claims {next(NUMBERS)}"), server.secret)
    database.open()
    made = Group(database, frozenset(f"job {n}" for n in range(7)))
    yield made
    for member in list(made.members):
        made.kill(member)
    database.close()


def test_jobs_are_divided_and_a_lost_share_is_taken_in_a_new_epoch(group: Group) -> None:
    first = group.join()
    group.settle()
    assert group.shares == [7]
    begun = group.epoch
    second = group.join()
    group.settle()
    assert group.shares == [4, 3]
    assert group.epoch > begun
    kept, begun = second.jobs, group.epoch
    group.kill(first)
    group.settle()
    assert group.shares == [7]
    assert second.jobs > kept
    assert group.epoch == begun + 1, "one taking, one epoch"
    assert second.claims
    assert second.claims.epoch == group.epoch
    assert second.claims.leads
    group.join(), group.join()
    group.settle()
    assert group.shares == [3, 2, 2]


def test_each_controller_may_have_a_role_of_its_own(group: Group) -> None:
    """As docs/scale.md says."""
    owner, users = f"owner {next(NUMBERS)}", [f"user {next(NUMBERS)}" for _ in "ab"]
    group.database.run(
        f'CREATE ROLE "{owner}"', f'GRANT ALL ON ALL TABLES IN SCHEMA public TO "{owner}"'
    )
    password = PASSWORD.replace("'", "''")
    for user in users:
        group.database.run(
            f'CREATE ROLE "{user}" LOGIN PASSWORD \'{password}\' IN ROLE "{owner}"',
            f'ALTER ROLE "{user}" SET role "{owner}"',
        )
    _, second = (group.join(user.replace(" ", "%20")) for user in users)
    group.settle()
    assert group.shares == [4, 3]
    assert second.lock.holder.startswith("controller host:"), "it is named to other roles"


def test_a_controller_whose_session_ended_writes_nothing(group: Group) -> None:
    first, second = group.join(), group.join()
    group.settle()
    begun_s = time.monotonic()
    first.store.keep_learnt("name", "text")
    group.kill(first)
    ended = "has ended this controller's session"
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
    while group.database.run(held) != [[1]]:  # the server notices it in a moment
        assert time.monotonic() < begun_s + LIMIT_S
    with pytest.raises(Unavailable, match=ended):
        first.store.keep_learnt("name", "other")
    with pytest.raises(Unavailable, match=ended):
        first.store.next_generation()
    group.settle()
    assert second.store.learnt("name") == "text"
    second.store.keep_learnt("name", "other")


def test_each_shows_its_part_to_the_others(group: Group) -> None:
    first, second = group.join(), group.join()
    group.settle()
    for member, shown, expected in (
        (first, "one", []),
        (second, "two", ["one"]),
        (first, "three", ["two"]),
        (second, "four", ["three"]),
    ):
        parts = ClaimTable(member.store).show(member.number, shown)
        assert [content for _, content in parts] == expected
        assert all(0.0 <= age_s < LIMIT_S for age_s, _ in parts)
    group.kill(first)
    group.settle()
    begun_s = time.monotonic()
    while ClaimTable(second.store).show(second.number, "five"):
        assert time.monotonic() < begun_s + LIMIT_S, "of a controller that is gone nothing is shown"


def test_rows_of_a_power_budget_pass_in_order(group: Group) -> None:
    first, second = group.join(), group.join()
    group.settle()
    ours, theirs = PowerTable(first.store), PowerTable(second.store)
    assert ours.exchange(0, {}) is None
    (row,) = theirs.exchange(0, {"job 1": {"party": "a"}}) or ()
    assert (row.job, row.party, row.number) == ("job 1", "a", 0)
    ordered = {"number": 1, "ordered": "b"}
    rows = ours.exchange(0, {"job 1": ordered, "": {**ordered, "done": 1}}) or ()
    assert {(one.job, one.party, one.number) for one in rows} == {("job 1", "a", 1), ("", "", 1)}
    seen = max(one.changed for one in rows)
    assert ours.exchange(seen, {}) == []
    (taken,), generation = theirs.take(("job 1",))
    assert (taken.ordered, taken.number, taken.done) == ("b", 1, 0)
    assert second.store.next_generation() == generation + 1
    theirs.exchange(seen, {"job 1": {"done": 1}})
    (row,) = ours.exchange(seen, {}) or ()
    assert (row.job, row.done) == ("job 1", 1)
    assert ours.exchange(row.changed, {}, ("", "job 1")) is None


def test_two_that_take_at_the_same_moment_take_no_job_twice(group: Group) -> None:
    for _ in range(3):
        leader = group.join()
        group.settle()
        group.kill(leader)  # its jobs are free
        pair = [group.join(), group.join()]
        with ThreadPoolExecutor(2) as threads:
            for _ in range(ROUNDS):
                list(threads.map(lambda member: member.check(group.jobs), pair))
        group.judge()
        group.settle()
        assert group.shares == [4, 3]
        for member in pair:
            group.kill(member)


def test_a_job_leaves_a_controller_that_does_not_reach_its_agents(group: Group) -> None:
    first, second = group.join(), group.join()
    group.settle()
    lost = first.barred = frozenset(sorted(first.jobs)[:2])
    group.settle()
    assert lost <= second.jobs
    assert group.shares == [4, 3], "others moved the other way"
    held = second.jobs
    second.barred = group.jobs  # it reaches none: the first has what it may
    group.settle()
    assert second.jobs == lost, "none is left to a controller that reaches as little"
    assert first.jobs == group.jobs - lost
    group.kill(first)
    group.join()
    group.settle()
    assert (second.jobs, held > lost) == (set(), True), "of one that is gone no bar is left"


def test_what_none_can_keep_has_no_controller_until_one_can(group: Group) -> None:
    first, second = group.join(), group.join()
    group.settle()
    first.most = 2
    group.settle()
    assert (len(first.jobs), len(second.jobs)) == (2, 5)
    second.most = 3
    group.settle()
    assert group.shares == [3, 2]
    left = group.database.run("SELECT count(*) FROM claim WHERE holder = 0")
    assert left == [[2]]
    group.kill(second)  # what it can keep goes with it
    group.settle()
    assert group.shares == [2]
    group.join()
    first.most = None
    group.settle()
    assert group.shares == [4, 3]


def test_a_leader_that_sees_less_ends_no_job_of_another(group: Group) -> None:
    first, second = group.join(), group.join()
    group.settle()
    seen, kept = frozenset(first.jobs), second.jobs
    for _ in range(ROUNDS):
        first.check(seen)
        second.check(group.jobs)
    assert second.jobs == kept
    second.check(seen)
    assert not second.jobs, "with its own word they end"
    group.jobs = seen
    group.settle()
    assert group.shares == [2, 2]
    group.kill(second)
    group.jobs = frozenset(("job 0",))
    group.settle()
    assert group.shares == [1], "and those of one that is gone with the leader's"


def test_under_a_leader_of_a_version_before_nothing_is_claimed(group: Group) -> None:
    member = group.join()
    group.settle()
    place = parse_postgres_url(group.database.url, password_file=group.database.password_file)
    old = postgres.session(place, timeout_s=60.0, name="old")
    group.kill(member)
    old.exec_driver_sql(f"SELECT pg_advisory_lock({LOCK_KEY})")
    group.join()
    group.settle()
    assert group.shares == [0]
    old.close()
    old.engine.dispose()
    group.settle()
    assert group.shares == [7]


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))]
)
def test_whatever_happens_no_job_has_two_controllers(group: Group, seed: int) -> None:
    draw = random.Random(seed)
    group.join()
    for _ in range(40):
        what = draw.choice(("check", "check", "check", "join", "kill", "jobs"))
        if what == "join" and len(group.members) < 5:
            group.join()
        elif what == "kill" and len(group.members) > 1:
            before = group.epoch
            group.kill(draw.choice(group.members))
            assert group.epoch >= before
        elif what == "jobs":
            group.jobs = frozenset(f"job {n}" for n in draw.sample(range(9), draw.randint(0, 9)))
        else:
            draw.choice(group.members).check(group.jobs)
        group.judge()
    group.settle(2 * ROUNDS)
    held = set().union(*(member.jobs for member in group.members))
    assert held == group.jobs
