"""Holds: why a job is not controlled. An operator's pause or restore, or a trip of the breaker.

Kept in memory and in the store, so that a restarted or succeeding controller respects them. A
record that cannot be read counts as a hold. The breaker looks at measurements before the planner
does and shares no state with it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

import msgspec

from joulecut_controller.observe.baseline import BASELINE_ITERATIONS_MIN
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.orders import ALL, Hold, HoldKind
from joulecut_controller.plan.veto import Veto
from joulecut_controller.ports import Record, Store
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.trust.breaker import Breaker, Finding, limit_of

TOPIC = "hold"
RECORDS_READ_MAX = 1_000_000  # all that the store keeps
TRIPS_MAX = 3
TRIP_MEMORY_S = 86_400.0  # an operator looks once a day; three trips in that time are a pattern
# After a trip, in order: long enough to measure default clocks again, short enough that one bad
# profile does not cost the day's savings. After the last trip an operator decides.
STAND_BACK_S: tuple[float, ...] = (300.0, 1800.0)
assert len(STAND_BACK_S) == TRIPS_MAX - 1
BREAKER = "the breaker"


@dataclass(frozen=True, slots=True)
class _State:
    """Holds of one job, or (job empty) of all: at most one of a kind, with its trips."""

    holds: tuple[Hold, ...] = ()
    trips_unix_s: tuple[float, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.holds and not self.trips_unix_s


class Holds:
    """All holds. A job's entry is dropped with its last hold and trip."""

    def __init__(self, store: Store, unix_s: Callable[[], float]) -> None:
        """Raises Unavailable where the store cannot be read."""
        self._store, self._unix_s = store, unix_s
        self._unkept: set[str] = set()  # jobs whose newest state the store did not take
        self.changes = 0
        self._states = self.stored()

    def stored(self) -> dict[str, _State]:
        """By job, of those that are held or have trips. Raises Unavailable."""
        newest: dict[str, Record] = {}
        for record in self._store.records(TOPIC, limit=RECORDS_READ_MAX):  # newest first
            newest.setdefault(record.job, record)
        states = {job: _read(record) for job, record in newest.items()}
        return {job: state for job, state in states.items() if not state.empty}

    def follow(self, stored: Mapping[str, _State]) -> set[str]:
        """Takes in what controllers of the store have placed and lifted, as of now; returns the
        jobs that this changes.
        """
        before = self._states
        here = {job: before[job] for job in self._unkept if job in before}
        theirs = {job: one for job, one in stored.items() if job not in self._unkept}
        self._states = theirs | here
        known = {*before, *self._states}
        return {job for job in known if before.get(job) != self._states.get(job)}

    @property
    def all(self) -> tuple[Hold, ...]:
        """Holds on all jobs first, then by job."""
        return tuple(hold for job in sorted(self._states) for hold in self._states[job].holds)

    def of(self, job: str) -> tuple[Hold, ...]:
        """Holds on this job: its own first, then those on all jobs."""
        return self._own(job).holds + (self._own(ALL).holds if job != ALL else ())

    def vetoes(self, job: str) -> tuple[Veto, ...]:
        """Why nothing is done for the job."""
        return tuple(
            Veto("breaker" if hold.kind == "breaker" else "command", hold.sentence)
            for hold in self.of(job)
        )

    def trips(self, job: str) -> int:
        """Trips of the breaker within TRIP_MEMORY_S."""
        return len(self._lately(self._own(job)))

    def place(self, hold: Hold) -> None:
        """Adds a hold, replacing one of the same kind. Raises Unavailable where the store did not
        take it; it holds in memory all the same.
        """
        state = self._own(hold.job)
        others = tuple(held for held in state.holds if held.kind != hold.kind)
        self._keep(hold.job, replace(state, holds=(*others, hold)))

    def lift(self, job: str, kinds: Iterable[HoldKind]) -> tuple[Hold, ...]:
        """Ends holds of the job and returns them; ending the breaker's forgets its trips.

        Raises Unavailable where the store did not take it: the hold ends all the same, and a
        restart would bring it back.
        """
        state, wanted = self._own(job), frozenset(kinds)
        ended = tuple(hold for hold in state.holds if hold.kind in wanted)
        left = tuple(hold for hold in state.holds if hold.kind not in wanted)
        trips = () if "breaker" in wanted else state.trips_unix_s
        if (left, trips) != (state.holds, state.trips_unix_s):
            self._keep(job, _State(left, trips))
        return ended

    def trip(self, job: str, why: str) -> Hold:
        """Counts a trip of the breaker and holds the job: after the last allowed trip until an
        operator resumes it. Raises as `place`.
        """
        now = self._unix_s()
        state = self._own(job)
        trips = (*self._lately(state), now)[-TRIPS_MAX:]
        until = now + STAND_BACK_S[len(trips) - 1] if len(trips) < TRIPS_MAX else None
        counted = f"{why} (trip {len(trips)} of {TRIPS_MAX})"
        hold = Hold(job, "breaker", counted, BREAKER, now, until)
        others = tuple(held for held in state.holds if held.kind != "breaker")
        self._keep(job, _State((*others, hold), trips))
        return hold

    def acquit(self, job: str) -> None:
        """Withdraws the newest trip, which our clocks did not cause, and its hold."""
        state = self._own(job)
        left = tuple(hold for hold in state.holds if hold.kind != "breaker")
        self._keep(job, _State(left, state.trips_unix_s[:-1]))

    def expire(self, job: str, *, measured_again: bool) -> Hold | None:
        """Ends a hold whose time is over once default clocks were measured; returns it."""
        state, now = self._own(job), self._unix_s()
        for hold in state.holds:
            if hold.until_unix_s is not None and now >= hold.until_unix_s and measured_again:
                left = tuple(held for held in state.holds if held is not hold)
                self._keep(job, replace(state, holds=left))
                return hold
        return None

    def catch_up(self) -> None:
        """Writes what the store did not take. Raises Unavailable."""
        for job in tuple(self._unkept):
            self._keep(job, self._own(job))

    def _own(self, job: str) -> _State:
        return self._states.get(job, _State())

    def _lately(self, state: _State) -> tuple[float, ...]:
        now = self._unix_s()
        return tuple(at for at in state.trips_unix_s if now - at < TRIP_MEMORY_S)

    def _keep(self, job: str, state: _State) -> None:
        """In memory first: a failing store must not undo an operator's command."""
        self.changes += 1
        self._states[job] = state
        if state.empty:
            del self._states[job]
        self._unkept.add(job)
        self._store.keep_record(Record(self._unix_s(), TOPIC, job, _written(state)), per_job=1)
        self._unkept.discard(job)


class _Kept(msgspec.Struct):
    """A state as its record has it: holds without their job."""

    holds: list[dict[str, Any]]
    trips_unix_s: tuple[float, ...]


def _written(state: _State) -> str:
    holds = [{k: v for k, v in asdict(hold).items() if k != "job"} for hold in state.holds]
    return msgspec.json.encode(_Kept(holds, state.trips_unix_s)).decode()


def _read(record: Record) -> _State:
    job = record.job
    try:
        kept = msgspec.json.decode(record.content, type=_Kept)
        holds = tuple(msgspec.convert({**one, "job": job}, Hold) for one in kept.holds)
    except (msgspec.MsgspecError, UnicodeError):
        reason = "the record of what held it cannot be read"
        return _State((Hold(job, "pause", reason, "this controller", record.at_unix_s),))
    return _State(holds, kept.trips_unix_s[-TRIPS_MAX:])


class JobBreaker:
    """The breaker of one job, and what its findings do. `lag_s`: the longest delay of a report."""

    def __init__(self, holds: Holds, audit: AuditLog, lag_s: float) -> None:
        self._holds, self._audit, self._lag_s = holds, audit, lag_s
        self._breaker = Breaker()
        self._controlled_since_s = self._default_since_s = math.inf

    @property
    def suspected(self) -> str:
        """The evidence of a first window that was too slow; empty without one."""
        return self._breaker.suspected

    def look(
        self, observation: JobObservation, *, held: bool, now_s: float, allotted_s: float | None
    ) -> None:
        """Once a pass, before planning. `held`: the job's clocks are under our leases.

        Raises Unavailable where the store did not take a trip; it holds all the same.
        """
        measured, breaker = observation.job.measured, self._breaker
        self._controlled_since_s = min(self._controlled_since_s, now_s) if held else math.inf
        default = measured.at_default and not held
        self._default_since_s = min(self._default_since_s, now_s) if default else math.inf
        since_s = self._controlled_since_s if held else self._default_since_s
        reported = observation.fresh.reported
        ended = tuple(one for one in reported if one.began_s - self._lag_s >= since_s)
        if default:
            breaker.see_default(ended)
        for phase, alike in groupby(ended, key=lambda one: one.phase):
            # What an earlier controller measured counts until this one has seen default clocks.
            known = measured.baseline if phase[1] == measured.phase.shape else None
            reference = breaker.reference(phase) or known
            if reference is None:
                continue
            limit = limit_of(observation.job.policy, reference, allotted_s)
            if held:
                finding = breaker.controlled(alike, limit, peers_ours=_peers_ours(observation))
            else:
                finding = breaker.at_default(alike, limit)
            self._found(observation.job.policy.name, finding)
            if finding:
                break

    def _found(self, job: str, finding: Finding) -> None:
        """A trip is held and logged, or one that default clocks explain is withdrawn."""
        if finding == "trip":
            hold = self._holds.trip(job, f"{self._breaker.evidence}, twice in a row")
            self._audit.note("hold", job, hold.sentence, by=hold.by, trips=self._holds.trips(job))
        elif finding == "not-ours":
            self._holds.acquit(job)
            text = f"the trip does not count: at default clocks {self._breaker.evidence}"
            self._audit.note("hold", job, text)

    def rearm(self, observation: JobObservation) -> Hold | None:
        """Ends the breaker's hold when its time is over and default clocks were measured."""
        measured = observation.job.measured
        measured_again = measured.at_default and (
            measured.straggling or measured.current_iterations >= BASELINE_ITERATIONS_MIN
        )
        job = observation.job.policy.name
        ended = self._holds.expire(job, measured_again=measured_again)
        if ended is not None:
            self._audit.note("hold", job, "the breaker is armed again: default clocks measured")
        return ended


def _peers_ours(observation: JobObservation) -> bool:
    """Whether the job's GPUs hold several pipelines, so that our clocks may slow a sibling."""
    pipeline = observation.job.policy.pipeline
    width = max((len(stage) for stage in observation.job.placement.stages), default=0)
    return pipeline is not None and width > pipeline.lockstep
