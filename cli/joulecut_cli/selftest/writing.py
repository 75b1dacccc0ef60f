"""The writing part: clocks under a lease, and how the card follows.

Nothing is set on a GPU that a job, another lease or another process uses. At the end of every
path, Ctrl-C too, the lease is given back.
"""

import time
from collections.abc import Sequence

from joulecut_agent.keeper.evidence import BUSY_RATIO, CLOCK_SLACK_MHZ
from joulecut_agent.selftest.evidence import Change, Range, Sample
from joulecut_agent.selftest.load import Load
from joulecut_agent.selftest.observations import holes_mhz
from joulecut_agent.selftest.watcher import Watcher
from joulecut_cli.agent_client import Agent
from joulecut_cli.agent_lease import AgentLease, holder
from joulecut_wire.errors import Unavailable

JOB = "joulecut-selftest"
# A tester that dies leaves the clock for so long; a short test has the shortest.
TTL_S, TTL_S_MIN, TTL_SHARE = 10.0, 5.0, 0.1
WAIT_S = 2.0  # for a clock; twenty times the slowest known change
FALL_WAIT_S = 20.0  # an idle card leaves its clocks after some seconds, whatever the lock was
POLL_S = 0.001
UNSEEN_MAX = 5  # in a row: the card shows no more
AGAIN_MAX = 8  # of clocks that were not reached; lowering has a pace
FIRST_S = 15.0  # for the first write: a dwell time may run
LOAD_WAIT_S = 60.0  # CUDA's start on a large node
SETTLED_S = 1.5  # the average of power, and a step of the load, are over
HOLD_S = 3.0
HEADROOM = 0.9  # of the clock held under load
IDLE_RATIO = 0.05  # of utilisation


def refusal(agent: Agent, watcher: Watcher) -> str:
    """Why nothing may be set on this GPU, or ""."""
    try:
        held = holder(agent, watcher.uuid)
    except Unavailable as error:
        return str(error)
    if held:
        return held
    watcher.watch(0.5)
    if watcher.process_ids:
        return f"processes {', '.join(map(str, watcher.process_ids))} compute on this GPU"
    busy = max((one.busy_ratio or 0.0) for one in watcher.evidence.samples)
    return f"it is {busy:.0%} busy" if busy > IDLE_RATIO else ""


class Writing:
    """One idle GPU. A lease that is lost meanwhile is evidence. Raises Unavailable at the end,
    where agent or card still do not answer."""

    def __init__(self, agent: Agent, watcher: Watcher, load: Load, seconds: float) -> None:
        self._watcher, self._evidence, self._load = watcher, watcher.evidence, load
        self._agent = agent
        self._seconds = seconds
        ttl_s = max(TTL_S_MIN, min(TTL_S, TTL_SHARE * seconds))
        self._lease = AgentLease(agent, JOB, (watcher.uuid,), ttl_s)
        self._start_mhz = watcher.clock_mhz()
        self._unseen = 0
        self._low, self._mid, self._high = _spread(self._evidence.clocks_mhz)

    def run(self) -> None:
        evidence = self._evidence
        evidence.write_tried = True
        try:
            if self._refused():
                return
            if self._load.known:
                self._loaded()
            if not evidence.loaded:
                self._cycles(0.4 * self._seconds)
                self._sweep()
            self._hold()
            self._expire()
        except Unavailable as error:  # the keeper gave the card up, or does not answer
            evidence.lost = str(error)
        finally:
            self._load.end()
            self._lease.close()
            self._watcher.locked(None)
            self._read_back()

    def _refused(self) -> bool:
        """Whether the very first write is refused."""
        refused = self._lease.lock({self._watcher.uuid: (self._mid, self._mid)}, patience_s=FIRST_S)
        self._evidence.refused = refused
        if not refused:
            self._watcher.locked((self._mid, self._mid))
        return bool(refused)

    def _loaded(self) -> None:
        watcher, evidence = self._watcher, self._evidence
        self._reset()
        watcher.phase = "load starts"
        self._load.start(watcher.uuid)
        evidence.loaded = watcher.until(_is_busy, LOAD_WAIT_S)
        if not evidence.loaded:
            self._load.end()
            return
        watcher.watch(SETTLED_S)
        watcher.phase = "load, default clocks"
        watcher.watch(max(SETTLED_S, 0.1 * self._seconds))
        # Changes stay below the clock that a cap holds, where each can be seen.
        held_mhz = HEADROOM * watcher.clock_mhz()
        clocks = [mhz for mhz in evidence.clocks_mhz if mhz <= held_mhz] or evidence.clocks_mhz[:1]
        self._low, self._mid, self._high = _spread(clocks)
        self._cycles(0.5 * self._seconds)
        self._sweep()
        watcher.phase = "load, highest lock"
        highest_mhz = evidence.clocks_mhz[-1]
        self._set((highest_mhz, highest_mhz), wait=False)
        watcher.watch(2 * SETTLED_S)

    def _cycles(self, seconds: float) -> None:
        """Near and far changes in both directions, for so long, and at least one of each."""
        self._watcher.phase = "changes"
        until_s = time.monotonic() + seconds
        while True:
            for mhz in (self._low, self._high, self._mid, self._high, self._low):
                self._set((mhz, mhz))
            self._reset()
            if time.monotonic() >= until_s or self._unseen >= UNSEEN_MAX:
                return

    def _sweep(self) -> None:
        """Every clock of the list, ascending: raising is not bounded in its pace."""
        self._watcher.phase = "every clock"
        if not self._evidence.loaded and not any(one.seen_s for one in self._evidence.changes):
            return  # this card does not show a lock while it is idle
        for mhz in self._evidence.clocks_mhz:
            self._try(mhz)
            if self._unseen >= UNSEEN_MAX:
                break  # a cap, or a driver that ignores locks: higher clocks say no more
        for mhz in holes_mhz(self._evidence)[:AGAIN_MAX]:
            self._try(mhz)  # another writer may have come between

    def _try(self, mhz: int) -> None:
        self._set((mhz, mhz), slack_mhz=0, wait_s=0.5)
        self._evidence.grid[mhz] = self._evidence.changes.pop()
        self._watcher.look()

    def _hold(self) -> None:
        """A lock that nobody else should change, for long enough to see a writer that insists."""
        self._watcher.phase = "hold"
        self._set((self._low, self._low))
        self._watcher.watch(max(HOLD_S, 0.1 * self._seconds))
        gpus = {gpu.uuid: gpu for gpu in self._agent.seen().gpus}
        mine = gpus.get(self._watcher.uuid)
        self._evidence.drift = mine.drift if mine is not None else ""

    def _expire(self) -> None:
        """The tester is silent until its lease is over."""
        self._watcher.phase = "expiry"
        ttl_s = self._lease.abandon()
        began_s = time.monotonic()
        self._evidence.ttl_s = ttl_s
        locked_mhz = self._low

        def free(sample: Sample) -> bool:
            clock_mhz = sample.clock_mhz or 0
            return abs(clock_mhz - locked_mhz) > CLOCK_SLACK_MHZ

        # An idle card may keep its clock for longer: that is no answer.
        if self._watcher.until(free, ttl_s + 2.0 * WAIT_S):
            self._evidence.expired_s = time.monotonic() - began_s
            self._watcher.locked(None)

    def _read_back(self) -> None:
        """At the end the card shows what it showed at the start."""
        self._watcher.phase = "after"
        wanted = self._start_mhz

        def back(sample: Sample) -> bool:
            return abs((sample.clock_mhz or 0) - wanted) <= 2 * CLOCK_SLACK_MHZ

        self._evidence.restored = self._watcher.until(back, FALL_WAIT_S)

    def _set(
        self, lock: Range, *, wait: bool = True, slack_mhz: int = CLOCK_SLACK_MHZ,
        wait_s: float = WAIT_S,
    ) -> None:  # fmt: skip
        """Asks for a lock, and notes when its highest clock is seen."""
        watcher = self._watcher
        before_mhz, asked_s = watcher.clock_mhz(), time.monotonic()
        if refused := self._lease.lock({watcher.uuid: lock}):
            raise Unavailable(f"the agent refuses {lock[1]} MHz: {refused}")
        # A refusal for pace is waited for: the time of the change counts from its acceptance.
        asked_s = max(asked_s, self._lease.sent_s)
        watcher.locked(lock)
        if wait:
            self._note(before_mhz, lock[1], asked_s, slack_mhz, wait_s)

    def _reset(self) -> None:
        watcher = self._watcher
        before_mhz, asked_s = watcher.clock_mhz(), time.monotonic()
        self._lease.reset()
        was_locked = watcher.is_locked
        watcher.locked(None)
        if was_locked:
            self._note(before_mhz, 0, asked_s, CLOCK_SLACK_MHZ, WAIT_S)

    def _note(
        self, before_mhz: int, to_mhz: int, asked_s: float, slack_mhz: int, wait_s: float
    ) -> None:
        watcher, seen_s = self._watcher, None
        while True:
            clock_mhz = watcher.clock_mhz()
            took_s = time.monotonic() - asked_s
            off_mhz = abs(clock_mhz - (to_mhz or before_mhz))
            if off_mhz <= slack_mhz if to_mhz else off_mhz > slack_mhz:
                seen_s = took_s
                break
            if took_s > wait_s:
                break
            time.sleep(POLL_S)
        self._unseen = 0 if seen_s is not None else self._unseen + 1
        sample = watcher.look()
        self._evidence.changes.append(
            Change(before_mhz, to_mhz, self._evidence.loaded, seen_s, clock_mhz, sample.reasons)
        )


def _spread(clocks: Sequence[int]) -> tuple[int, int, int]:
    """A low, a middle and the highest one."""
    return clocks[len(clocks) // 4], clocks[len(clocks) // 2], clocks[-1]


def _is_busy(sample: Sample) -> bool:
    return (sample.busy_ratio or 0.0) >= BUSY_RATIO
