"""What keeps this controller from a job until a person says otherwise, and how often it tripped.

One mechanism for every such reason: a person's pause, a restore, the breaker. Held in memory
for the passes and written to the store before it is relied on, so that a restart, or another
controller that takes over, keeps its hands off too. What cannot be read back holds as well.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from joulecut_controller.orders import ALL, Hold, HoldKind
from joulecut_controller.ports import Record, Store

TOPIC = "hold"
RECORDS_READ_MAX = 100_000  # of this topic there are few: one a change, one an hour while held
# The store drops its oldest records once there are too many, whatever they say.
REFRESH_S = 3600.0
TRIPS_MAX = 3
TRIP_MEMORY_S = 86_400.0  # an operator looks once a day; three trips in that time are a pattern
# After a trip, in order: long enough to measure default clocks anew, short enough that one bad
# profile does not cost the day's savings. After the last one a person decides.
STAND_BACK_S: tuple[float, ...] = (300.0, 1800.0)
assert len(STAND_BACK_S) == TRIPS_MAX - 1
BREAKER = "the breaker"


@dataclass(frozen=True, slots=True)
class _State:
    """Of one job, or (job empty) of all: its holds, at most one of a kind, and its trips."""

    holds: tuple[Hold, ...] = ()
    trips_unix_s: tuple[float, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.holds and not self.trips_unix_s


class Holds:
    """All holds. What it keeps for a job goes with its last hold and trip."""

    def __init__(self, store: Store, unix_s: Callable[[], float]) -> None:
        """Reads what was kept. Raises Unavailable where the store cannot tell."""
        self._store, self._unix_s = store, unix_s
        self._states: dict[str, _State] = {}
        self._refreshed_unix_s = unix_s()
        seen: set[str] = set()
        for record in store.records(TOPIC, limit=RECORDS_READ_MAX):  # newest first
            if record.job not in seen:
                seen.add(record.job)
                state = _read(record)
                if not state.empty:
                    self._states[record.job] = state

    @property
    def all(self) -> tuple[Hold, ...]:
        """That on every job first, then by job."""
        return tuple(hold for job in sorted(self._states) for hold in self._states[job].holds)

    def of(self, job: str) -> tuple[Hold, ...]:
        """What holds this job: its own first, then what holds all."""
        return self._own(job).holds + (self._own(ALL).holds if job != ALL else ())

    def word(self, job: str) -> str:
        """Why nothing is done for the job; empty where nothing holds it."""
        return next((hold.sentence for hold in self.of(job)), "")

    def trips(self, job: str) -> int:
        """How often the breaker tripped lately."""
        return len(self._lately(self._own(job)))

    def place(self, hold: Hold) -> None:
        """Holds from now on, in place of one of the same kind. Raises Unavailable where that
        could not be written down; it holds all the same.
        """
        state = self._own(hold.job)
        others = tuple(held for held in state.holds if held.kind != hold.kind)
        self._keep(hold.job, replace(state, holds=(*others, hold)))

    def lift(self, job: str, kinds: Iterable[HoldKind]) -> tuple[Hold, ...]:
        """Ends holds of the job, and answers which; with the breaker's its trips are forgotten.

        Raises Unavailable where that could not be written down: it ends all the same, and a
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
        """Counts a trip of the breaker and holds the job for it; the last one until a person
        speaks. Raises as `place`.
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
        """The newest trip was not our doing: it counts no longer, and holds nothing."""
        state = self._own(job)
        left = tuple(hold for hold in state.holds if hold.kind != "breaker")
        self._keep(job, _State(left, state.trips_unix_s[:-1]))

    def expire(self, job: str, *, measured_anew: bool) -> Hold | None:
        """Ends what ends by itself, once default clocks were measured; answers what ended."""
        state, now = self._own(job), self._unix_s()
        for hold in state.holds:
            if hold.until_unix_s is not None and now >= hold.until_unix_s and measured_anew:
                left = tuple(held for held in state.holds if held is not hold)
                self._keep(job, replace(state, holds=left))
                return hold
        return None

    def refresh(self) -> None:
        """Writes what still holds again, so that no newer record ever crowds it out."""
        now = self._unix_s()
        if 0.0 <= now - self._refreshed_unix_s < REFRESH_S:
            return
        self._refreshed_unix_s = now
        for job, state in list(self._states.items()):
            self._keep(job, replace(state, trips_unix_s=self._lately(state)))

    def _own(self, job: str) -> _State:
        return self._states.get(job, _State())

    def _lately(self, state: _State) -> tuple[float, ...]:
        now = self._unix_s()
        return tuple(at for at in state.trips_unix_s if now - at < TRIP_MEMORY_S)

    def _keep(self, job: str, state: _State) -> None:
        """In memory first: a store that fails must not undo a person's word."""
        self._states[job] = state
        if state.empty:
            del self._states[job]
        self._store.keep_record(Record(self._unix_s(), TOPIC, job, _written(state)))


def _written(state: _State) -> str:
    holds = [{k: v for k, v in asdict(hold).items() if k != "job"} for hold in state.holds]
    return json.dumps({"holds": holds, "trips_unix_s": list(state.trips_unix_s)})


def _read(record: Record) -> _State:
    try:
        data = json.loads(record.content)
        holds = tuple(_hold(record.job, one) for one in data["holds"])
        trips = tuple(_finite(at) for at in data["trips_unix_s"])
    except (ValueError, KeyError, TypeError, AttributeError):
        reason = "the record of what held it cannot be read"
        return _State((Hold(record.job, "pause", reason, "this controller", record.at_unix_s),))
    return _State(holds, trips[-TRIPS_MAX:])


def _hold(job: str, data: dict[str, Any]) -> Hold:
    kind, until = data["kind"], data.get("until_unix_s")
    if kind not in get_args(HoldKind):
        raise ValueError(kind)
    return Hold(
        job=job,
        kind=kind,
        reason=str(data["reason"]),
        by=str(data["by"]),
        since_unix_s=_finite(data["since_unix_s"]),
        until_unix_s=None if until is None else _finite(until),
    )


def _finite(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(value)
    return float(value)
