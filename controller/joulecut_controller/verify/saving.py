"""What default clocks would have cost: measured from hold-out windows, with an honest interval.

A job's energy per iteration drifts (rooms warm up, sequences grow, somebody else loads the
switch), so the mean of all windows at default clocks says little about the mean of all under
a plan. Each hold-out is therefore compared with the plan's windows just before and just after
it, at its own time; whatever moves slowly cancels, and what does not shows as scatter.

The method, and where it comes from
* Switchback experiments with randomised order, the effect being the mean contrast: Bojinov,
  Simchi-Levi, Zhao, "Design and Analysis of Switchback Experiments", Management Science 69
  (2023). Carry-over is removed by the windows themselves: their warm-up is not in them.
* The contrast is the logarithm of a ratio, the plan's level being drawn as a straight line
  through its windows before and after: a linear drift cancels exactly. A step inside the
  neighbourhood moves one contrast by up to half its height, either way, and widens the interval.
* The interval is Student's for the mean of n contrasts. Where hold-outs follow so closely that
  they share neighbours, it is at least that of Newey and West (Econometrica 55, 1987).
* Temperature is *not* held constant: clocks that are lower make cooler GPUs, which leak less,
  and that is part of what was saved. The room's own temperature cancels as any drift does.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from joulecut_controller.verify.window import MeasuredWindow

CONFIDENCE = 0.95
HOLDOUTS_MIN = 3  # two differ by chance as little as they like, and Student's factor is 12.7
NEIGHBOURS = 2  # on each side: more would lower the variance by a tenth, and reach further
REACH_S = 3600.0  # what ran earlier or later says nothing about a hold-out of minutes;
REACH_SPANS = 4.0  # a longer one has its neighbours as many of its lengths away at most
WINDOW_S_MAX = 86_400.0  # longer, and a wall clock was set in the middle of it
NUMBER_MAX = 1e15  # joules or seconds of an iteration: more is damage, and breaks sums
OVERLAP_S = 1.0  # of neighbouring windows, by rounding
LOG_HALF_WIDTH_MAX = 0.35  # beyond minus thirty to plus forty per cent nothing was measured
# Hold-outs that share neighbours scatter together, by slow noise a little beyond them. So many
# lags, with the critical values of Kiefer and Vogelsang (Econometric Theory 21, 2005, Bartlett
# kernel, 97.5 %) by the lags' part of all values, which small samples need.
LAGS_PER_SHARED = 3
CHANCE_PAIRS_MAX = 0.2  # of pairs: at a share of 5 % one in forty meets by lot, at 20 % two in five
CRITICAL = (1.9600, 2.9694, 0.4160, -0.5324)
# A counter that moves in steps of 0.1 s leaves up to one of them at either end of a window:
# the difference of two uniform errors.
COUNTER_STEP_SD_S = 0.1 / math.sqrt(6.0)


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and where the truth lies in 95 of 100 such cases."""

    mid: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2.0


@dataclass(frozen=True, slots=True)
class Saving:
    """What one job saves in one shape. Ratios are fractions of what default clocks take.

    `saved_ratio` and `slowdown_ratio` are None where they cannot be told, and `reason` then
    says why. Energies and times are per iteration, of all the job's GPUs: with intervals
    those of the compared windows (geometric means, the plan's at the hold-outs' times),
    else plain means. `holdouts` counts contrasts, `windows_*` all usable windows, `unusable`
    those that hold no measurement or came twice. `days` is from the first to the last.
    """

    job: str
    shape: str
    gpus: int
    begun_unix_s: float
    ended_unix_s: float
    windows_default: int
    windows_plan: int
    holdouts: int = 0
    unusable: int = 0
    saved_ratio: Interval | None = None
    slowdown_ratio: Interval | None = None
    default_energy_j: float | None = None
    plan_energy_j: float | None = None
    default_time_s: float | None = None
    plan_time_s: float | None = None
    predicted_saved_ratio: float | None = None
    predicted_slowdown_ratio: float | None = None
    cooler_celsius: float | None = None  # by how much the GPUs are, under the plan
    reason: str = ""

    @property
    def days(self) -> float:
        return (self.ended_unix_s - self.begun_unix_s) / 86_400.0


def saving(windows: Iterable[MeasuredWindow]) -> Saving | None:
    """What one job saves, of any order of windows; of several shapes, in the newest.

    None where no window is usable.
    """
    found = by_shape(windows)
    return max(found, key=lambda one: one.ended_unix_s) if found else None


def by_shape(windows: Iterable[MeasuredWindow]) -> tuple[Saving, ...]:
    """One job's saving in each of its shapes, oldest first; windows of two are never compared."""
    given = tuple(windows)
    shapes: dict[str, list[MeasuredWindow]] = {}
    for window in given:
        shapes.setdefault(window.shape, []).append(window)
    found = []
    for of_shape in shapes.values():
        usable = usable_windows(of_shape)
        if usable:
            found.append(replace(_of_shape(usable), unusable=len(of_shape) - len(usable)))
    return tuple(sorted(found, key=lambda one: one.begun_unix_s))


def usable_windows(windows: Iterable[MeasuredWindow]) -> tuple[MeasuredWindow, ...]:
    """Those that hold a measurement, each once, by time."""
    unique = {
        (window.job, window.shape, window.arm, window.begun_unix_s, window.ended_unix_s): window
        for window in windows
        if 0.0 < window.energy_j < NUMBER_MAX
        and 0.0 < window.time_mean_s < NUMBER_MAX
        and window.iterations > 0
        and 0.0 < window.ended_unix_s - window.begun_unix_s <= WINDOW_S_MAX
    }
    return tuple(sorted(unique.values(), key=_mid_s))


@dataclass(frozen=True, slots=True)
class Contrast:
    """One hold-out against the plan at its time, as logarithms of plan over default.

    `level_*` are the hold-out's own logarithms; `span_s` is how long it was.
    """

    at_unix_s: float
    span_s: float
    energy_log: float
    time_log: float
    level_energy_log: float
    level_time_log: float
    cooler_celsius: float | None
    neighbours_unix_s: tuple[float, float]  # the middle of the first, and of the last


def contrasts(windows: Sequence[MeasuredWindow]) -> tuple[Contrast, ...]:
    """Every hold-out of one shape that has windows of a plan on both sides, by time.

    `windows` as `usable_windows` gives them.
    """
    plan = [window for window in windows if window.arm == "plan"]
    mids_s = [_mid_s(window) for window in plan]
    found = []
    for held in _holdouts(windows):
        begun_s, ended_s = held[0].begun_unix_s, max(window.ended_unix_s for window in held)
        middle_s = _mean([_mid_s(window) for window in held])
        place = bisect_left(mids_s, middle_s)
        reach_s = max(REACH_S, REACH_SPANS * (ended_s - begun_s))
        before = [
            window
            for window in reversed(plan[max(0, place - 2 * NEIGHBOURS) : place])
            if begun_s - reach_s <= _mid_s(window) and window.ended_unix_s <= begun_s + OVERLAP_S
        ][:NEIGHBOURS]
        after = [
            window
            for window in plan[place : place + 2 * NEIGHBOURS]
            if _mid_s(window) <= ended_s + reach_s and window.begun_unix_s >= ended_s - OVERLAP_S
        ][:NEIGHBOURS]
        if before and after:
            found.append(_contrast(held, before, after, middle_s))
    return tuple(found)


def _contrast(
    held: Sequence[MeasuredWindow],
    before: Sequence[MeasuredWindow],
    after: Sequence[MeasuredWindow],
    middle_s: float,
) -> Contrast:
    earlier_s = _mean([_mid_s(window) for window in before])
    later_s = _mean([_mid_s(window) for window in after])
    share = (middle_s - earlier_s) / (later_s - earlier_s)

    def at_holdout(first: Sequence[float], second: Sequence[float]) -> float:
        return (1.0 - share) * _mean(first) + share * _mean(second)

    level_energy = _mean([math.log(window.energy_j) for window in held])
    level_time = _mean([math.log(window.time_mean_s) for window in held])
    warmth = [
        [w.temperature_celsius for w in side if w.temperature_celsius is not None]
        for side in (before, after, held)
    ]
    return Contrast(
        at_unix_s=middle_s,
        neighbours_unix_s=(_mid_s(before[-1]), _mid_s(after[-1])),
        span_s=sum(window.ended_unix_s - window.begun_unix_s for window in held),
        energy_log=at_holdout(
            [math.log(window.energy_j) for window in before],
            [math.log(window.energy_j) for window in after],
        )
        - level_energy,
        time_log=at_holdout(
            [math.log(window.time_mean_s) for window in before],
            [math.log(window.time_mean_s) for window in after],
        )
        - level_time,
        level_energy_log=level_energy,
        level_time_log=level_time,
        cooler_celsius=(
            _mean(warmth[2]) - at_holdout(warmth[0], warmth[1]) if all(warmth) else None
        ),
    )


def _holdouts(windows: Sequence[MeasuredWindow]) -> list[list[MeasuredWindow]]:
    """Windows at default clocks, those that follow each other in one piece together."""
    pieces: list[list[MeasuredWindow]] = []
    before: MeasuredWindow | None = None
    for window in windows:
        if window.arm == "default":
            joined = (
                before is not None
                and before.arm == "default"
                and window.begun_unix_s - before.ended_unix_s <= REACH_S
            )
            if joined:
                pieces[-1].append(window)
            else:
                pieces.append([window])
        before = window
    return pieces


def _of_shape(windows: Sequence[MeasuredWindow]) -> Saving:
    arms = {arm: [window for window in windows if window.arm == arm] for arm in ("default", "plan")}
    bare = Saving(
        job=windows[-1].job,
        shape=windows[-1].shape,
        gpus=windows[-1].gpus,
        begun_unix_s=min(window.begun_unix_s for window in windows),
        ended_unix_s=max(window.ended_unix_s for window in windows),
        windows_default=len(arms["default"]),
        windows_plan=len(arms["plan"]),
        default_energy_j=weighted(arms["default"], [w.energy_j for w in arms["default"]]),
        plan_energy_j=weighted(arms["plan"], [w.energy_j for w in arms["plan"]]),
        default_time_s=weighted(arms["default"], [w.time_mean_s for w in arms["default"]]),
        plan_time_s=weighted(arms["plan"], [w.time_mean_s for w in arms["plan"]]),
        predicted_saved_ratio=_predicted(arms["default"], arms["plan"], "predicted_energy_j", -1.0),
        predicted_slowdown_ratio=_predicted(arms["default"], arms["plan"], "predicted_time_s", 1.0),
    )
    if not arms["default"]:
        return replace(
            bare, reason="no hold-out window yet: nothing was measured at default clocks"
        )
    if not arms["plan"]:
        return replace(bare, reason="no window under a plan yet")
    found = contrasts(windows)
    if len(found) < HOLDOUTS_MIN:
        reason = (
            f"{len(found)} hold-outs with windows of a plan before and after, "
            f"{HOLDOUTS_MIN} are needed"
        )
        return replace(bare, holdouts=len(found), reason=reason)
    return _estimated(bare, found)


def _estimated(bare: Saving, found: Sequence[Contrast]) -> Saving:
    floor = _mean([COUNTER_STEP_SD_S / contrast.span_s for contrast in found])
    shared = _shared(found)
    energy = _student(np.array([contrast.energy_log for contrast in found]), floor, shared)
    time = _student(np.array([contrast.time_log for contrast in found]), 0.0, shared)
    cooler = [c.cooler_celsius for c in found if c.cooler_celsius is not None]
    bare = replace(bare, holdouts=len(found), cooler_celsius=_mean(cooler) if cooler else None)
    if max(energy.half_width, time.half_width) > LOG_HALF_WIDTH_MAX:
        reason = (
            f"{len(found)} hold-outs that differ too much: energy to "
            f"{math.expm1(energy.half_width):.0%}, time to {math.expm1(time.half_width):.0%}"
        )
        return replace(bare, reason=reason)
    level_energy = _mean([contrast.level_energy_log for contrast in found])
    level_time = _mean([contrast.level_time_log for contrast in found])
    return replace(
        bare,
        saved_ratio=Interval(
            -math.expm1(energy.mid), -math.expm1(energy.high), -math.expm1(energy.low)
        ),
        slowdown_ratio=Interval(math.expm1(time.mid), math.expm1(time.low), math.expm1(time.high)),
        default_energy_j=math.exp(level_energy),
        plan_energy_j=math.exp(level_energy + energy.mid),
        default_time_s=math.exp(level_time),
        plan_time_s=math.exp(level_time + time.mid),
    )


def _shared(found: Sequence[Contrast]) -> int:
    """Of how many contrasts after one the first neighbour is not after its last, on average and
    rounded up, but for a few that chance brought together.
    """
    pairs = sum(
        later.neighbours_unix_s[0] <= one.neighbours_unix_s[1]
        for place, one in enumerate(found)
        for later in found[place + 1 : place + 1 + 2 * NEIGHBOURS]
    )
    return math.ceil(pairs / len(found) - CHANCE_PAIRS_MAX)


def _student(
    values: "np.ndarray[tuple[int], np.dtype[np.float64]]", floor_sd: float, shared: int
) -> Interval:
    """The mean with its interval. `floor_sd` is the least a single value scatters; `shared` is
    how many of the values that follow one have neighbours in common with it.
    """
    count = len(values)
    mid = float(values.mean())
    off = values - mid
    plain = float(off @ off) / (count - 1)
    half = _student_factor(count) * math.sqrt(max(plain, floor_sd**2) / count)
    lags = min(count // 3, LAGS_PER_SHARED * shared)
    if lags:
        serial = (
            float(off @ off)
            + 2.0
            * sum(
                (1.0 - lag / (lags + 1.0)) * float(off[lag:] @ off[:-lag])
                for lag in range(1, lags + 1)
            )
        ) / count
        part = (lags + 1.0) / count
        factor = CRITICAL[0] + part * (CRITICAL[1] + part * (CRITICAL[2] + part * CRITICAL[3]))
        half = max(half, factor * math.sqrt(max(serial, 0.0) / count))
    return Interval(mid, mid - half, mid + half)


def _student_factor(count: int) -> float:
    return float(stdtrit(count - 1, (1.0 + CONFIDENCE) / 2.0))


def _predicted(
    default: Sequence[MeasuredWindow], plan: Sequence[MeasuredWindow], name: str, sign: float
) -> float | None:
    """Plan over default less one, as predicted for the windows that were run; or less it."""
    sides = []
    for arm in (default, plan):
        told = [window for window in arm if (getattr(window, name) or 0.0) > 0.0]
        sides.append(weighted(told, [getattr(window, name) for window in told]))
    if sides[0] is None or sides[1] is None:
        return None
    return sign * (sides[1] / sides[0] - 1.0)


def weighted(windows: Sequence[MeasuredWindow], values: Sequence[float]) -> float | None:
    """The mean over iterations; None of nothing."""
    count = sum(window.iterations for window in windows)
    if not count:
        return None
    pairs = zip(windows, values, strict=True)
    return math.fsum(window.iterations * value for window, value in pairs) / count


def _mid_s(window: MeasuredWindow) -> float:
    return (window.begun_unix_s + window.ended_unix_s) / 2.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
