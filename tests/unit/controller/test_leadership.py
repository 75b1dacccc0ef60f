"""Who may command when: a leader's own clock against the server's, whatever is lost or late."""

import asyncio
import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.config import Config
from joulecut_controller.election.leader_lock import COMMAND_S, Timing, file_lock_timing, timing
from joulecut_controller.election.leadership import Leadership
from joulecut_controller.fleet.grpc_fleet import GrpcFleet
from joulecut_controller.policy.policy import Policy
from joulecut_controller.service_context import ServiceContext
from joulecut_controller.term import lead_term
from joulecut_wire.errors import BadInput, Unavailable

TIMING = Timing(check_s=0.0, hold_s=8.0, timeout_s=1.0)


@dataclass
class Server:
    """One lock, and a clock; a holder silent for `hold_s` loses the lock."""

    now_s: float = 100.0
    holder: "FakeLock | None" = None
    heard_s: float = -math.inf
    history: list[tuple["FakeLock", float]] = field(default_factory=list)

    def sweep(self) -> None:
        if self.holder is not None and self.now_s >= self.heard_s + TIMING.hold_s:
            self.holder.ended = True
            self.holder = None


@dataclass(eq=False)
class FakeLock:
    """Implements `leader_lock.LeaderLock`. A call arrives `late_s` late; its answer may be lost."""

    server: Server
    late_s: float = 0.0
    answer_lost: bool = False
    slow: bool = False  # the server refuses to answer this once, and keeps the session
    ended: bool = False

    @property
    def lost(self) -> bool:
        return self.ended

    @property
    def holder(self) -> str:
        return "the other one"

    def _ask(self) -> None:
        self.server.now_s += self.late_s
        self.server.sweep()
        if self.slow:
            raise Unavailable("store: it answers too slowly")

    def acquire(self) -> bool:
        self.ended = False
        self._ask()
        if self.server.holder not in {None, self}:
            return False
        self.server.holder, self.server.heard_s = self, self.server.now_s
        if self.answer_lost:
            self.ended = True
            raise Unavailable("store: it does not answer")
        return True

    def check(self) -> bool:
        self._ask()
        if self.ended or self.server.holder is not self:
            self.ended = True
            raise Unavailable("store: the session has ended")
        self.server.heard_s = self.server.now_s
        if self.answer_lost:
            self.ended = True
            raise Unavailable("store: it does not answer")
        return True

    def release(self) -> None:
        if self.server.holder is self:
            self.server.holder = None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "check", "pass"]),
        st.integers(0, 1),
        st.floats(0.0, 6.0),  # how long the question takes, or nothing happens
        st.booleans(),  # the answer is lost
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_no_two_may_ever_command_and_the_last_command_is_over_before_the_next_leader(
    steps: list[tuple[str, int, float, bool]],
) -> None:
    server = Server()
    locks = [FakeLock(server), FakeLock(server)]
    leaders = [Leadership(lock, TIMING, lambda: server.now_s) for lock in locks]
    commanded_s = [-math.inf, -math.inf]  # when each may last have sent something

    async def go() -> None:
        for what, who, wait_s, lost in steps:
            locks[who].late_s, locks[who].answer_lost = wait_s, lost
            begun_s = server.now_s
            proven_until = [leader._until_s for leader in leaders]
            if what == "acquire" and not leaders[who].proven:
                if await leaders[who].try_once():
                    other = commanded_s[1 - who]
                    assert server.now_s >= other + COMMAND_S, "its last command is under way"
            elif what == "check" and leaders[who].proven:
                await leaders[who]._check()
            else:
                server.now_s += wait_s
                server.sweep()
            for one in (0, 1):
                # Between steps a leader may have sent something up to the end of its proof.
                end_s = min(server.now_s, max(proven_until[one], leaders[one]._until_s))
                if end_s > begun_s:
                    commanded_s[one] = end_s
            assert not (leaders[0].proven and leaders[1].proven)

    asyncio.run(go())


def test_a_frozen_leader_stops_by_itself_before_its_lock_is_given_away() -> None:
    server = Server()
    leadership = Leadership(FakeLock(server), TIMING, lambda: server.now_s)
    assert asyncio.run(leadership.try_once())
    taken_s = server.now_s
    server.now_s = taken_s + TIMING.lead_s - 0.001
    assert leadership.proven
    server.now_s = taken_s + TIMING.lead_s
    assert not leadership.proven, "time alone must end it"
    server.sweep()
    assert server.holder is not None, "the server waits a little longer"
    other = Leadership(FakeLock(server), TIMING, lambda: server.now_s)
    assert not asyncio.run(other.try_once())
    assert other.waiting == "standby: the other one leads"
    server.now_s = taken_s + TIMING.hold_s
    assert asyncio.run(other.try_once())


def test_one_slow_answer_is_forgiven_and_a_lost_session_is_not() -> None:
    server = Server()
    lock = FakeLock(server)
    leadership = Leadership(lock, TIMING, lambda: server.now_s)

    async def go() -> str:
        assert await leadership.try_once()
        lock.slow = True
        assert await leadership._check() == ""
        assert leadership.proven
        lock.slow = False
        server.now_s += 4.0
        assert await leadership._check() == ""
        server.now_s += 4.0
        assert leadership.proven, "proven anew in between"
        lock.slow = True
        server.now_s += 2.0
        assert not leadership.proven
        return await leadership.hold()

    assert "leadership cannot be proven: store: it answers too slowly" in asyncio.run(go())
    assert not leadership.proven


def test_a_lock_that_another_holds_is_lost_at_once() -> None:
    server = Server()
    lock = FakeLock(server)
    leadership = Leadership(lock, TIMING, lambda: server.now_s)
    assert asyncio.run(leadership.try_once())
    server.holder = FakeLock(server)
    assert "cannot be proven" in asyncio.run(leadership.hold())
    assert not leadership.proven


@dataclass
class SlowSource:
    """A policy file on a disk that answers after some checks of the lock."""

    server: Server

    def newest(self, before: Policy) -> Policy:
        begun_s = self.server.now_s
        end_s = time.monotonic() + 20.0
        while self.server.now_s < begun_s + 2.0 * TIMING.hold_s and time.monotonic() < end_s:
            time.sleep(0.01)
        raise Unavailable("store: the disk is gone")


def test_a_lock_is_checked_while_its_term_begins() -> None:
    server = Server()
    lock = FakeLock(server, late_s=1.0)  # the clock goes on with every check
    leadership = Leadership(lock, replace(TIMING, check_s=0.001), lambda: server.now_s)
    context = ServiceContext(**dict.fromkeys(ServiceContext.__slots__))
    context.config = Config(None, Path("policy"), None, "", ("", 0), interval_s=5.0, ttl_s=None)
    context.fleet, context.leadership = GrpcFleet([], watch_s=1.0), leadership
    context.source, context.policy = SlowSource(server), Policy()

    async def go() -> float:
        context.stopping = asyncio.Event()
        context.stopping.set()
        assert await leadership.try_once()
        begun_s = server.now_s
        await lead_term(context, {})
        return server.now_s - begun_s

    assert asyncio.run(go()) >= 2.0 * TIMING.hold_s
    assert not lock.lost, "it was never silent for so long"
    assert server.holder is None, "it was released"


@given(
    check_s=st.none() | st.floats(0.1, 30.0),
    hold_s=st.none() | st.floats(3.5, 300.0),
    timeout_s=st.none() | st.floats(0.1, 30.0),
    renewal_s=st.floats(0.15, 300.0),
)
def test_whatever_is_taken_keeps_the_relations(
    check_s: float | None, hold_s: float | None, timeout_s: float | None, renewal_s: float
) -> None:
    try:
        chosen = timing(check_s, hold_s, timeout_s, renewal_s=renewal_s)
    except BadInput as error:
        assert error.where in {"store.timeout_s", "leader.hold_s"}
        return
    assert chosen.timeout_s <= renewal_s
    assert chosen.lead_s >= 2 * chosen.check_s + chosen.timeout_s - 1e-9, "two proofs fit"
    assert chosen.lead_s + COMMAND_S <= chosen.hold_s + 1e-9


def test_defaults_fit_every_lease() -> None:
    for renewal_s in (0.17, 0.5, 5.0, 1200.0):
        assert timing(None, None, None, renewal_s=renewal_s).hold_s == 8.0
    assert file_lock_timing(None).lead_s == math.inf
