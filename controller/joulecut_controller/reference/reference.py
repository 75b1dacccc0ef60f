"""The reference of one phase of a job: the time that default clocks would take now.

    y = b + s(c) + g w + e          log time of an iteration under the setting c
    x = m + beta(c) + v             log inferred work as its operations show it; w = x - beta(c)

`b` is the log time at default clocks, a random walk whose speed is estimated. `s(c)` is the effect
of a setting on iterations and `beta(c)` that on operations; both hardly move, and begin at the
planner's prediction, with a scale that all predictions share. `g` is the weight that work has
earned, `m` the usual work, `e` correlated neighbours. It is linear and Gaussian, so a Kalman filter
of a few numbers answers (Durbin and Koopman, "Time Series Analysis by State Space Methods", 2012,
chapter 4). One test finds jumps (Page, "Continuous Inspection Schemes", Biometrika 1954): it opens
the variance of `b`.

Pure: the same chunks give the same answers. Times are monotonic seconds, figures logarithms.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.chunk import DEFAULT, Chunk, Setting, Timed
from joulecut_controller.reference.noise import SDS_MAX, Noise

Floats = NDArray[np.float64]

# Room in a budget that is as good as none, and what counts for no less of a larger budget: default
# clocks would be measured all the time.
ROOM_MIN, ROOM_SHARE = 0.0045, 0.15
ROOM_PART = 3.0  # of the room: what the standard error may be
WALK_PER_S = 0.005**2 / 3600.0  # of b, at least: half a percent an hour, a room that warms up
EFFECT_SHARE = 0.25  # of that walk, of each effect: heat lowers default clocks and no others
WORK_WALK_PER_S = 0.02**2 / 3600.0  # of m: sequences grow
WALK_KNOWN_S = 300.0  # the least walk counts as one that was seen for so long, a window apart
WALKED_MAX = 0.03  # between two runs at default clocks: more is a jump
WALK_FADE = 0.7  # of what earlier runs at default clocks say of the walk: three of them count
LATE_SDS = 2.0  # one false alarm in forty independent ones, and it only raises clocks
SETTINGS_KEPT = 8  # effects; the one not seen for longest is forgotten
SCALE_SD = 0.5  # of all predicted slowdowns together: a profile's slope may be of another batch
EFFECT_SD = 0.005  # of one predicted slowdown beside that
EFFECT_UNKNOWN_SD = 0.1  # of one that nothing predicts
# Standard error of the effect on operations. The first holds where only the effect on iterations is
# predicted. Predicted curves of operations miss public sweeps by half a percent beside a common
# slope: the second is twice that.
OPERATIONS_SD, OPERATIONS_KNOWN_SD = 0.05, 0.01
UNKNOWN_SD = 3.0  # of b and m before the first iteration
# After so many iterations the filter begins, and begins again: their noise is known better by then.
BEGINS = (8, 16, 32, 64)
# Half a standard deviation is no jump. A sum of eight beyond that is no accident: once in some
# 10,000 independent iterations (Siegmund, "Sequential Analysis", 1985, section 2.4).
CUSUM_DRIFT, CUSUM_ALARM = 0.5, 8.0
CUSUM_STEP = CUSUM_ALARM / 2.5  # of one iteration: one or two long ones are a hiccup
JUMP_MIN = 0.01  # a fifth of a usual budget
CLOCKS_SHARE = 0.5  # of a jump under lowered clocks: so much of it may be the clocks' doing


@dataclass(frozen=True, slots=True)
class Figure:
    """A logarithm with its standard error."""

    mean: float
    sd: float


def walked_sd(lasted_s: float) -> float:
    """How far the level of an unknown job may have walked in so long, at least."""
    return math.sqrt(WALK_PER_S * lasted_s)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the reference says now of the phase and of the setting in force. `default` is the log
    time in seconds at default clocks, `slowdown` that of the setting over it at equal work,
    `scale` the part of predicted slowdowns that comes true. `moved` is the sum of all jumps.
    """

    default: Figure
    slowdown: Figure
    scale: Figure = Figure(1.0, SCALE_SD)
    setting: Setting = DEFAULT
    settings: Mapping[Setting, Figure] = field(default_factory=dict)  # slowdowns of those that ran
    level_sd: float = 0.0  # of `default` at the work of its measurements
    moved: float = 0.0

    def doubt(self, budget: float) -> str:
        """Why default clocks should be measured now; empty where they are known well enough.
        `budget` is the log slowdown that the policy allows.
        """
        room = max(budget - self.slowdown.mean, ROOM_MIN, ROOM_SHARE * budget)
        if self.level_sd <= room / ROOM_PART:
            return ""
        return f"they are known to ±{self.level_sd:.2%}, and {room:.2%} are left of the budget"


@dataclass(frozen=True, slots=True)
class _Effect:
    """What is predicted of a setting: log slowdown of iterations with its standard error, and of
    operations, None where only iterations are predicted.
    """

    log: float
    sd: float
    operations: float | None = None


@dataclass(frozen=True, slots=True)
class _State:
    """Means and covariance; b is column 0, m 1, the scale 2, then two columns a setting."""

    x: Floats
    p: Floats
    columns: Mapping[Setting, int]
    at_s: float

    def row(self, setting: Setting, weight: float) -> Floats | None:
        """Of y - g x under a setting; None where it is not known."""
        row = np.zeros(len(self.x))
        row[0] = 1.0
        if setting != DEFAULT:
            column = self.columns.get(setting)
            if column is None:
                return None
            row[column], row[column + 1] = 1.0, -weight
        return row

    def work_row(self, setting: Setting) -> Floats:
        row = np.zeros(len(self.x))
        row[1] = 1.0
        if setting != DEFAULT:
            row[self.columns[setting] + 1] = 1.0
        return row

    def figure(self, row: Floats) -> Figure:
        return Figure(float(row @ self.x), math.sqrt(max(0.0, float(row @ self.p @ row))))

    def aged(self, walk: float, at_s: float) -> "_State":
        """The same at a later time."""
        gap_s = max(0.0, at_s - self.at_s)
        more = np.zeros(len(self.x))
        more[0], more[1] = walk * gap_s, WORK_WALK_PER_S * gap_s
        more[list(self.columns.values())] = EFFECT_SHARE * walk * gap_s
        return _State(self.x, self.p + np.diag(more), self.columns, max(at_s, self.at_s))

    def seen(self, row: Floats, value: float, variance: float) -> "_State":
        """With one more measurement."""
        gain_of = self.p @ row
        gain = gain_of / (float(row @ gain_of) + variance)
        x = self.x + gain * (value - float(row @ self.x))
        return _State(x, self.p - np.outer(gain, gain_of), self.columns, self.at_s)

    def opened(self, jump: float, setting: Setting) -> "_State":
        """With a level that has jumped by about so much."""
        more = np.zeros(len(self.x))
        more[0] = jump**2
        if setting != DEFAULT:
            more[self.columns[setting]] = (CLOCKS_SHARE * jump) ** 2
        return _State(self.x, self.p + np.diag(more), self.columns, self.at_s)

    def with_setting(self, setting: Setting, effect: "_Effect") -> "_State":
        """With a setting of a predicted slowdown. The one not seen for longest goes for it."""
        if len(self.columns) >= SETTINGS_KEPT:
            return self.without(next(iter(self.columns))).with_setting(setting, effect)
        n = len(self.x)
        # The new columns over the scale: a wrong slope moves iterations and operations together.
        over = np.zeros((n + 2, n))
        over[:n] = np.eye(n)
        over[n, 2], over[n + 1, 2] = effect.log, effect.operations or 0.0
        p = over @ self.p @ over.T
        p[n, n] += effect.sd**2
        known = effect.operations is not None
        p[n + 1, n + 1] += (OPERATIONS_KNOWN_SD if known else OPERATIONS_SD) ** 2
        x = over @ self.x
        x[n + 1] = x[n + 1] if known else effect.log
        return _State(x, p, {**self.columns, setting: n}, self.at_s)

    def without(self, setting: Setting) -> "_State":
        at = self.columns[setting]
        keep = [i for i in range(len(self.x)) if i not in (at, at + 1)]
        left = {s: c - 2 if c > at else c for s, c in self.columns.items() if s != setting}
        return _State(self.x[keep], self.p[np.ix_(keep, keep)], left, self.at_s)

    def newest(self, setting: Setting) -> "_State":
        """With a setting last in order, so that others are forgotten before it."""
        if setting == DEFAULT or next(reversed(self.columns)) == setting:
            return self
        others = {s: c for s, c in self.columns.items() if s != setting}
        return _State(self.x, self.p, {**others, setting: self.columns[setting]}, self.at_s)


def _unknown() -> tuple[Floats, Floats]:
    """Means and covariance before any iteration."""
    return np.array([0.0, 0.0, 1.0]), np.diag([UNKNOWN_SD**2, UNKNOWN_SD**2, SCALE_SD**2])


class Reference:
    """The filter. `take` chunks in the order of their times."""

    def __init__(self) -> None:
        self._state = _State(*_unknown(), {}, -math.inf)
        self._noise = Noise()
        self._setting: Setting = DEFAULT
        self._early: list[Chunk] = []  # until their noise is known
        self._predicted: dict[Setting, _Effect] = {}
        self._recalled: tuple[float, float] | None = None
        self._walk = WALK_PER_S
        self._walked = (0.0, 0.0)  # squares of what default clocks showed, and seconds they took
        self._left: _State | None = None  # when default clocks ended
        self._shown: list[float] = []  # of the present run at default clocks
        self._counted = 0  # iterations
        self._seen: set[Setting] = set()  # settings that ran, others are only predicted
        self._cusum = _Cusum()
        self._calm: _State | None = None  # while no jump is in sight
        self.moved = 0.0  # the sum of all jumps

    @property
    def ready(self) -> bool:
        return math.isfinite(self._state.at_s)

    def recall(self, log_s: float, sd: float) -> None:
        """Default clocks as an earlier controller measured them, with their doubt by now. Call it
        before the first chunk.
        """
        self._recalled = log_s, sd

    def predict(
        self,
        setting: Setting,
        slowdown_log: float,
        sd: float = EFFECT_SD,
        operations_log: float | None = None,
    ) -> None:
        """The prediction for a setting that will run: log slowdown of iterations with its standard
        error, and of single operations where their curves are known.
        """
        if setting != DEFAULT and setting not in self._state.columns:
            effect = _Effect(slowdown_log, sd, operations_log)
            self._state = self._state.with_setting(setting, effect)
            if self._counted < BEGINS[-1]:
                self._predicted[setting] = effect

    def forget_effects(self) -> None:
        """A GPU works at another pace than before: each setting slows the job by another part."""
        for setting in self._state.columns:
            self._state = self._state.without(setting)
        self._calm = self._left = None
        self._seen.clear()
        self._predicted.clear()

    def answer(self, setting: Setting) -> Answer:
        scale = Figure(float(self._state.x[2]), math.sqrt(float(self._state.p[2, 2])))
        level_sd = math.sqrt(float(self._state.p[0, 0]))
        return Answer(
            self.default_now(),
            self.slowdown(setting),
            scale,
            setting,
            {known: self.slowdown(known) for known in self._state.columns if known in self._seen},
            level_sd,
            self.moved,
        )

    def default_now(self) -> Figure:
        """Log seconds of an iteration at default clocks, at the usual work of now."""
        row = np.zeros(len(self._state.x))
        row[0], row[1] = 1.0, self._noise.weight
        return self._state.figure(row)

    def slowdown(self, setting: Setting) -> Figure:
        """Log time of these clocks over that of default clocks, at equal work."""
        if setting == DEFAULT:
            return Figure(0.0, 0.0)
        column = self._state.columns.get(setting)
        if column is None:
            return Figure(0.0, EFFECT_UNKNOWN_SD)
        row = np.zeros(len(self._state.x))
        row[column] = 1.0
        return self._state.figure(row)

    # -- chunks ----------------------------------------------------------------------------

    def take(self, chunk: Chunk) -> None:
        before, self._counted = self._counted, self._counted + len(chunk.iterations)
        if before < BEGINS[-1]:
            self._early.append(chunk)
            if any(before < count <= self._counted for count in BEGINS):
                self._begin_early()
                return
        else:
            self._early.clear()
            self._predicted.clear()
        if self.ready:
            if chunk.setting != self._setting:
                self._noise.begin()
            for one in chunk.iterations:
                self._noise.take(one.log_s, one.work_log or 0.0)
            self._take(chunk)

    def _begin_early(self) -> None:
        """The filter over the first iterations, with their noise as it is known by now."""
        known = [one for chunk in self._early for one in chunk.iterations]
        self._noise, setting = Noise.of([one.log_s for one in known]), self._early[0].setting
        for chunk in self._early:
            if chunk.setting != setting:
                self._noise.begin()
            setting = chunk.setting
            for one in chunk.iterations:
                self._noise.take(one.log_s, one.work_log or 0.0)
        state = _State(*_unknown(), {}, -math.inf)
        if self._recalled is not None:
            state = state.seen(np.eye(3)[0], self._recalled[0], self._recalled[1] ** 2)
        self._begin(state)
        self._left = None
        self._setting, self.moved = DEFAULT, 0.0
        self._shown.clear()
        for setting, effect in self._predicted.items():
            self._state = self._state.with_setting(setting, effect)
        for chunk in self._early:
            self._take(chunk)

    def _take(self, chunk: Chunk) -> None:
        self.predict(chunk.setting, 0.0, EFFECT_UNKNOWN_SD)
        if chunk.setting != self._setting:
            self._change(chunk.setting)
        if math.isinf(self._state.at_s):
            self._state = _State(self._state.x, self._state.p, self._state.columns, chunk.at_s)
        self._state = self._state.aged(self._walk, chunk.at_s).newest(chunk.setting)
        self._seen = (self._seen | {chunk.setting}) & self._state.columns.keys()
        counted: list[Timed] = []
        for one in chunk.iterations:
            beyond, sd = self._beyond(one)
            if abs(beyond) <= SDS_MAX * sd:
                counted.append(one)
            if math.isfinite(sd) and self._has_jumped(one, beyond, sd):
                counted.clear()
        if counted:
            self._update(counted)

    def _weight(self, one: Timed) -> float:
        return self._noise.weight if one.work_log is not None else 0.0

    def _level(self, one: Timed) -> float:
        """y - g x"""
        return one.log_s - self._weight(one) * (one.work_log or 0.0)

    def _update(self, counted: list[Timed]) -> None:
        """The state with the mean of some iterations."""
        first, count = counted[0], len(counted)
        level = math.fsum(map(self._level, counted)) / count
        row = self._state.row(self._setting, self._weight(first))
        assert row is not None
        self._state = self._state.seen(row, level, self._noise.of_time / count)
        if self._setting == DEFAULT:
            self._shown.extend(map(self._level, counted))
        works = [one.work_log for one in counted if one.work_log is not None]
        if works:
            row = self._state.work_row(self._setting)
            work = math.fsum(works) / len(works)
            self._state = self._state.seen(row, work, self._noise.of_work / len(works))

    def _change(self, setting: Setting) -> None:
        """Other clocks than before."""
        if self._setting == DEFAULT:
            self._learn_walk()
            self._left = self._state
        self._setting = setting
        self._shown.clear()
        self._cusum = _Cusum()

    def _learn_walk(self) -> None:
        """How fast the level walks, from what a run at default clocks showed beyond its doubt."""
        left, shown = self._left, self._shown
        if left is None or not shown:
            return
        moved = math.fsum(shown) / len(shown) - float(left.x[0])
        known = float(left.p[0, 0]) + self._noise.of_time / len(shown)
        squares, lasted_s = self._walked
        self._walked = (
            WALK_FADE * squares + min(moved**2, WALKED_MAX**2) - known,
            WALK_FADE * lasted_s + self._state.at_s - left.at_s,
        )
        squares, lasted_s = self._walked
        self._walk = max(WALK_PER_S, squares / (WALK_KNOWN_S + lasted_s))

    # -- jumps -----------------------------------------------------------------------------

    def _beyond(self, one: Timed) -> tuple[float, float]:
        """By how much an iteration is off the level, and the standard deviation of that; infinite
        while the level is being measured.
        """
        row = self._state.row(self._setting, self._weight(one))
        assert row is not None
        expected, noise = self._state.figure(row), self._noise.of_time
        known = expected.sd**2 <= noise
        sd = math.hypot(expected.sd, math.sqrt(noise)) if known else math.inf
        return self._level(one) - expected.mean, sd

    def _has_jumped(self, one: Timed, beyond: float, sd: float) -> bool:
        """Opens the level where iterations have left it, to what they show."""
        if self._cusum.calm:
            self._calm = self._state
        jump = self._cusum.take(beyond, sd)
        if jump is None:
            return False
        calm = self._calm if self._calm and self._calm.columns == self._state.columns else None
        state = calm or self._state
        row = state.row(self._setting, self._weight(one))
        assert row is not None
        # Level and effect together are known now, by two iterations at least.
        shown, variance = state.figure(row).mean + jump, self._noise.of_time / 2.0
        self._begin(state.opened(jump, self._setting).seen(row, shown, variance))
        if self._setting != DEFAULT:  # at default clocks it may be a walk seen at last
            self._left = None
        self.moved += jump
        return True

    def _begin(self, state: _State) -> None:
        """Another level."""
        self._state, self._calm, self._cusum = state, None, _Cusum()


class _Cusum:
    """Cumulative sums of what iterations are beyond a level, upwards and downwards."""

    def __init__(self) -> None:
        self._sums = [0.0, 0.0]
        self._runs: tuple[list[float], list[float]] = ([], [])

    @property
    def calm(self) -> bool:
        return self._sums == [0.0, 0.0]

    def take(self, beyond: float, sd: float) -> float | None:
        """The jump, where there is one."""
        drift = max(CUSUM_DRIFT, JUMP_MIN / 2.0 / sd)
        for side, sign in enumerate((1.0, -1.0)):
            step = min(sign * beyond / sd - drift, CUSUM_STEP)
            self._sums[side] = max(0.0, self._sums[side] + step)
            if self._sums[side] == 0.0:
                self._runs[side].clear()
            else:
                self._runs[side].append(beyond)
            if self._sums[side] > CUSUM_ALARM:
                return _newest_mean(self._runs[side])
        return None


def _newest_mean(run: Sequence[float]) -> float:
    """Mean of the newest values, since the most likely point of change among them."""
    total, best, found = 0.0, 0.0, 0.0
    for count, value in enumerate(reversed(run), 1):
        total += value
        if abs(total) / math.sqrt(count) > best:
            best, found = abs(total) / math.sqrt(count), total / count
    return found
