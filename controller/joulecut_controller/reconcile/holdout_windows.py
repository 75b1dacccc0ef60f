"""Measured windows of one job: the open one, outcomes of the others, the saving they show.

Only complete windows count; an interrupted one is dropped with its reason. Windows are kept in the
store, and the saving is computed from there.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from joulecut_controller.trust.measurement import WindowMeasurement, WindowMeans
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.plan import Plan
from joulecut_controller.plan.planning_input import PlanningInput
from joulecut_controller.ports import Record, Store
from joulecut_controller.trust.heat_sink import time_constant_s, warm_up_s
from joulecut_controller.trust.saving import Saving, saving
from joulecut_controller.trust.window import TOPIC, Arm, MeasuredWindow, from_json, to_json
from joulecut_wire.errors import JoulecutError

SAVING_S = 7 * 86_400.0  # what is shown is of the last week: a job of last month is another one
SAVING_WINDOWS_MAX = 5_000
COVERED_RATIO_MIN = 0.5  # of a window: less was interrupted, whatever by
REASONS = {
    "clocks": "the clocks or the energy counter changed",
    "counter": "too few readings of the energy counters",
    "irregular": "too many outlier iterations",
    "pace": "the iteration time changed during the window",
    "plan": "another plan came into force",
    "shape": "the job's GPUs or its pipeline changed",
    "short": "too few iterations ran",
    "store": "the store did not take the window",
    "stopped": "the window was interrupted",
}


@dataclass(slots=True)
class _OpenWindow:
    """A window that is being measured."""

    arm: Arm
    plan: Plan
    shape: str
    since_s: float  # of `IterationStats`: it changes with the clocks
    ends_s: float
    measurement: WindowMeasurement


class HoldoutWindows:
    """`tried` is the slot whose window was opened last. `stale`: windows were stored since the
    saving was computed.
    """

    def __init__(
        self, store: Store, job: str, unix_s: Callable[[], float], *, lag_s: float
    ) -> None:
        self._store, self._job, self._unix_s, self._lag_s = store, job, unix_s, lag_s
        self._open: _OpenWindow | None = None
        self._tried: int | None = None
        self._outcomes: Counter[tuple[Arm, str]] = Counter()
        self._saving: Saving | None = None
        self._stale = True
        self._warm_up_s = warm_up_s(())
        self._said = ""  # result of the hold-out's window, in words

    @property
    def measuring(self) -> Arm | Literal[""]:
        return self._open.arm if self._open else ""

    @property
    def tried(self) -> int | None:
        return self._tried

    @property
    def stale(self) -> bool:
        return self._stale

    @property
    def saving(self) -> Saving | None:
        """Measured, of the last week's windows."""
        return self._saving

    @property
    def warm_up_s(self) -> float:
        """After a change of clocks, as the last week's windows show the heat sinks."""
        return self._warm_up_s

    @property
    def outcomes(self) -> tuple[tuple[Arm, str, int], ...]:
        """Count of windows by arm and outcome."""
        return tuple((*key, count) for key, count in sorted(self._outcomes.items()))

    def renew(self) -> None:
        """Slots were rearranged, or a hold-out began: a slot that had a window may have another."""
        self._tried, self._said = None, ""

    def stop(self) -> str:
        """Drops an open window; returns the result of the hold-out's window."""
        if self._open is not None:
            self._drop("stopped")
        return self._said

    def open(
        self,
        arm: Arm,
        slot: int,
        plan: Plan,
        observation: JobObservation,
        *,
        opens_s: float,
        ends_s: float,
    ) -> None:
        """Measures from `opens_s` to `ends_s`, and temperatures from now on."""
        measured = observation.measured
        self._tried = slot
        self._open = _OpenWindow(
            arm=arm,
            plan=plan,
            shape=observation.shape,
            since_s=measured.since_s,
            ends_s=ends_s,
            measurement=WindowMeasurement(
                opens_s, measured.locks, lag_s=self._lag_s, changed_s=measured.since_s
            ),
        )

    def see(
        self,
        inputs: PlanningInput,
        observation: JobObservation,
        applied: Plan | None,
        hindrance: str,
    ) -> str:
        """Adds this pass to the open window; closes or drops it where it has ended.

        Returns why it was dropped.
        """
        held, measured, now_s = self._open, observation.measured, inputs.view.now_s
        if held is None:
            return ""
        other = held.arm == "plan" and (
            applied is None or applied.generation != held.plan.generation
        )
        reasons = (
            (held.shape != observation.shape, "shape"),
            (bool(hindrance), "stopped"),
            (measured.since_s != held.since_s, "clocks"),
            (other, "plan"),
        )
        why = next((reason for found, reason in reasons if found), "")
        if why:
            self._drop(why)
            return hindrance or REASONS[why]
        held.measurement.take(measured.ended)
        held.measurement.see(inputs.view.gpus, now_s)
        if now_s < held.ends_s:
            return ""
        figures = held.measurement.figures()
        wanted_s = held.ends_s - held.measurement.opened_s
        if isinstance(figures, WindowMeans):
            covered_s = figures.ended_s - figures.begun_s
            if covered_s >= COVERED_RATIO_MIN * wanted_s or held.measurement.full:
                return self._keep(held, figures, inputs)
            figures = "short"
        self._drop(figures)
        return REASONS[figures]

    def _keep(self, held: _OpenWindow, figures: WindowMeans, inputs: PlanningInput) -> str:
        """Stores a window; returns why it could not."""
        forecast = held.plan.forecast
        later_s = self._unix_s() - inputs.view.now_s
        default = held.arm == "default"
        window = MeasuredWindow(
            job=self._job,
            shape=held.shape,
            arm=held.arm,
            generation=0 if default else held.plan.generation,
            begun_unix_s=figures.begun_s + later_s,
            ended_unix_s=figures.ended_s + later_s,
            gpus=sum(map(len, inputs.job.stages)),
            iterations=figures.iterations,
            time_mean_s=figures.time_mean_s,
            time_sd_s=figures.time_sd_s,
            energy_j=figures.energy_j,
            left_out=figures.left_out,
            temperature_celsius=figures.temperature_celsius,
            heat_sink_s=time_constant_s(figures.trace) if default else None,
        )
        if forecast is not None:
            window = replace(
                window,
                predicted_time_s=forecast.baseline_time_s if default else forecast.iteration_time_s,
                predicted_energy_j=forecast.baseline_energy_j if default else forecast.energy_j,
            )
        try:
            self._store.keep_record(Record(window.ended_unix_s, TOPIC, self._job, to_json(window)))
        except (JoulecutError, ValueError):
            self._drop("store")
            return REASONS["store"]
        self._open = None
        self._outcomes[held.arm, "kept"] += 1
        out = f", {window.left_out} left out" if window.left_out else ""
        self._said = (
            f"{window.time_mean_s:.4g} s and {window.energy_j:.4g} J an iteration at default "
            f"clocks ({window.iterations} iterations{out})"
        )
        self._stale = True
        return ""

    def _drop(self, reason: str) -> None:
        assert self._open is not None
        self._outcomes[self._open.arm, reason] += 1
        self._open = None

    def reckon(self) -> None:
        """Saving and warm-up from the last week's windows; unchanged where the store fails."""
        since_unix_s = self._unix_s() - SAVING_S
        self._stale = False
        try:
            records = self._store.records(
                TOPIC, job=self._job, since_unix_s=since_unix_s, limit=SAVING_WINDOWS_MAX
            )
        except JoulecutError:
            return
        windows = []
        for record in records:
            try:
                windows.append(from_json(record.content))
            except ValueError:
                continue  # a damaged record is no measurement
        self._warm_up_s = warm_up_s(window.heat_sink_s for window in windows)
        try:
            self._saving = saving(windows)
        except (ValueError, ArithmeticError):  # figures on a page are no reason to stop control
            self._saving = None
