"""One job without a profile: windows go into its log, and the explorer's advice becomes a decision.

The log is stored after each window, so a restarted controller continues where the last one stopped.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from joulecut_controller.learn.advice import FIRST_WINDOWS, Advice, ExplorerInput
from joulecut_controller.learn.longest_paths import reported_kinds
from joulecut_controller.learn.measurement_log import (
    JobConstants,
    Measurement,
    MeasurementLog,
    ProbedJob,
    window_iterations,
    without_hiccups,
)
from joulecut_controller.observe.measurement_window import ITERATIONS_KEPT
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.costs import clocks_allowed_mhz
from joulecut_controller.plan.goal import dwell_s, late_again, remembered
from joulecut_controller.plan.own_clocks import pace_setters
from joulecut_controller.plan.plan import Plan
from joulecut_controller.plan.planner import Decision, vetoes
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.plan.trial import trial_of
from joulecut_controller.plan.veto import Veto, first, releases
from joulecut_controller.reference.reference import Figure
from joulecut_controller.trust import short_window
from joulecut_controller.view import GpuView, JobState, Measured, StageLoad
from joulecut_engine.graph.pipeline import Kind, Profile

# A clock seen this far below its lock was not reached: power or heat held it back.
REACHED_RATIO = 0.985
# At default clocks a GPU so far below others of its model is throttled: a baseline waits for it,
# for as many windows at most.
THROTTLED_RATIO, THROTTLED_WINDOWS = 0.95, 3
# The explorer's advice on a log. Raises Unanswered while it is being computed.
Advise = Callable[[ExplorerInput, tuple[Measurement, ...]], Advice]
NO_PROFILE = Profile({})  # lets the planner's other obstacles apply


class OnlineProfiler:
    """Measurement log and advice of one job."""

    def __init__(self) -> None:
        self._log = MeasurementLog()
        # Not in the log yet: each iteration counts once.
        self._durations_s: deque[float] = deque(maxlen=ITERATIONS_KEPT)
        self._since_s = math.nan
        self._suspended_mhz: tuple[int, ...] = ()  # by stage, before a window at default clocks
        self._tried: Advice | None = None  # whose clocks were set last
        self._begins = False  # whether steps are the first, large ones
        self._said = ""
        self.advice: Advice | None = None
        self.probed: ProbedJob | None = None  # as of the last decision

    def new_to(self, shape: str) -> bool:
        """Whether the log is of another shape, so that the stored one is needed."""
        return self._log.shape != shape

    def learn(self, observation: JobObservation, view: Mapping[str, GpuView], kept: str) -> str:
        """Add a window that has ended; returns the log to store, empty if nothing is new."""
        job, fresh = observation.job, observation.fresh
        measured, pipeline = job.measured, job.policy.pipeline
        if job.policy.profile is not None or pipeline is None:
            return ""
        if self._log.shape != observation.shape:
            self.probed = self.advice = self._tried = None
            self._suspended_mhz = ()
            self._log = MeasurementLog.restored(kept, observation.shape)
        if fresh.gpu_shift is not None and self._log.measurements:
            return self._forget()
        if measured.since_s != self._since_s:
            self._since_s = measured.since_s
            self._durations_s.clear()
        if fresh.chunk is not None:
            self._durations_s.extend(fresh.chunk.times_s)
        current = measured.current
        if (
            current is None
            or measured.straggling
            or not measured.settled
            or job.placement.complaint
        ):
            return ""
        kinds = reported_kinds(pipeline)
        detailed = all(set(kinds) <= load.busy_s.keys() for load in measured.loads)
        wanted = window_iterations(current.time_mean_s, detailed=detailed, first=self._begins)
        if self._log.measurements and measured.at_default:
            wanted = min(wanted, short_window.ITERATIONS)
        baseline_first = not self._log.measurements and not measured.at_default
        shifted = measured.drift.shift_ratio != 1.0  # default clocks are measured next
        if len(self._durations_s) < wanted or baseline_first or shifted:
            return ""
        measurement = self._measurement(job, measured, kinds, view)
        if not self._log.measurements and len(self._durations_s) < THROTTLED_WINDOWS * wanted:
            measurement = _throttled(measured.loads, view) or measurement
        if isinstance(measurement, str):
            self._said = measurement
            return ""
        self._log, self._said = self._log.add(measurement, at_default=measured.at_default)
        self._durations_s.clear()
        return self._log.state()

    def _forget(self) -> str:
        """Clocks were measured of the slowest GPU of each stage, and another one may be it now."""
        self._log = MeasurementLog(self._log.shape, restarts=self._log.restarts + 1)
        self._said = "a GPU became faster or slower than before: learning starts again"
        self._suspended_mhz = ()
        return self._log.state()

    def _measurement(
        self,
        job: JobState,
        measured: Measured,
        kinds: tuple[Kind, ...],
        view: Mapping[str, GpuView],
    ) -> Measurement | str:
        """The window as a measurement, or why it cannot be used."""
        current, times_s = measured.current, without_hiccups(self._durations_s)
        assert current is not None
        time_s = statistics.fmean(times_s)
        loads = {load.uuid: load for load in measured.loads}
        clocks, energies, busy = [], [], []
        for uuids in job.placement.stages:
            mine = [loads[uuid] for uuid in uuids if uuid in loads]
            powers = [load.power_w for load in mine if load.power_w is not None]
            if len(powers) < len(uuids):
                return "the energy counters have not been seen for long enough yet"
            setters = pace_setters(uuids, job.measured.time_ratios)
            mine = [load for load in mine if load.uuid in setters]
            clock = self._clock_mhz(tuple(setters), mine, measured, view)
            if isinstance(clock, str):
                return clock
            clocks.append(clock)
            energies.append(sum(powers) / len(powers) * time_s)
            if all(kind in load.busy_s for load in mine for kind in kinds):
                busy.append(tuple(max(load.busy_s[kind] for load in mine) for kind in kinds))
        detailed = len(busy) == len(clocks)
        return Measurement(
            tuple(clocks),
            len(self._durations_s),
            time_s,
            statistics.stdev(times_s),
            tuple(energies),
            tuple(busy) if detailed else (),
            current.operation_sd_ratio if detailed else None,
            current.gpu_sd_ratio if detailed else None,
        )

    def _clock_mhz(
        self,
        uuids: tuple[str, ...],
        loads: list[StageLoad],
        measured: Measured,
        view: Mapping[str, GpuView],
    ) -> int | str:
        """The clock that a stage ran at: its lock, or the clock observed without one."""
        asked = {measured.locks.get(uuid, 0) for uuid in uuids}
        if len(asked) > 1:
            return "GPUs of one stage are under different locks"
        lock = asked.pop()
        seen = min(load.clock_mhz for load in loads)
        if not lock and not self._log.measurements:
            return _default_mhz(view.get(uuids[0]), seen)
        usual_mhz = self._log.measurements[0].clocks_mhz if self._log.measurements else ()
        usual = usual_mhz[next(load.stage for load in loads)] if usual_mhz else lock
        wanted = min(lock, usual) if lock else usual
        if measured.at_default and _moved_together(measured, usual_mhz):
            return _default_mhz(view.get(uuids[0]), seen)
        # Without a lock a power limit moves the clock between readings, and time is measured there.
        if not seen or seen >= wanted * (REACHED_RATIO if lock else THROTTLED_RATIO):
            return lock or usual
        words = f"{lock} MHz was asked" if lock else f"{usual} MHz is usual at default clocks"
        return f"{words}, {seen} MHz was reached: not learned from"

    def decide(self, inputs: PlanningInput, state: PlannerState, advise: Advise) -> Decision:
        """The decision of a pass. Raises ValueError if the pipeline cannot be laid out, Unanswered
        while the advice is being computed.
        """
        if state.mode != inputs.mode:
            state = replace(state, mode=inputs.mode, clocks=None, suspended="")
            state = replace(state, changed_s=-math.inf)
        if state.clocks is not None:  # of a plan for training, by a profile
            state = state.after(Veto("phase", "the job evaluates"), inputs.view.now_s)
        job = replace(inputs.job, policy=replace(inputs.job.policy, profile=NO_PROFILE))
        against = [
            veto for veto in vetoes(replace(inputs, job=job)) if veto.kind != "unready"
        ]  # learning needs no solver
        if inputs.job.policy.slo.statistic != "mean":
            against.append(Veto("profile", "a p95 target needs a profile: no change"))
        if (veto := first(against)) is not None:
            known = self.advice is not None and self._log.measurements
            if releases(against):
                self.advice, self._suspended_mhz = None, ()
            elif known and any(inputs.running.values()) and not inputs.other_phase:
                self._suspended_mhz = self._now_mhz(inputs)
            return Decision("default", veto.kind, veto.text, state)
        if not self._log.measurements and any(inputs.running.values()):
            words = self._said or "no profile: the baseline has to be measured"
            return Decision("default", "probing", words, state)
        facts = self._facts(inputs)
        if isinstance(facts, str):
            return Decision("keep", "probing", facts, state)
        wait_s = facts.window_iterations * self._log.measurements[0].time_s + dwell_s(inputs)
        self.probed = ProbedJob(
            facts.constants, facts.grids, facts.alike, self._log.measurements, wait_s
        )
        self.advice = advice = self._advised(inputs, facts, advise)
        reason = f"no profile, learning from the job: {advice.reason}"
        if self._said:
            reason += f" ({self._said})"
        return self._judged(inputs, state, facts, reason)

    def _advised(self, inputs: PlanningInput, facts: ExplorerInput, advise: Advise) -> Advice:
        """The explorer's advice; after a window at default clocks, from the clocks before it."""
        suspended_mhz = self._suspended_mhz
        if any(inputs.running.values()):
            self._suspended_mhz = suspended_mhz = ()
        if len(suspended_mhz) != len(facts.now_mhz):
            return advise(facts, self._log.measurements)
        advice = advise(
            replace(facts, now_mhz=suspended_mhz, slowdown=None), self._log.measurements
        )
        if advice.time_s is None:  # the clocks before were not measured yet
            tried = self._tried
            if tried is None or tried.clocks_mhz != suspended_mhz:
                return advise(facts, self._log.measurements)
            return tried
        if advice.changes:
            return advice
        reason = f"default clocks are measured, the same clocks again; {advice.reason}"
        return replace(advice, verdict="settle", reason=reason)

    def _judged(
        self, inputs: PlanningInput, state: PlannerState, facts: ExplorerInput, reason: str
    ) -> Decision:
        advice = self.advice
        assert advice is not None
        trial = trial_of(inputs.job, facts, advice, inputs.running)
        if trial is None:
            return Decision("keep", "probing", reason, state)
        waits_s = state.changed_s + dwell_s(inputs) - inputs.view.now_s
        lowers = any(action.verb == "lower" for action in trial.actions)
        if lowers and waits_s > 0:
            words = f"{reason}; clocks are not lowered for {waits_s:.0f} s yet"
            return Decision("keep", "probing", words, state)
        counted, wanted = inputs.job.measured.current_iterations, facts.window_iterations
        if lowers and any(inputs.running.values()) and counted < wanted:
            words = f"{reason}; {counted} of {wanted} iterations seen at these clocks"
            return Decision("keep", "probing", words, state)
        sd = _late_within(inputs, trial)
        if lowers and (sd or inputs.unknown):
            why = f"no lower before the slowdown is known better than ±{sd:.1%}" if sd else ""
            words = f"{reason}; {why or 'default clocks are measured first'}"
            return Decision("keep", "probing", words, state)
        late, before = advice.verdict == "raise", remembered(inputs, state.late)
        rest_s = before.until_s - inputs.view.now_s
        # One late step is part of learning. After a second one its cause is not known before
        # default clocks are measured again.
        measured = inputs.job.measured.drift.measured_s > before.until_s - before.caution_s
        if lowers and before.count > 1 and rest_s > 0.0 and not measured:
            words = f"{reason}; clocks came out late, none are lowered for {rest_s:.0f} s yet"
            return Decision("keep", "probing", words, state)
        state = replace(state, late=late_again(inputs, before) if late else before)
        state, self._tried = replace(state, changed_s=inputs.view.now_s), advice
        return Decision("change", "probing", reason, state, plan=trial, late=late)

    def _now_mhz(self, inputs: PlanningInput) -> tuple[int, ...]:
        """The clock of each stage: its lease's, or the default one."""
        default, ratios = self._log.measurements[0].clocks_mhz, inputs.job.measured.time_ratios
        setters = (pace_setters(uuids, ratios)[0] for uuids in inputs.job.placement.stages)
        held = (inputs.running.get(setter, 0) for setter in setters)
        return tuple(mhz or top for mhz, top in zip(held, default, strict=True))

    @property
    def restarts(self) -> int:
        """How often what was learnt of this shape no longer held."""
        return self._log.restarts

    def _facts(self, inputs: PlanningInput) -> ExplorerInput | str:
        """Input of the explorer in this pass, or what it waits for."""
        if not self._log.measurements:
            self.advice = None
            return self._said or "no profile: measuring a window at default clocks"
        policy, pipeline = inputs.job.policy, inputs.job.policy.pipeline
        assert pipeline is not None
        baseline = self._log.measurements[0]
        default = baseline.clocks_mhz
        grids, models, highest = [], [], 0
        for stage, uuids in enumerate(inputs.job.placement.stages):
            placed = [inputs.view.gpus[uuid] for uuid in uuids]
            top = default[stage]
            allowed = [mhz for mhz in clocks_allowed_mhz(policy, placed) if mhz < top]
            grids.append((*allowed, top))
            models.append(placed[0].description.model)
            highest = max(highest, top, *placed[0].description.clocks_mhz)
        constants = JobConstants(pipeline, default, highest, policy.blocking_power_w)
        expected = inputs.predicted.expected(policy.name) if inputs.predicted else None
        first = len(self._log.measurements) <= FIRST_WINDOWS  # the baseline is one of them
        self._begins = first and expected is not None
        return ExplorerInput(
            constants=constants,
            grids=tuple(grids),
            now_mhz=self._now_mhz(inputs),
            budget=policy.slo.budget(baseline.time_s),
            window_iterations=window_iterations(
                baseline.time_s, detailed=bool(baseline.busy_s), first=self._begins
            ),
            alike=tuple(models.index(model) for model in models),
            host_power_w=inputs.host_power_w,
            slowdown=_slowdown(inputs),
            expected=expected,
            first=first,
            margin=_margin(inputs),
        )


def _slowdown(inputs: PlanningInput) -> Figure | None:
    """Of the clocks now, to a tenth of a point, so that the same advice is not asked for again."""
    known = inputs.job.measured.reference
    if known is None or not any(inputs.running.values()):
        return None
    return Figure(round(known.slowdown.mean, 3), round(known.slowdown.sd, 3))


def _late_within(inputs: PlanningInput, trial: Plan) -> float:
    """The standard error of the slowdown, where one of it makes the present clocks or the next
    ones late; 0 where it does not. A noisy job is late for long before that can be seen.
    """
    known, made = inputs.job.measured.reference, trial.forecast
    if known is None or made is None or inputs.allotted_s is not None:
        return 0.0
    slowdown = max(known.slowdown.mean, math.log1p(made.slowdown_ratio))
    return known.slowdown.sd if slowdown + known.slowdown.sd > inputs.budget else 0.0


def _margin(inputs: PlanningInput) -> float:
    """How far default clocks of an unsteady job may move until their next window, to a tenth of a
    point: on a day that cools they move one way.
    """
    known = inputs.job.measured.reference
    if known is None:
        return 0.0
    held_s = short_window.length_s(math.exp(known.default.mean)) / short_window.SHARE_MAX
    return round(known.wander(held_s), 3)


def _default_mhz(gpu: GpuView | None, seen_mhz: int) -> int | str:
    """The clock of the table that a GPU runs at without a lock."""
    if gpu is None or not gpu.description.clocks_mhz:
        return "a GPU of the job is not known"
    table = gpu.description.clocks_mhz
    return next((mhz for mhz in table if mhz >= seen_mhz > 0), table[-1])


def _moved_together(measured: Measured, usual_mhz: Sequence[int]) -> bool:
    """Whether half of the GPUs or more run lower at default clocks than they did, as in a hot room,
    or higher again. That is what default clocks give now; a single such GPU recovers.
    """
    shown = [load.clock_mhz / usual_mhz[load.stage] for load in measured.loads if load.clock_mhz]
    moved = statistics.median(shown) if shown else 1.0
    return not REACHED_RATIO <= moved <= 1.0 / REACHED_RATIO


def _throttled(loads: Sequence[StageLoad], view: Mapping[str, GpuView]) -> str:
    """Which GPU is slower at default clocks than others of its model; empty without one."""
    known = [load for load in loads if load.uuid in view and load.clock_mhz]
    highest: dict[str, int] = {}
    for load in known:
        model = view[load.uuid].description.model
        highest[model] = max(highest.get(model, 0), load.clock_mhz)
    for load in known:
        gpu = view[load.uuid]
        usual_mhz = highest[gpu.description.model]
        if load.clock_mhz < usual_mhz * THROTTLED_RATIO:
            seen = (
                f"{gpu.place} runs at {load.clock_mhz} MHz, others of its model at {usual_mhz} MHz"
            )
            return f"{seen}: not learned from yet"
    return ""
