"""Energy per job from the boards' own counters; jobs and idle time add up to the board.

Pure. Each joule of a counter is booked once: to the only job on the board, in equal and therefore
estimated shares to several jobs, or as idle. Changes of job are known exactly, the counter only at
ticks, so its growth between two readings is spread evenly over time. A counter that fell restarted
at zero with its driver: all it shows is new energy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

JOBS_MAX = 256  # of one node; the job that ended first is forgotten first
KEEP_S = 120.0  # after a job's end: two scrapes at the longest interval in use, a minute
HOLDERS_MAX = 16  # jobs on one board at once; time-slicing more of them is no allocation
SPELLS_MAX = 64  # changes of holder between two readings of a counter
GAP_S = 60.0  # without an agent: a job counts as running for so long
POWER_W_MAX = 10_000.0  # above every board: faster growth of a counter is ignored
SLACK_S = 1.0  # a counter moves in steps of 0.1 s or more, and time stamps differ by a tick
Holders = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Books:
    """Totals in joules: by job, by job where shares are estimated, and idle by board."""

    measured_j: Mapping[str, float] = field(default_factory=dict)
    estimated_j: Mapping[str, float] = field(default_factory=dict)
    idle_j: Mapping[str, float] = field(default_factory=dict)

    def total_j(self) -> float:
        parts = (self.measured_j, self.estimated_j, self.idle_j)
        return sum(sum(part.values()) for part in parts)


@dataclass(slots=True)
class _Board:
    counter_j: float | None = None  # None: never read
    at_s: float = 0.0
    spells: list[tuple[float, Holders]] = field(default_factory=lambda: [(0.0, ())])


class JobEnergy:
    """Times are monotonic seconds. Not thread-safe."""

    def __init__(self) -> None:
        self._boards: dict[str, _Board] = {}
        self._load = ""
        self._measured_j: dict[str, float] = {}
        self._estimated_j: dict[str, float] = {}
        self._idle_j: dict[str, float] = {}
        self._ended_s: dict[str, float] = {}  # jobs that hold nothing, in order of their end

    def hold(self, uuid: str, jobs: Iterable[str], at_s: float) -> bool:
        """From `at_s` a board works for these jobs; whether that is a change."""
        holders = tuple(sorted(set(jobs)))[:HOLDERS_MAX]
        board = self._boards.setdefault(uuid, _Board())
        if board.spells[-1][1] == holders:
            return False
        board.spells.append((max(at_s, board.at_s, board.spells[-1][0]), holders))
        if len(board.spells) > SPELLS_MAX:  # merges the oldest: their time is lost, not energy
            (first_s, one), (_, other) = board.spells[:2]
            board.spells[:2] = [(first_s, tuple(sorted({*one, *other}))[:HOLDERS_MAX])]
        for job in holders:
            self._measured_j.setdefault(job, 0.0)  # every job has a series
        return True

    def add(self, counters_j: Mapping[str, tuple[float, float]], now_s: float) -> None:
        """Adds (time of reading, counter) of each board that was read."""
        for uuid, (at_s, counter_j) in counters_j.items():
            board = self._boards.setdefault(uuid, _Board())
            if board.counter_j is not None:
                grown_j = counter_j - board.counter_j
                grown_j = grown_j if grown_j >= 0.0 else counter_j
                if grown_j <= POWER_W_MAX * (at_s - board.at_s + SLACK_S):
                    self._spread(uuid, board, at_s, grown_j)
            board.counter_j, board.at_s = counter_j, max(at_s, board.at_s)
            begun = [spell for spell in board.spells if spell[0] <= board.at_s]
            board.spells = [(board.at_s, begun[-1][1]), *board.spells[len(begun) :]]
        self._forget(now_s)

    def books(self) -> Books:
        return Books(dict(self._measured_j), dict(self._estimated_j), dict(self._idle_j))

    def saved(self) -> dict[str, Any]:
        """The state for the next agent, as plain values."""
        return {
            "boards": {
                uuid: [board.counter_j, board.at_s, board.spells[-1][1]]
                for uuid, board in self._boards.items()
                if board.counter_j is not None
            },
            "load": self._load,
            "measured_j": dict(self._measured_j),
            "estimated_j": dict(self._estimated_j),
            "idle_j": dict(self._idle_j),
        }

    def loaded(self, load: str) -> None:
        """Sets the driver load of the next counters, which a new load starts at zero."""
        if load != self._load:
            for board in self._boards.values():
                board.counter_j = None if board.counter_j is None else 0.0
        self._load = load

    def restore(self, saved: Mapping[str, Any], now_s: float, *, same_boot: bool) -> None:
        """Continues from the state that another agent saved.

        The jobs of a board count as running for GAP_S since: an upgrade takes less. Raises
        TypeError, ValueError, KeyError or AttributeError on anything else.
        """
        totals = (
            {str(name): float(joules) for name, joules in saved[part].items()}
            for part in ("measured_j", "estimated_j", "idle_j")
        )
        boards = {}
        for uuid, (seen_j, seen_s, holders) in saved["boards"].items():
            counter_j, at_s = float(seen_j), float(seen_s)
            began_j = counter_j if same_boot else 0.0
            spells: list[tuple[float, Holders]] = [(0.0, ())]
            if same_boot:
                spells = [(at_s, tuple(map(str, holders)))]
                if now_s > at_s + GAP_S:
                    spells.append((at_s + GAP_S, ()))
            boards[str(uuid)] = _Board(began_j, at_s if same_boot else 0.0, spells)
        self._measured_j, self._estimated_j, self._idle_j = totals
        self._load = str(saved["load"])
        self._boards = boards

    def _spread(self, uuid: str, board: _Board, at_s: float, grown_j: float) -> None:
        ends_s = [max(board.at_s, min(start_s, at_s)) for start_s, _ in board.spells[1:]] + [at_s]
        begin_s, whole_s = board.at_s, at_s - board.at_s
        if whole_s <= 0.0:
            self._book(uuid, board.spells[0][1], grown_j)
            return
        for (_, holders), end_s in zip(board.spells, ends_s, strict=True):
            self._book(uuid, holders, (end_s - begin_s) / whole_s * grown_j)
            begin_s = end_s

    def _book(self, uuid: str, holders: Holders, joules: float) -> None:
        if not holders:
            self._idle_j[uuid] = self._idle_j.get(uuid, 0.0) + joules
        elif len(holders) == 1:
            self._measured_j[holders[0]] = self._measured_j.get(holders[0], 0.0) + joules
        elif joules > 0.0:
            for job in holders:
                part_j = joules / len(holders)
                self._estimated_j[job] = self._estimated_j.get(job, 0.0) + part_j

    def _forget(self, now_s: float) -> None:
        alive = {
            job for board in self._boards.values() for _, holders in board.spells for job in holders
        }
        known = {**self._measured_j, **self._estimated_j}
        for job in known:
            if job in alive:
                self._ended_s.pop(job, None)
            else:
                self._ended_s.setdefault(job, now_s)
        over = len(known) - JOBS_MAX
        old = [
            job
            for place, (job, ended_s) in enumerate(self._ended_s.items())
            if place < over or now_s - ended_s > KEEP_S
        ]
        for job in old:
            del self._ended_s[job]
            self._measured_j.pop(job, None)
            self._estimated_j.pop(job, None)
