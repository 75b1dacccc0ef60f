"""What clock changes really cost, and what an iteration with them takes.

A plan with a clock per operation looks best where changing clocks is free and instant. It is
neither: the driver takes milliseconds, a changed clock may not be changed again at once, and
every change costs something. So a plan is judged by the timeline that is really run, made here
from the clocks that it asks for.

A stage asks where its operation before has ended (the mark; before its first operation: where
the iteration begins). From the mark it does nothing for `cost_s`, which costs nothing where it
would wait anyway, and `latency_s` after the mark the new clock comes. Iterations repeat: at the
beginning a stage has the clock that it asked for last, and a change back to the first counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ, ClockOption
from joulecut_engine.graph.pipeline import SENDS
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.problem import Problem, Solution

UNLIMITED = 1_000_000  # switches per GPU and iteration: more than any iteration has operations
# An operation shorter than five times the set latency is over before a clock of its own is
# worth anything, and what it really took is no longer known from the profile (DESIGN section 6).
LATENCIES_MIN = 5.0

Late = Literal["next", "within"]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Switching:
    """Limits and costs of clock changes on one GPU.

    `min_dwell_s` lies between two changes that are asked for; `max_per_iteration` counts those
    of one GPU. A change stops its GPU for `cost_s` and takes `cost_j` beside what is drawn
    anyway. It comes `latency_s` after it was asked. Where its operation has begun by then:
    with `late="next"` that runs at the old clock to its end and the change spills to the next;
    with `"within"` the rest of it runs at the new clock.
    """

    min_dwell_s: float = 0.0
    max_per_iteration: int = UNLIMITED
    cost_s: float = 0.0
    cost_j: float = 0.0
    latency_s: float = 0.0
    late: Late = "next"

    @property
    def punctual(self) -> bool:
        """Whether every change has come before its operation begins."""
        return self.latency_s <= self.cost_s


@dataclass(frozen=True, slots=True)
class Change:
    """One change asked for: before `operation` (an index), at seconds of the iteration."""

    operation: int
    from_mhz: int
    to_mhz: int
    asked_s: float
    lands_s: float


@dataclass(frozen=True, slots=True)
class Switched:
    """A plan under switching. `plan` is what is really run: its options are those that
    operations ran at (with `late="within"` a mixture of two, named by the clock it ended at),
    its energy includes every `cost_j`. `asked_mhz` is by operation, 0 where none is asked."""

    plan: Solution
    asked_mhz: tuple[int, ...]
    changes: tuple[tuple[Change, ...], ...]  # by stage


class Track(NamedTuple):
    """A problem as arrays, by operation index; clocks are columns, ascending per stage."""

    stage: Ints
    clocked: Bools
    before: Ints  # the operation before on the same GPU, -1 for none; sends stand beside
    last: Ints  # by stage: the last operation that asks for a clock, -1 for none
    line: Ints  # operations in the order of their GPU, stage after stage, without sends
    line_at: Ints  # those of stage s are line_at[s] to line_at[s + 1]
    tails: Ints  # links into operation i are enters[i] to enters[i + 1]
    enters: Ints
    time: Floats  # (operations, columns), infinite where not measured
    energy: Floats
    power: Floats  # by stage, blocking
    clocks: Ints  # (stages, columns) MHz, padded with -1
    columns: Ints  # by stage


class Limits(NamedTuple):
    """`Switching` for compiled code."""

    dwell: float
    most: int
    stop: float
    joules: float
    latency: float
    within: bool


class Run(NamedTuple):
    """What a timeline is written to, by operation: `column` is the clock at its end, `asks`
    the mark where a change is asked before it, or -1. And the luck it is run with: `factor`
    times the profile's seconds, by operation, and `delay`, seconds by link; 1 and 0 for none."""

    start: Floats
    duration: Floats
    energy: Floats
    column: Ints
    asks: Floats
    lands: Floats  # queues of changes under way, by place in `line`
    to: Ints
    factor: Floats
    delay: Floats


def limits_of(switching: Switching) -> Limits:
    return Limits(
        switching.min_dwell_s,
        switching.max_per_iteration,
        switching.cost_s,
        switching.cost_j,
        switching.latency_s,
        switching.late == "within",
    )


def track_of(problem: Problem) -> Track:
    """Of several options at one clock the fastest counts."""
    operations, measured = problem.graph.operations, problem.measured or problem.options
    count, stages = len(operations), len(problem.graph.order)
    lines = [[i for i in order if operations[i].kind not in SENDS] for order in problem.graph.order]
    clocked = np.array(
        [
            menu[0].clock_mhz != ANY_CLOCK_MHZ and operation.kind not in SENDS
            for operation, menu in zip(operations, measured, strict=True)
        ]
    )
    before, last = np.full(count, -1), np.full(stages, -1)
    for stage, line in enumerate(lines):
        before[line[1:]] = line[:-1]
        asking = [i for i in line if clocked[i]]
        last[stage] = asking[-1] if asking else -1
    menus = [
        sorted({o.clock_mhz for i in line if clocked[i] for o in measured[i]}) or [ANY_CLOCK_MHZ]
        for line in lines
    ]
    clocks = np.full((stages, max(map(len, menus))), -1)
    for row, menu in zip(clocks, menus, strict=True):
        row[: len(menu)] = menu
    pairs = sorted({*problem.graph.edges, *((int(b), i) for i, b in enumerate(before) if b >= 0)},
                   key=lambda pair: (pair[1], pair[0]))  # fmt: skip
    time_s, energy_j = _tables(problem, menus, clocked)
    return Track(
        stage=np.array([operation.stage for operation in operations]),
        clocked=clocked,
        before=before,
        last=last,
        line=np.array([i for line in lines for i in line], dtype=np.int64),
        line_at=np.cumsum([0, *map(len, lines)]),
        tails=np.array([a for a, _ in pairs], dtype=np.int64),
        enters=np.searchsorted([b for _, b in pairs], np.arange(count + 1)).astype(np.int64),
        time=time_s,
        energy=energy_j,
        power=np.array(problem.blocking_power_w, dtype=np.float64),
        clocks=clocks,
        columns=np.array([len(menu) for menu in menus]),
    )


def _tables(problem: Problem, menus: list[list[int]], clocked: Bools) -> tuple[Floats, Floats]:
    """Seconds and joules of every operation at every clock of its stage."""
    measured = problem.measured or problem.options
    shape = (len(measured), max(map(len, menus)))
    time_s, energy_j = np.full(shape, np.inf), np.full(shape, np.inf)
    rows: dict[tuple[int, int], tuple[Floats, Floats]] = {}
    for i, (operation, options) in enumerate(zip(problem.graph.operations, measured, strict=True)):
        key = (id(options), operation.stage)
        if key not in rows:
            row = (np.full(shape[1], np.inf), np.full(shape[1], np.inf))
            for option in sorted(options, key=lambda o: (o.time_s, o.energy_j), reverse=True):
                column = menus[operation.stage].index(option.clock_mhz) if clocked[i] else 0
                row[0][column], row[1][column] = option.time_s, option.energy_j
            rows[key] = row
        time_s[i], energy_j[i] = rows[key]
    return time_s, energy_j


def run_of(track: Track) -> Run:
    """Room for one timeline."""
    count, places = len(track.stage), len(track.line)
    return Run(
        np.zeros(count),
        np.zeros(count),
        np.zeros(count),
        np.zeros(count, dtype=np.int64),
        np.full(count, -1.0),
        np.zeros(places),
        np.zeros(places, dtype=np.int64),
        np.ones(count),
        np.zeros(len(track.tails)),
    )


def columns_of(track: Track, clock_mhz: Sequence[int]) -> Ints | None:
    """Clocks as columns; None where a stage has no such clock."""
    asked: Ints = np.zeros(len(track.stage), dtype=np.int64)
    for i, mhz in enumerate(clock_mhz):
        if track.clocked[i]:
            stage = track.stage[i]
            column = int(np.searchsorted(track.clocks[stage, : track.columns[stage]], mhz))
            if column == track.columns[stage] or track.clocks[stage, column] != mhz:
                return None
            asked[i] = column
    return asked


def options_of(track: Track, run: Run) -> tuple[ClockOption, ...]:
    """What every operation ran at."""
    mhz = np.where(track.clocked, track.clocks[track.stage, run.column], ANY_CLOCK_MHZ)
    ran = zip(mhz.tolist(), run.duration.tolist(), run.energy.tolist(), strict=True)
    return tuple([ClockOption(clock_mhz, time_s, joules) for clock_mhz, time_s, joules in ran])


def changes_of(
    track: Track, limits: Limits, run: Run, asked: Ints
) -> tuple[tuple[Change, ...], ...]:
    """By stage, in time order."""
    result = []
    for stage, last in enumerate(track.last):
        found, now = [], int(asked[last])
        for i in track.line[track.line_at[stage] : track.line_at[stage + 1]].tolist():
            if run.asks[i] >= 0.0:
                mhz = track.clocks[stage, [now, asked[i]]].tolist()
                mark_s = float(run.asks[i])
                found.append(Change(i, mhz[0], mhz[1], mark_s, mark_s + limits.latency))
                now = int(asked[i])
        result.append(tuple(found))
    return tuple(result)
