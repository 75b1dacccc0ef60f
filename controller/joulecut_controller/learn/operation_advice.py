"""What to try next on a job that reports its operations.

Each stage's own curve is measured, so all stages change in one window, each by at most a step below
the clocks measured there. Clocks are tried if the expected iteration keeps the deadline with every
operation 1.28 standard deviations slower, and misses it by half a point at most where work slows as
much as its clock.
"""

import math

import numpy as np

from joulecut_controller.learn.advice import Advice, ExplorerInput, Verdict
from joulecut_controller.learn.longest_paths import LongestPaths
from joulecut_controller.learn.measurement_log import Measurement
from joulecut_controller.learn.operation_model import OperationModel
from joulecut_controller.reference.reference import LATE_SDS
from joulecut_engine.estimate.clock_curves import Floats, Ints
from joulecut_engine.optimize.choice_search import ChoiceSearch, Task

GAIN_MIN = 0.002  # of the job's energy: the noise of counters over a window
ANCHORS_PART = 4  # of the stages one in so many
SURE = 1e-9
EXCESS_MAX = 0.02  # more is the job, which moved between two windows, and not its clocks


def operation_advice(
    facts: ExplorerInput, measurements: tuple[Measurement, ...], paths: LongestPaths
) -> Advice:
    """The next step. The first measurement is at default clocks, one of them at the clocks now."""
    model = OperationModel(
        facts.constants,
        facts.grids,
        facts.alike,
        measurements,
        paths,
        host_power_w=facts.host_power_w,
        expected=facts.expected,
        begins=facts.begins,
    )
    return _Step(facts, measurements, model).advice()


class _Step:
    def __init__(
        self, facts: ExplorerInput, measurements: tuple[Measurement, ...], model: OperationModel
    ) -> None:
        self._facts, self._measurements, self._model = facts, measurements, model
        measured_s = measurements[0].time_s
        self._pace = measured_s / model.base_s
        self._base_s = measured_s
        self._deadline_s = measured_s * math.exp(max(0.0, facts.budget - facts.margin))
        now = np.array(facts.now_mhz, dtype=np.float64)[:, None]
        self._now = np.minimum((model.grid_mhz < now).sum(axis=1), model.default)
        self._longer = self._measured_longer()
        self._limit_s = self._deadline_s / self._pace / self._longer

    def _measured_longer(self) -> float:
        """Time at lower clocks over what the curves say: as all windows show it, and within what
        the reference says of the clocks now. Curves take a slow window for a slow hour.
        """
        longer, seen = 1.0 + min(self._model.excess, EXCESS_MAX), self._facts.slowdown
        if seen is None:
            return longer
        modelled = self._model.jittered_s(self._model.mean_s, self._now) / self._model.base_s
        least, most = (math.exp(seen.mean + sds * seen.sd) for sds in (-1.0, LATE_SDS))
        return max(1.0, min(max(longer, least / modelled), most / modelled))

    def advice(self) -> Advice:
        model, default = self._model, self._model.default
        wanted = self._cheapest()
        lowered = not np.array_equal(self._now, default)
        if lowered and model.jittered_s(model.mean_s, self._now) > self._limit_s * (1.0 + SURE):
            now_s = self._expected_s(self._now)
            wanted = np.maximum(
                wanted, (model.grid_mhz < np.array(model.lowest)[:, None]).sum(axis=1)
            )
            reason = f"{now_s:.4g} s an iteration, {self._deadline_s:.4g} s allowed"
            return self._answer("raise", reason, wanted)
        wanted = self._anchored(wanted)
        gain = self._gain(wanted)
        if gain < GAIN_MIN:
            reason = (
                f"nothing more to learn that pays: the next step is worth {max(gain, 0.0):.2%} of "
                f"the energy, {GAIN_MIN:.2%} is the noise; measured down to "
                f"{_clocks(model.lowest)} MHz"
            )
            return self._answer("enough", reason, self._now)
        below = self._below(wanted)
        if not below:
            reason = f"{gain:.1%} less energy, within the measured range"
            return self._answer("settle", reason, wanted)
        named = f"stage{'s' if below[1:] else ''} {', '.join(map(str, below))}"
        mhz = _clocks(tuple(int(model.grid_mhz[s, wanted[s]]) for s in below))
        low_mhz = _clocks(tuple(model.lowest[s] for s in below))
        reason = f"{named} to {mhz} MHz: the lowest measured there is {low_mhz} MHz"
        return self._answer("probe", reason, wanted, below)

    def _anchored(self, wanted: Ints) -> Ints:
        """The same with a quarter of the stages as they are: those that would be lowered least.

        They show how much of a window's change all stages have in common. If all went down
        together, a slow hour would be taken for the effect of the clocks, or the reverse. Where
        other jobs say what that is, the first windows need none.
        """
        if self._facts.begins:
            return wanted
        rows = np.arange(self._model.stages)
        mhz = self._model.grid_mhz
        lowered = np.log(mhz[rows, self._now] / mhz[rows, wanted])
        order = [s for s in np.argsort(lowered, kind="stable") if lowered[s] >= 0.0]
        held = order[: -(-len(rows) // ANCHORS_PART)] if len(rows) > 1 else []
        made = wanted.copy()
        made[held] = self._now[held]
        return made

    def _cheapest(self) -> Ints:
        """The cheapest clocks within reach whose upper band and worst case are in time."""
        model = self._model
        table = np.maximum(model.high_s, model.worst_s / (1.0 + self._facts.over_ratio))
        clocks, lowest = _Choices(model, table), model.reachable.argmax(axis=1)
        alike = np.maximum(np.arange(model.reachable.shape[1]), lowest[:, None])
        if clocks.iteration_times(alike[:, -1:])[0] > self._limit_s:
            return model.default
        return ChoiceSearch(clocks, Task(self._limit_s, model.second_j)).best(alike)

    def _below(self, at: Ints) -> tuple[int, ...]:
        mhz = self._model.grid_mhz[np.arange(len(at)), at]
        return tuple(s for s, low in enumerate(self._model.lowest) if mhz[s] < low)

    def _gain(self, at: Ints) -> float:
        return 1.0 - self._energy_j(at) / self._energy_j(self._now)

    def _energy_j(self, at: Ints) -> float:
        return self._model.energy_j(at, self._expected_s(at))

    def _expected_s(self, at: Ints) -> float:
        longer = 1.0 if np.array_equal(at, self._model.default) else self._longer
        return self._model.jittered_s(self._model.mean_s, at) * self._pace * longer

    def _answer(
        self, verdict: Verdict, reason: str, at: Ints, stages: tuple[int, ...] = ()
    ) -> Advice:
        model = self._model
        clocks = model.grid_mhz[np.arange(len(at)), at]
        high_s = model.jittered_s(model.high_s, at) * self._pace
        busy_s = model.mean_s.sum(axis=1)
        slower = busy_s[np.arange(len(at)), at] / busy_s[:, -1]
        return Advice(
            verdict,
            reason,
            tuple(map(int, clocks)),
            stages,
            gain_ratio=self._gain(at),
            time_s=self._expected_s(at),
            time_high_s=high_s,
            deadline_s=self._deadline_s,
            energy_j=self._energy_j(at),
            baseline_energy_j=self._energy_j(model.default),
            baseline_time_s=self._base_s,
            operations=math.log(float(np.median(slower))),
            lowest_mhz=model.lowest,
            measurements=len(self._measurements),
        )


class _Choices:
    """Clocks by stage as `choice_search` takes them, with operations of `table_s`: the mean
    iteration under their jitter is what a choice takes.
    """

    def __init__(self, model: OperationModel, table_s: Floats) -> None:
        self._model, self._table_s = model, table_s
        self.cost_j = np.where(model.reachable, model.cost_j, np.inf)

    def iteration_times(self, choice: Ints) -> Floats:
        return self._model.iterations_s(self._table_s, choice)

    def critical(self, choice: Ints) -> Floats:
        """Operations of the longest path by stage and kind, times what jitter makes of it."""
        each = np.take_along_axis(self._table_s, choice[:, None, None], axis=2)[:, :, 0]
        plain_s, counts = self._model.paths.critical(each)
        return np.asarray(counts * self.iteration_times(choice[:, None])[0] / plain_s)

    def lengths(self, weight: Floats) -> Floats:
        return np.asarray(np.einsum("sk,skc->sc", weight, self._table_s))


def _clocks(clocks_mhz: tuple[int, ...]) -> str:
    return "/".join(map(str, clocks_mhz))
