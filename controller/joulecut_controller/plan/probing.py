"""Where to measure next while a job runs in production, and when there is nothing to learn.

Nobody profiles this job: what its GPUs do at other clocks is learnt from the job itself, so
each measurement is a promise kept or broken. Hence one stage at a time, one short step below
what was measured, and only where even the upper band keeps the deadline. What is well inside
the evidence may change at once. Pure: readings and the facts of a pass go in, advice comes out.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from joulecut_controller.plan.advice import Advice, Verdict
from joulecut_controller.plan.search import Floats, cheapest
from joulecut_controller.policy.policy import Slo
from joulecut_controller.predict.rate import Ground, RateModel, Reading

# One step below the lowest clock measured: 60 MHz on A100, 75 on A40. Power changes by 5-8 %
# and time by up to 4 % within it, which a window of 50 iterations sees.
STEP_RATIO = 0.045
# The upper band of iteration times between measured ones: late in one case of six, by little,
# and put right.
DOUBTS_TIME = 1.0
# Clocks to stay at are entered with more distance, so that the noise of a window, or that of the
# baseline that the deadline is a ratio of, does not hide windows late one after another ...
DOUBTS_SETTLE = 1.5
DOUBTS_WORST = 2.0  # of what the worst case of a probe starts from
DOUBTS_LATE = 0.5  # ... and are left at the first window that is likelier late than not
# A stage may turn out to be the one that all wait for. Even then one window is late by no more
# than this; the mean of the guess must keep the deadline without it.
OVER_RATIO = 0.0045
ROOM_STEPS = 4  # clocks by which another stage is raised to make room for a probe
# Less than this of the job's energy is under the noise of a window's energy counters.
GAIN_MIN = 0.0015
# A step that promises nothing on the mean, and this much if the guess is one standard
# deviation too gloomy, is worth a window.
HOPE_MIN = 0.004
HOPE_STEPS = 5
DOUBTS_HOPE = 2.0  # before giving up, a guess of the time may be so much too gloomy
# A stage is supposed to have so much less work than the fit takes it to have.
LIGHTER_RATIOS = (0.06, 0.02)
SUPPOSED_MIN = 0.002  # what that has to promise
SUPPOSED_STEPS = 6  # clocks by which others are raised to try it
# Parts of the room between default and deadline to aim at, while the upper band breaks it.
ROOM_PARTS = (1.0, 0.97, 0.93, 0.88, 0.8, 0.7, 0.5, 0.3)
# The deadline is a ratio of the baseline, so its error is every later window's: less than a
# hundredth of a usual budget, or eight windows of a job that is noisier than that.
BASELINE_STDERR_MAX = 0.0003
BASELINE_WINDOWS_MAX = 8
SURE = 1e-9


@dataclass(frozen=True, slots=True)
class Facts:
    """What holds in this pass. `grids` are the clocks allowed by stage, ascending, the last one
    the default; `now_mhz` what runs. `alike` numbers the kinds of GPU by stage: what was
    measured on one speaks for the others of its kind.
    """

    ground: Ground
    grids: tuple[tuple[int, ...], ...]
    now_mhz: tuple[int, ...]
    slo: Slo
    window_iterations: int
    alike: tuple[int, ...]
    host_power_w: float = 0.0  # per GPU


def advise(facts: Facts, readings: tuple[Reading, ...], model: RateModel | None) -> Advice:
    """The next step. `model` is the fit to `readings`; None while there are none."""
    default = _of(readings, facts.ground.default_mhz)
    if default is None and facts.now_mhz != facts.ground.default_mhz:
        reason = "the baseline has to be measured again"
        return Advice("raise", reason, facts.ground.default_mhz)
    if default is None or model is None:
        return _measure(facts, readings, "no window at default clocks yet: measuring the baseline")
    rough = default.stderr_ratio > BASELINE_STDERR_MAX and len(readings) == 1
    if rough and default.iterations < BASELINE_WINDOWS_MAX * facts.window_iterations:
        known = f"±{default.stderr_ratio:.2%} after {default.iterations} iterations"
        return _measure(facts, readings, f"measuring the baseline more closely: {known}")
    if _of(readings, facts.now_mhz) is None:
        return _measure(
            facts,
            readings,
            f"measuring {_clocks(facts.now_mhz)} MHz over {facts.window_iterations} iterations",
        )
    return _Step(facts, readings, model, default).advice()


def _of(readings: tuple[Reading, ...], clocks_mhz: tuple[int, ...]) -> Reading | None:
    return next((reading for reading in readings if reading.clocks_mhz == clocks_mhz), None)


def _measure(facts: Facts, readings: tuple[Reading, ...], reason: str) -> Advice:
    return Advice(
        "measure", reason, facts.now_mhz, lowest_mhz=_lowest(readings), readings=len(readings)
    )


def _lowest(readings: tuple[Reading, ...]) -> tuple[int, ...]:
    """The lowest clock measured, by stage."""
    return tuple(map(min, zip(*(reading.clocks_mhz for reading in readings), strict=True)))


class _Step:
    """One decision; holds what all its questions share."""

    def __init__(
        self, facts: Facts, readings: tuple[Reading, ...], model: RateModel, default: Reading
    ) -> None:
        self._facts, self._model, self._readings = facts, model, readings
        self._default = default
        self._base_s, self._base_doubt = default.time_s, default.stderr_ratio
        self._deadline_s = facts.slo.deadline_s(default.time_s)
        self._lowest = _lowest(readings)
        self._grids = tuple(
            self._within_reach(stage, grid) for stage, grid in enumerate(facts.grids)
        )

    def _within_reach(self, stage: int, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Clocks not further below the evidence than one step, or as low as its likes went."""
        facts = self._facts
        step_mhz = STEP_RATIO * facts.ground.clock_max_mhz
        likes = [
            low
            for low, kind in zip(self._lowest, facts.alike, strict=True)
            if kind == facts.alike[stage]
        ]
        floor_mhz = min(self._lowest[stage] - step_mhz, *likes)
        return tuple(mhz for mhz in grid if mhz >= floor_mhz) or grid[-1:]

    def advice(self) -> Advice:
        now, default = self._facts.now_mhz, self._facts.ground.default_mhz
        now_s, now_j = self._judge_one(now)
        held = _of(self._readings, now)
        if held is not None:  # what was measured is not smoothed away
            now_s = max(now_s, held.time_s)
        if now != default:
            now_s *= 1.0 + DOUBTS_LATE * self._doubt(now)
        if self._base_s > self._deadline_s:
            reason = f"target unreachable: default clocks give {self._base_s:.4g} s an iteration"
            return self._answer("raise" if now != default else "enough", reason, default)
        if now_s > self._deadline_s * (1.0 + SURE):
            reason = f"{now_s:.4g} s an iteration, {self._deadline_s:.4g} s allowed"
            return self._answer("raise", reason, self._proven())
        safe = self._safe()
        gain = 1.0 - self._judge_one(safe)[1] / now_j
        probe = self._probe(now_j)
        if gain >= GAIN_MIN and (probe is None or gain >= probe.gain_ratio):
            return self._answer(
                "settle", f"{gain:.1%} less energy, within the evidence", safe, gain
            )
        return probe or self._supposed() or self._enough(gain)

    # -- targets -----------------------------------------------------------------------------

    def _judge(self, clocks: Floats) -> tuple[Floats, Floats]:
        time_s = self._model.time_s(clocks)
        host_w = self._facts.host_power_w * self._facts.ground.pipeline.stages
        return time_s, self._model.energy_j(clocks).sum(axis=1) + host_w * time_s

    def _judge_one(self, clocks_mhz: tuple[int, ...]) -> tuple[float, float]:
        time_s, cost_j = self._judge(np.array([clocks_mhz], dtype=np.float64))
        return float(time_s[0]), float(cost_j[0])

    def _doubt(self, clocks_mhz: tuple[int, ...]) -> float:
        """Standard deviation of the slowdown, the baseline's included."""
        rows = np.array([clocks_mhz], dtype=np.float64)
        return float(np.hypot(self._model.time_doubt(rows)[0], self._base_doubt))

    def _high_s(self, clocks_mhz: tuple[int, ...], doubts: float = DOUBTS_TIME) -> float:
        """Upper band of the iteration time between measured clocks."""
        return self._judge_one(clocks_mhz)[0] * (1.0 + doubts * self._doubt(clocks_mhz))

    def _worst_s(self, clocks_mhz: tuple[int, ...]) -> float:
        """The iteration time if the stage lowered most were the one waited for, and all its work
        followed the clock. No work slows more than its clock, and longest paths are monotone
        and homogeneous: so every reading is a bound, whatever the card, and the least counts;
        as is the upper band at the nearest clocks within the evidence.
        """
        inside = tuple(map(max, zip(clocks_mhz, self._lowest, strict=True)))
        worst_s = self._high_s(inside, DOUBTS_WORST) * self._stretch(inside, clocks_mhz)
        for reading in self._readings:
            sure_s = reading.time_s * (1.0 + DOUBTS_WORST * self._apart(reading))
            worst_s = min(worst_s, sure_s * self._stretch(reading.clocks_mhz, clocks_mhz))
        return worst_s

    def _stretch(self, from_mhz: tuple[int, ...], to_mhz: tuple[int, ...]) -> float:
        """How much longer operations take at most after this change; at least 1. Clocks above
        what a power cap leaves are all the same.
        """
        pairs = zip(from_mhz, to_mhz, self._model.default_mhz, strict=True)
        return max(1.0, *(min(was, top) / min(mhz, top) for was, mhz, top in pairs))

    def _fits(self, clocks_mhz: tuple[int, ...], *, hopeful: bool = False) -> bool:
        """The upper band keeps the deadline; beyond the evidence the band is the worst case, and
        the mean has to keep the deadline, or may do so where one is hopeful.
        """
        if clocks_mhz == self._facts.ground.default_mhz:
            return True
        if self._worst_s(clocks_mhz) > self._deadline_s * (1.0 + OVER_RATIO):
            return False
        if self._known(clocks_mhz):
            return self._high_s(clocks_mhz, DOUBTS_SETTLE) <= self._deadline_s
        rows = np.array([clocks_mhz], dtype=np.float64)
        doubt = DOUBTS_HOPE * float(self._model.time_doubt(rows)[0]) if hopeful else 0.0
        return self._judge_one(clocks_mhz)[0] * (1.0 - doubt) <= self._deadline_s

    def _known(self, clocks_mhz: tuple[int, ...]) -> bool:
        return all(mhz >= low for mhz, low in zip(clocks_mhz, self._lowest, strict=True))

    def _proven(self) -> tuple[int, ...]:
        """The cheapest clocks that were measured to keep the deadline: a job that is late must
        not be late a second time.
        """
        kept = [
            (self._judge_one(reading.clocks_mhz)[1], reading.clocks_mhz)
            for reading in self._readings
            if reading.time_s * (1.0 + self._apart(reading)) <= self._deadline_s
            and reading.clocks_mhz != self._facts.now_mhz
        ]
        return min(kept)[1] if kept else self._facts.ground.default_mhz

    def _apart(self, reading: Reading) -> float:
        """Standard deviation of a measured slowdown."""
        return float(np.hypot(reading.stderr_ratio, self._base_doubt))

    def _safe(self) -> tuple[int, ...]:
        """The cheapest clocks within the evidence whose upper band keeps the deadline."""
        facts = self._facts
        grids = tuple(
            tuple(mhz for mhz in grid if mhz >= low) or grid[-1:]
            for grid, low in zip(facts.grids, self._lowest, strict=True)
        )
        default = facts.ground.default_mhz
        best = (self._judge_one(default)[1], default)
        if self._fits(facts.now_mhz):
            best = min(best, (self._judge_one(facts.now_mhz)[1], facts.now_mhz))
        room_s = self._deadline_s - self._base_s
        for part in ROOM_PARTS:
            limit_s = self._base_s + part * room_s
            found = cheapest(grids, facts.now_mhz, self._judge, limit_s)
            if found is None or found.cost >= best[0]:
                break  # a tighter limit finds nothing cheaper
            for clocks in (found.clocks_mhz, *_between(facts.now_mhz, found.clocks_mhz)):
                cost = self._judge_one(clocks)[1]
                if cost < best[0] and self._fits(clocks):
                    best = (cost, clocks)
            if found.clocks_mhz == best[1]:
                break
        return best[1]

    # -- probes ------------------------------------------------------------------------------

    def _probe(self, now_j: float) -> Advice | None:
        """One stage lowered towards what looks cheapest; else one that might be better than it
        looks. Where the worst case leaves no room, another stage is raised meanwhile.
        """
        now = self._facts.now_mhz
        wanted = cheapest(self._facts.grids, now, self._judge, self._deadline_s)
        target = wanted.clocks_mhz if wanted else now  # may lie many steps away
        gain = 1.0 - wanted.cost / now_j if wanted else 0.0
        if gain >= GAIN_MIN and not self._known(target):
            raised = tuple(map(max, zip(now, target, strict=True)))
            steps = self._steps(raised, target) or self._steps_with_room(raised, target)
            if steps:
                won, stage, step = max(steps)
                return self._answer("probe", self._words(stage, step), step, won, stage)
        lowest = tuple(grid[0] for grid in self._grids)
        hopes = [
            (self._hope(stage, now_j), won, stage, step)
            for won, stage, step in self._steps(now, lowest)
        ]
        hope, won, stage, step = max(hopes, default=(0.0, 0.0, 0, now))
        if hope < HOPE_MIN:
            last = max(self._steps(now, lowest, hopeful=True), default=(0.0, 0, now))
            if last[0] < GAIN_MIN:
                return None
            won, stage, step = last
        return self._answer("probe", self._words(stage, step), step, won, stage)

    def _hope(self, stage: int, now_j: float) -> float:
        """What this stage may save at best some steps further down: under a power cap the first
        of them show nothing, and only the far ones tell whether to go on.
        """
        step_mhz = STEP_RATIO * self._facts.ground.clock_max_mhz
        hopes = [0.0]
        for steps in range(1, HOPE_STEPS + 1):
            floor_mhz = self._lowest[stage] - steps * step_mhz
            aim = next((mhz for mhz in self._facts.grids[stage] if mhz >= floor_mhz), None)
            if aim is not None and aim < self._lowest[stage]:
                now = self._facts.now_mhz
                far = (*now[:stage], aim, *now[stage + 1 :])
                time_s, cost_j = self._judge_one(far)
                if time_s <= self._deadline_s:
                    hopes.append(1.0 - cost_j / now_j + self._doubt_ratio(far, now_j))
        return max(hopes)

    def _steps(
        self, base_mhz: tuple[int, ...], aim_mhz: tuple[int, ...], *, hopeful: bool = False
    ) -> list[tuple[float, int, tuple[int, ...]]]:
        """(gain, stage, clocks) for every stage that can be lowered beyond its evidence."""
        now_j = self._judge_one(self._facts.now_mhz)[1]
        made = []
        for stage, low in enumerate(self._lowest):
            step = self._lowered(base_mhz, stage, aim_mhz[stage], low, hopeful=hopeful)
            if step is not None:
                made.append((1.0 - self._judge_one(step)[1] / now_j, stage, step))
        return made

    def _steps_with_room(
        self, base_mhz: tuple[int, ...], aim_mhz: tuple[int, ...]
    ) -> list[tuple[float, int, tuple[int, ...]]]:
        """The same after one stage, or all but one, was raised by as little as needed."""
        for up in range(1, ROOM_STEPS + 1):
            higher = tuple(
                next(iter([mhz for mhz in grid if mhz > base][up - 1 : up]), grid[-1])
                for base, grid in zip(base_mhz, self._grids, strict=True)
            )
            stages = range(len(base_mhz))
            one = [tuple(higher[s] if s == o else base_mhz[s] for s in stages) for o in stages]
            most = [tuple(base_mhz[s] if s == o else higher[s] for s in stages) for o in stages]
            for bases in (one, most):
                made = [step for base in bases for step in self._steps(base, aim_mhz)]
                if made:
                    return made
        return []

    def _lowered(
        self,
        base_mhz: tuple[int, ...],
        stage: int,
        aim_mhz: int,
        low_mhz: int,
        *,
        hopeful: bool = False,
    ) -> tuple[int, ...] | None:
        """The stage below its evidence and as near to its aim as the worst case allows."""
        for mhz in self._grids[stage]:
            if aim_mhz <= mhz < low_mhz:
                step = (*base_mhz[:stage], mhz, *base_mhz[stage + 1 :])
                if self._fits(step, hopeful=hopeful):
                    return step
        return None

    def _supposed(self) -> Advice | None:
        """A stage lowered because it may have less work than the fit takes it to have: while it
        was never seen to be waited for, readings cannot tell. Room for it is made elsewhere.
        """
        now, found = self._facts.now_mhz, []
        for stage, ratio in itertools.product(range(len(now)), LIGHTER_RATIOS):
            model = self._model.lighter(stage, ratio)
            if model is None:
                continue
            other = _Step(self._facts, self._readings, model, self._default)
            step = other._step_of(stage, ratio)
            if step is not None:
                found.append((step[0], stage, step[1]))
                break
        if not found:
            return None
        gain, stage, step_mhz = max(found)
        return self._answer("probe", self._words(stage, step_mhz), step_mhz, gain, stage)

    def _step_of(self, stage: int, ratio: float) -> tuple[float, tuple[int, ...]] | None:
        """What lowering this stage promises in the end, and the next step towards it."""
        now = self._facts.now_mhz
        down_mhz = int(now[stage] * (1.0 - ratio))
        start = (*now[:stage], down_mhz, *now[stage + 1 :])
        wanted = cheapest(self._facts.grids, start, self._judge, self._deadline_s)
        if wanted is None or wanted.clocks_mhz[stage] >= self._lowest[stage]:
            return None
        gain = 1.0 - wanted.cost / self._judge_one(now)[1]
        if gain < SUPPOSED_MIN:
            return None
        aim = wanted.clocks_mhz
        for base in self._roomier(stage):
            step = self._lowered(base, stage, aim[stage], self._lowest[stage])
            if step is not None:
                return gain, step
        return None

    def _roomier(self, stage: int) -> Iterator[tuple[int, ...]]:
        """The present clocks, then others of the stages raised step by step."""
        now = self._facts.now_mhz
        yield now
        for up in range(1, SUPPOSED_STEPS + 1):
            higher = [
                next(iter([m for m in grid if m > mhz][up - 1 : up]), grid[-1])
                for mhz, grid in zip(now, self._grids, strict=True)
            ]
            for only in range(len(now)):
                if only != stage:
                    yield tuple(higher[s] if s == only else mhz for s, mhz in enumerate(now))
            yield tuple(mhz if s == stage else higher[s] for s, mhz in enumerate(now))

    def _doubt_ratio(self, clocks_mhz: tuple[int, ...], now_j: float) -> float:
        rows = np.array([clocks_mhz], dtype=np.float64)
        return float(self._model.energy_doubt_j(rows)[0]) / now_j

    # -- words -------------------------------------------------------------------------------

    def _words(self, stage: int, step: tuple[int, ...]) -> str:
        return (
            f"stage {stage} to {step[stage]} MHz: the lowest measured there is "
            f"{self._lowest[stage]} MHz"
        )

    def _enough(self, gain: float) -> Advice:
        share, doubt = self._model.clock_share
        return self._answer(
            "enough",
            f"nothing more to learn that pays: the next step is worth {max(gain, 0.0):.2%} of the "
            f"energy, {GAIN_MIN:.2%} is the noise; {share:.2f} ± {doubt:.2f} of the work follows "
            f"the clock; measured down to {_clocks(self._lowest)} MHz",
            self._facts.now_mhz,
            gain,
        )

    def _answer(
        self,
        verdict: Verdict,
        reason: str,
        clocks_mhz: tuple[int, ...],
        gain: float = 0.0,
        stage: int | None = None,
    ) -> Advice:
        now_j = self._judge_one(self._facts.now_mhz)[1]
        return Advice(
            verdict,
            reason,
            clocks_mhz,
            stage,
            gain_ratio=gain,
            gain_doubt_ratio=self._doubt_ratio(clocks_mhz, now_j),
            time_s=self._judge_one(clocks_mhz)[0],
            time_high_s=self._high_s(clocks_mhz),
            deadline_s=self._deadline_s,
            energy_j=self._judge_one(clocks_mhz)[1],
            baseline_energy_j=self._judge_one(self._facts.ground.default_mhz)[1],
            baseline_time_s=self._base_s,
            lowest_mhz=self._lowest,
            readings=len(self._readings),
        )


def _clocks(clocks_mhz: tuple[int, ...]) -> str:
    return "/".join(map(str, clocks_mhz))


def _between(now_mhz: tuple[int, ...], aim_mhz: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Part of the way: one or two of the changes that lead from here to there."""
    changed = [s for s, (a, b) in enumerate(zip(now_mhz, aim_mhz, strict=True)) if a != b]
    return [
        tuple(aim_mhz[s] if s in some else mhz for s, mhz in enumerate(now_mhz))
        for count in (1, 2)
        if len(changed) > count
        for some in itertools.combinations(changed, count)
    ]
