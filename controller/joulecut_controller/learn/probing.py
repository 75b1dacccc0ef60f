"""Where to measure next while a job runs in production, and when there is nothing to learn.

Nobody profiles this job: what its GPUs do at other clocks is learnt from the job itself, so
each measurement is a promise kept or broken. Hence one group of stages at a time, one short step
below what was measured, and only where even the upper band keeps the deadline. What is well inside
the evidence may change at once. Pure: readings and the facts of a pass go in, advice comes out.
"""

import itertools

import numpy as np

from joulecut_controller.learn.advice import Advice, Verdict
from joulecut_controller.learn.evidence import Evidence, Facts, lowest_of, reading_at
from joulecut_controller.learn.probe import Probe
from joulecut_controller.learn.probes import GAIN_MIN, Probes
from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.learn.rate_window import Reading

# Parts of the room between default and deadline to aim at, while the upper band breaks it.
ROOM_PARTS = (1.0, 0.97, 0.93, 0.88, 0.8, 0.7, 0.5, 0.3)
# The deadline is a ratio of the baseline, so its error is every later window's: less than a
# hundredth of a usual budget, or eight windows; of a noisier job a fiftieth, or sixteen.
BASELINE_ENOUGH = ((0.0003, 8), (0.001, 16))
SURE = 1e-9


def advise(facts: Facts, readings: tuple[Reading, ...], model: RateModel | None) -> Advice:
    """The next step. `model` is the fit to `readings`; None while there are none."""
    default = reading_at(readings, facts.ground.default_mhz)
    if default is None and facts.now_mhz != facts.ground.default_mhz:
        reason = "the baseline has to be measured again"
        return Advice("raise", reason, facts.ground.default_mhz)
    if default is None or model is None:
        return _measure(facts, readings, "no window at default clocks yet: measuring the baseline")
    rough = any(
        default.stderr_ratio > enough and default.iterations < windows * facts.window_iterations
        for enough, windows in BASELINE_ENOUGH
    )
    if rough and len(readings) == 1:
        known = f"±{default.stderr_ratio:.2%} after {default.iterations} iterations"
        return _measure(facts, readings, f"measuring the baseline more closely: {known}")
    if reading_at(readings, facts.now_mhz) is None:
        return _measure(
            facts,
            readings,
            f"measuring {_clocks(facts.now_mhz)} MHz over {facts.window_iterations} iterations",
        )
    return _Step(Evidence(facts, readings, model)).advice()


def _measure(facts: Facts, readings: tuple[Reading, ...], reason: str) -> Advice:
    return Advice(
        "measure",
        reason,
        facts.now_mhz,
        lowest_mhz=lowest_of(readings) if readings else (),
        readings=len(readings),
    )


class _Step:
    """One decision; holds what all its questions share."""

    def __init__(self, known: Evidence) -> None:
        self._known = known

    def advice(self) -> Advice:
        now, default = self._known.facts.now_mhz, self._known.facts.ground.default_mhz
        now_s, now_j = self._known.likely_s(now), self._known.judge_one(now)[1]
        if self._known.base_s > self._known.deadline_s:
            reason = (
                f"target unreachable: default clocks give {self._known.base_s:.4g} s an iteration"
            )
            return self._answer("raise" if now != default else "enough", reason, default)
        if now_s > self._known.deadline_s * (1.0 + SURE):
            reason = f"{now_s:.4g} s an iteration, {self._known.deadline_s:.4g} s allowed"
            return self._answer("raise", reason, self._known.proven())
        safe = self._safe()
        gain = 1.0 - self._known.judge_one(safe)[1] / now_j
        if not self._known.fits(now):
            reason = "in time, but not surely: what may be late is tried from what is not"
            return self._answer("settle", reason, safe, gain)
        probes = Probes(self._known)
        probe = probes.next()
        if gain >= GAIN_MIN and (probe is None or gain >= probe.gain_ratio):
            probe = self._while_here(probe or probes.supposed(), safe)
            if probe is None:
                reason = f"{gain:.1%} less energy, within the evidence"
                return self._answer("settle", reason, safe, gain)
        probe = probe or probes.supposed() or probes.inside()
        return self._enough(gain) if probe is None else self._try(probe)

    def _while_here(self, probe: Probe | None, safe: tuple[int, ...]) -> Probe | None:
        """The probe, where what is known to save has to wait for it: a stage below its evidence,
        and no room for that once the rest is settled. To make room again costs a window each way.
        """
        if probe is None or self._known.known(probe.clocks_mhz):
            return None
        clocks = [probe.clocks_mhz[s] if s in probe.stages else mhz for s, mhz in enumerate(safe)]
        later = np.array([clocks], dtype=np.float64)
        return None if self._known.bearable(later)[0] else probe

    def _safe(self) -> tuple[int, ...]:
        """The cheapest clocks within the evidence whose upper band keeps the deadline."""
        facts = self._known.facts
        grids = tuple(
            tuple(mhz for mhz in grid if mhz >= low) or grid[-1:]
            for grid, low in zip(facts.grids, self._known.lowest, strict=True)
        )
        default = facts.ground.default_mhz
        best = (self._known.judge_one(default)[1], default)
        if self._known.fits(facts.now_mhz):
            best = min(best, (self._known.judge_one(facts.now_mhz)[1], facts.now_mhz))
        room_s = self._known.deadline_s - self._known.base_s
        for part in ROOM_PARTS:
            limit_s = self._known.base_s + part * room_s
            found = self._known.cheapest(grids, facts.now_mhz, limit_s)
            if found is None or found.cost >= best[0]:
                break  # a tighter limit finds nothing cheaper
            for clocks in (found.clocks_mhz, *_between(facts.now_mhz, found.clocks_mhz)):
                cost = self._known.judge_one(clocks)[1]
                if cost < best[0] and self._known.fits(clocks):
                    best = (cost, clocks)
            if found.clocks_mhz == best[1]:
                break
        return best[1]

    def _try(self, probe: Probe) -> Advice:
        now = self._known.facts.now_mhz
        named = f"stage{'s' if probe.stages[1:] else ''} {', '.join(map(str, probe.stages))}"
        mhz = _clocks(tuple(probe.clocks_mhz[s] for s in probe.stages))
        reason = f"{named} at {mhz} MHz: whether the others wait for it there"
        if self._known.judge_one(probe.clocks_mhz)[1] < self._known.judge_one(now)[1]:
            reason = f"{named} to {mhz} MHz: within the evidence, and likely in time"
        if not self._known.known(probe.clocks_mhz):
            low_mhz = _clocks(tuple(self._known.lowest[s] for s in probe.stages))
            reason = f"{named} to {mhz} MHz: the lowest measured there is {low_mhz} MHz"
        return self._answer("probe", reason, probe.clocks_mhz, probe.gain_ratio, probe.stages)

    def _enough(self, gain: float) -> Advice:
        share, doubt = self._known.model.clock_share
        return self._answer(
            "enough",
            f"nothing more to learn that pays: the next step is worth {max(gain, 0.0):.2%} of the "
            f"energy, {GAIN_MIN:.2%} is the noise; {share:.2f} ± {doubt:.2f} of the work follows "
            f"the clock; measured down to {_clocks(self._known.lowest)} MHz",
            self._known.facts.now_mhz,
            gain,
        )

    def _answer(
        self,
        verdict: Verdict,
        reason: str,
        clocks_mhz: tuple[int, ...],
        gain: float = 0.0,
        stages: tuple[int, ...] = (),
    ) -> Advice:
        now_j = self._known.judge_one(self._known.facts.now_mhz)[1]
        return Advice(
            verdict,
            reason,
            clocks_mhz,
            stages,
            gain_ratio=gain,
            gain_doubt_ratio=self._known.gain_doubt(clocks_mhz, now_j),
            time_s=self._known.expected_s(clocks_mhz, trial=verdict == "probe"),
            time_high_s=self._known.high_s(clocks_mhz),
            deadline_s=self._known.deadline_s,
            energy_j=self._known.judge_one(clocks_mhz)[1],
            baseline_energy_j=self._known.judge_one(self._known.facts.ground.default_mhz)[1],
            baseline_time_s=self._known.base_s,
            lowest_mhz=self._known.lowest,
            readings=len(self._known.readings),
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
