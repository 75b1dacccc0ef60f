"""What to measure next on a running job without a profile, and when there is nothing to learn.

Every measurement runs in production. So one group of stages is lowered at a time, by one short step
below what was measured, and only if even the upper band keeps the deadline. Changes well inside the
measured range happen at once.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from joulecut_controller.learn.advice import Advice, Verdict
from joulecut_controller.learn.clock_search import Probe
from joulecut_controller.learn.energy_model import ENERGY_NOISE
from joulecut_controller.learn.evidence import Evidence, ExplorerInput, lowest_of, measurement_at
from joulecut_controller.learn.iteration_form import LongestPaths
from joulecut_controller.learn.measurement_log import Measurement, MeasurementLog
from joulecut_controller.learn.operation_advice import operation_advice
from joulecut_controller.learn.power_pace import with_power
from joulecut_controller.learn.probes import GAIN_MIN, Probes
from joulecut_controller.learn.rate_model import RateModel
from joulecut_engine.graph.pipeline import Pipeline


class Explorer:
    """Turns a measurement log into advice; caches the last fit. Not thread-safe."""

    def __init__(self) -> None:
        self._paths: tuple[object, LongestPaths] | None = None
        self._fitted: tuple[object, RateModel] | None = None
        self._advised: tuple[object, Advice] | None = None

    def advise(self, facts: ExplorerInput, log: MeasurementLog) -> Advice:
        """Raises ValueError if the pipeline cannot be laid out."""
        asked = (facts, log.measurements)
        if self._advised is None or self._advised[0] != asked:
            self._advised = (asked, self._advise(facts, log.measurements))
        return self._advised[1]

    def _advise(self, facts: ExplorerInput, measurements: tuple[Measurement, ...]) -> Advice:
        waits = _unmeasured(facts, measurements)
        if waits is not None:
            return waits
        if all(measurement.busy_s for measurement in measurements):
            return operation_advice(facts, measurements, self._longest(facts.constants.pipeline))
        measurements = with_power(measurements, facts.constants.blocking_power_w, facts.alike)
        return _Step(Evidence(facts, measurements, self._model(facts, measurements))).advice()

    def _longest(self, pipeline: Pipeline) -> LongestPaths:
        if self._paths is None or self._paths[0] != pipeline:
            self._paths = (pipeline, LongestPaths(pipeline))
        return self._paths[1]

    def _model(self, facts: ExplorerInput, measurements: tuple[Measurement, ...]) -> RateModel:
        constants = facts.constants
        paths = self._longest(constants.pipeline)
        constants = replace(
            constants,
            default_mhz=capped_mhz(constants.default_mhz, measurements, facts.alike),
        )
        if self._fitted is None or self._fitted[0] != (constants, measurements):
            model = RateModel(constants, measurements, paths)
            if model.contradicted:
                model = model.from_windows()
            self._fitted = ((constants, measurements), model)
        return self._fitted[1]


# Parts of the budget to aim at, while the upper band breaks the deadline.
ROOM_PARTS = (1.0, 0.97, 0.93, 0.88, 0.8, 0.7, 0.5, 0.3)
# At the rate alone the deadline is a ratio of the baseline, whose error every later window shares:
# at most this standard error, or so many windows, or so many seconds: from then on a margin of the
# error costs less than waiting.
BASELINE_ENOUGH = ((0.0003, 8), (0.001, 16))
BASELINE_ENOUGH_S = 160.0
SURE = 1e-9


def _unmeasured(facts: ExplorerInput, measurements: tuple[Measurement, ...]) -> Advice | None:
    """What has to be measured before anything else, if anything has."""
    default = measurement_at(measurements, facts.constants.default_mhz)
    if default is None and facts.now_mhz != facts.constants.default_mhz:
        reason = "the baseline has to be measured again"
        return Advice("raise", reason, facts.constants.default_mhz)
    if default is None:
        return _measure(
            facts, measurements, "no window at default clocks yet: measuring the baseline"
        )
    rough = any(
        default.stderr_ratio > enough and default.iterations < windows * facts.window_iterations
        for enough, windows in BASELINE_ENOUGH
    )
    brief = default.iterations * default.time_s < BASELINE_ENOUGH_S
    if rough and brief and len(measurements) == 1 and not default.busy_s:
        known = f"±{default.stderr_ratio:.2%} after {default.iterations} iterations"
        return _measure(facts, measurements, f"measuring the baseline more closely: {known}")
    if measurement_at(measurements, facts.now_mhz) is None:
        return _measure(
            facts,
            measurements,
            f"measuring {_clocks(facts.now_mhz)} MHz over {facts.window_iterations} iterations",
        )
    return None


def _measure(facts: ExplorerInput, measurements: tuple[Measurement, ...], reason: str) -> Advice:
    return Advice(
        "measure",
        reason,
        facts.now_mhz,
        lowest_mhz=lowest_of(measurements) if measurements else (),
        measurements=len(measurements),
    )


class _Step:
    """One decision on the evidence."""

    def __init__(self, known: Evidence) -> None:
        self._known = known

    def advice(self) -> Advice:
        now, default = self._known.facts.now_mhz, self._known.facts.constants.default_mhz
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
            reason = "in time, but without a margin: returning to clocks that are proven in time"
            return self._answer("settle", reason, safe, gain)
        probes = Probes(self._known)
        probe = probes.next()
        if gain >= GAIN_MIN and (probe is None or gain >= probe.gain_ratio):
            probe = self._while_here(probe or probes.hypothetical(), safe)
            if probe is None:
                reason = f"{gain:.1%} less energy, within the measured range"
                return self._answer("settle", reason, safe, gain)
        probe = probe or probes.hypothetical() or probes.inside()
        return self._enough(gain) if probe is None else self._try(probe)

    def _while_here(self, probe: Probe | None, safe: tuple[int, ...]) -> Probe | None:
        """The probe, if it must come before settling: settled clocks would leave no room for it."""
        if probe is None or self._known.known(probe.clocks_mhz):
            return None
        clocks = [probe.clocks_mhz[s] if s in probe.stages else mhz for s, mhz in enumerate(safe)]
        later = np.array([clocks], dtype=np.float64)
        return None if self._known.acceptable(later)[0] else probe

    def _safe(self) -> tuple[int, ...]:
        """The cheapest clocks within the measured range whose upper band keeps the deadline."""
        facts = self._known.facts
        grids = tuple(
            tuple(mhz for mhz in grid if mhz >= low) or grid[-1:]
            for grid, low in zip(facts.grids, self._known.lowest, strict=True)
        )
        default = facts.constants.default_mhz
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
        reason = f"{named} at {mhz} MHz: whether other stages wait for it there"
        if self._known.judge_one(probe.clocks_mhz)[1] < self._known.judge_one(now)[1]:
            reason = f"{named} to {mhz} MHz: within the measured range, and likely in time"
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
            baseline_energy_j=self._known.judge_one(self._known.facts.constants.default_mhz)[1],
            baseline_time_s=self._known.base_s,
            lowest_mhz=self._known.lowest,
            measurements=len(self._known.measurements),
        )


def _clocks(clocks_mhz: tuple[int, ...]) -> str:
    return "/".join(map(str, clocks_mhz))


def _between(now_mhz: tuple[int, ...], aim_mhz: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Clocks with one or two of the changes from now to the aim."""
    changed = [s for s, (a, b) in enumerate(zip(now_mhz, aim_mhz, strict=True)) if a != b]
    return [
        tuple(aim_mhz[s] if s in some else mhz for s, mhz in enumerate(now_mhz))
        for count in (1, 2)
        if len(changed) > count
        for some in itertools.combinations(changed, count)
    ]


# Under a power cap a lower lock changes nothing until it passes the clock that the cap leaves. Such
# windows say nothing of the uncapped curve. Uncapped, 1 % less clock saves 0.3-0.6 % of a GPU's
# energy on the public sweeps (above the knee); a window's energy is known to 0.4 %.
SAVING_SLOPE_MIN = 0.3
SAVING_SLOPE_FLAT = 0.15
DOUBTS_FLAT = 1.5  # standard deviations below the uncapped slope


def capped_mhz(
    default_mhz: tuple[int, ...], measurements: Sequence[Measurement], alike: tuple[int, ...]
) -> tuple[int, ...]:
    """The lowest clock by stage at which the power cap still decides; GPUs of a kind share it.

    Two measurements show it if stages of one kind differ by clocks below the lowest such clock
    known, and no other stage differs. Stages lowered together count by their own energies.
    """
    edges = dict(zip(alike, default_mhz, strict=True))
    for stage, kind in enumerate(alike):
        edges[kind] = max(edges[kind], default_mhz[stage])
    moved = True
    while moved:
        moved = False
        for one in measurements:
            for other in measurements:
                for kind, stages in _lowered(one, other, edges, alike).items():
                    if _flat(one, other, stages, edges[kind]):
                        edges[kind] = max(other.clocks_mhz[stage] for stage in stages)
                        moved = True
    return tuple(min(mhz, edges[kind]) for mhz, kind in zip(default_mhz, alike, strict=True))


def _lowered(
    one: Measurement, other: Measurement, edges: Mapping[int, int], alike: tuple[int, ...]
) -> dict[int, list[int]]:
    """Stages by kind that only the other measurement lowers; empty if anything else differs."""
    found: dict[int, list[int]] = {}
    for stage, (high, low) in enumerate(zip(one.clocks_mhz, other.clocks_mhz, strict=True)):
        edge_mhz = edges[alike[stage]]
        if high == low or min(high, low) >= edge_mhz:
            continue
        if high < edge_mhz or low > high:
            return {}
        found.setdefault(alike[stage], []).append(stage)
    return found


def _flat(one: Measurement, other: Measurement, stages: Sequence[int], edge_mhz: int) -> bool:
    """Whether energy is as flat below the edge as under the cap."""
    fall = fmean(1.0 - other.clocks_mhz[s] / edge_mhz for s in stages)
    later = max(0.0, other.time_s / one.time_s - 1.0)
    # Times are noisy under a cap; longer waiting costs at most as large a share of energy.
    saved = later + fmean(1.0 - other.energy_j[s] / one.energy_j[s] for s in stages)
    doubt = DOUBTS_FLAT * ENERGY_NOISE * (2.0 / len(stages)) ** 0.5
    return saved < SAVING_SLOPE_FLAT * fall and saved + doubt < SAVING_SLOPE_MIN * fall
