"""Hold-out windows: which job runs at default clocks now, so that its saving can be measured.

`trust.switchback` schedules them; here it is decided whether one may begin. The planner suspends
its plan meanwhile, and `holdout_windows` measures. A restarted controller does not catch up on
hold-outs that it missed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from joulecut_controller.board import Holdout
from joulecut_controller.observe.iteration_stats import Measured
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.goal import dwell_s
from joulecut_controller.plan.plan import Plan
from joulecut_controller.plan.planner import obstacle
from joulecut_controller.plan.planning_input import PlanningInput
from joulecut_controller.policy.policy import JobPolicy, Verify
from joulecut_controller.ports import Store
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.holdout_windows import REASONS, HoldoutWindows
from joulecut_controller.reconcile.online_profiler import NO_PROFILE
from joulecut_controller.trust.saving import HOLDOUTS_MIN
from joulecut_controller.trust.switchback import (
    LATE_RATIO_MAX,
    NEIGHBOURS,
    SwitchbackSchedule,
    clock_text,
    most_at_once,
    slot_s,
)
from joulecut_controller.trust.window import Arm
from joulecut_wire.errors import JoulecutError

SETTLING_S = 30.0  # after it clocks of all GPUs have changed: temperatures are followed
SHRINK_RATIO = 1.25  # iterations must fit with this much room before slots become shorter


@dataclass(frozen=True, slots=True)
class _OpenHoldout:
    """A running hold-out. `ends_s` is monotonic, so that setting the wall clock changes nothing."""

    slot: int
    number: int
    sentence: str
    ends_s: float
    shape: str
    plan: Plan


@dataclass(slots=True)
class _Job:
    """One job's schedule and windows."""

    windows: HoldoutWindows
    verify: Verify = field(default_factory=Verify)
    schedule: SwitchbackSchedule | None = None
    since_s: float = math.inf  # of the schedule, monotonic: earlier hold-outs are not caught up
    done: int | None = None  # the cycle whose hold-out was begun
    held: int = -NEIGHBOURS - 1  # the slot of the newest hold-out
    holdout: _OpenHoldout | None = None
    text: str = ""

    def due(self, schedule: SwitchbackSchedule, unix_s: float, now_s: float) -> bool:
        """Whether a hold-out should begin: at the drawn slot or, where that was prevented, at a
        later one of the cycle; never one that an earlier controller may have begun.
        """
        slot = schedule.slot(unix_s)
        cycle = schedule.cycle(slot)
        drawn = schedule.drawn(cycle)
        late = unix_s - schedule.begins_unix_s(slot) > LATE_RATIO_MAX * schedule.slot_s
        missed = schedule.begins_unix_s(drawn) - unix_s + now_s < self.since_s
        return slot >= drawn and self.done != cycle and not late and not missed


class Holdouts:
    """Hold-outs and measured windows of every job."""

    def __init__(
        self, store: Store, audit: AuditLog, unix_s: Callable[[], float], *, lag_s: float
    ) -> None:
        self._store, self._audit, self._unix_s, self._lag_s = store, audit, unix_s, lag_s
        self._jobs: dict[str, _Job] = {}
        self._asked: dict[str, float] = {}  # the share of time, by job
        self._shares: dict[str, float] = {}  # the same of jobs that are enforced
        self._reckoned_s = -math.inf

    def keep_only(self, jobs: Mapping[str, JobPolicy]) -> None:
        """Forgets jobs that left the policy, and updates the shares of the others."""
        for name in [name for name in self._jobs if name not in jobs]:
            del self._jobs[name]
        self._asked = {name: job.verify.holdout for name, job in jobs.items()}
        enforced = {name for name, job in jobs.items() if job.mode == "enforce"}
        self._shares = {n: share for n, share in self._asked.items() if n in enforced and share}

    def step(
        self,
        inputs: PlanningInput,
        observation: JobObservation,
        applied: Plan | None,
        learning: str,
    ) -> str:
        """Once a pass, before planning. Returns the sentence of the running hold-out, or "".

        `applied` is the plan whose clocks are held; `learning` says why there is none yet.
        """
        name, verify = inputs.job.policy.name, inputs.job.policy.verify
        job = self._job(name)
        hindrance = _hindrance(inputs, observation.measured, learning)
        dropped = job.windows.see(inputs, observation, applied, hindrance)
        holdout, resting = job.holdout, None
        if holdout is not None:
            early = hindrance or ("the policy changed" if verify != job.verify else "")
            early = (
                early or (REASONS["shape"] if holdout.shape != observation.shape else "") or dropped
            )
            over = inputs.view.now_s >= holdout.ends_s
            if early or over:
                self._end(name, job, holdout, early, over=over)
                resting = None if early else holdout.plan  # another hold-out may follow at once
        job.text = hindrance
        if not hindrance:
            self._arrange(name, job, inputs)
            if job.holdout is None:
                job.text = self._begin(name, job, inputs, observation, applied, resting=resting)
            self._open(job, inputs, observation, applied)
        # One job a pass, since it takes a while.
        if job.windows.stale and self._reckoned_s != inputs.view.now_s:
            self._reckoned_s = inputs.view.now_s
            job.windows.reckon()
        return job.holdout.sentence if job.holdout else ""

    def shown(self, name: str) -> Holdout | None:
        """For the board; None for a job without hold-outs that was never measured."""
        job, share = self._jobs.get(name), self._asked.get(name, 0.0)
        if job is None or (share == 0.0 and job.windows.saving is None):
            return None
        now_unix_s, holdout = self._unix_s(), job.holdout
        ahead = job.schedule.next_unix_s(now_unix_s) if job.schedule and not job.text else None
        waiting = f"no hold-out now: {job.text}" if job.text else ""
        coming = f"next hold-out window at {clock_text(ahead)}" if ahead else "no hold-out windows"
        saving, schedule = job.windows.saving, job.schedule
        missing = HOLDOUTS_MIN - (saving.holdouts if saving else 0)
        if ahead and schedule and missing > 0:
            hours = math.ceil(missing * schedule.slot_s / schedule.share / 3600.0)
            coming += f", a first interval within about {hours} h"
        return Holdout(
            share=share,
            window_s=job.schedule.slot_s - job.windows.warm_up_s if job.schedule else None,
            text=holdout.sentence if holdout else waiting or coming,
            held_out=holdout is not None,
            measuring=job.windows.measuring,
            next_unix_s=ahead,
            outcomes=job.windows.outcomes,
            saving=saving,
        )

    def _job(self, name: str) -> _Job:
        if name not in self._jobs:
            windows = HoldoutWindows(self._store, name, self._unix_s, lag_s=self._lag_s)
            self._jobs[name] = _Job(windows)
        return self._jobs[name]

    # -- turns -----------------------------------------------------------------------------

    def _arrange(self, name: str, job: _Job, inputs: PlanningInput) -> None:
        """The schedule for this policy and iteration time; changed as seldom as possible."""
        verify, baseline = inputs.job.policy.verify, inputs.job.baseline
        if job.holdout is not None or baseline is None:
            return
        dwell, warm_up_s = dwell_s(inputs), job.windows.warm_up_s
        wanted_s = slot_s(verify.window_s, baseline.time_mean_s, dwell, warm_up_s)
        slim_s = slot_s(verify.window_s, SHRINK_RATIO * baseline.time_mean_s, dwell, warm_up_s)
        stands = job.schedule is not None and verify == job.verify
        if stands and job.schedule and wanted_s <= job.schedule.slot_s <= slim_s:
            return
        if verify != job.verify or job.schedule is None or wanted_s != job.schedule.slot_s:
            job.verify = verify
            job.schedule = SwitchbackSchedule(name, verify.holdout, wanted_s)
            job.since_s, job.done = inputs.view.now_s, None
            job.held = -NEIGHBOURS - 1
            job.windows.stop()
            job.windows.renew()

    def _begin(
        self,
        name: str,
        job: _Job,
        inputs: PlanningInput,
        observation: JobObservation,
        applied: Plan | None,
        *,
        resting: Plan | None,
    ) -> str:
        """Begins a hold-out where one is due. Returns what a due one waits for, else "".

        `resting` is the plan that was suspended for a hold-out that ends in this pass.
        """
        schedule, unix_s = job.schedule, self._unix_s()
        plan = resting or (applied if any(inputs.running.values()) else None)
        if schedule is None or plan is None:
            return "no plan is in force that could be measured"
        if not job.due(schedule, unix_s, inputs.view.now_s):
            return ""
        why = self._crowded() or ("" if resting else _unsettled(inputs, observation.measured))
        if why:
            return why
        slot = schedule.slot(unix_s)
        until_unix_s = schedule.begins_unix_s(slot + 1)
        number = schedule.number_of_day(slot)
        sentence = (
            f"hold-out window {number} of today: default clocks until "
            f"{clock_text(until_unix_s)}, to measure the saving"
        )
        if not self._note(name, f"{sentence}; it begins", plan.generation):
            return "the store did not take the record of it"
        ends_s = inputs.view.now_s + until_unix_s - unix_s
        job.holdout = _OpenHoldout(slot, number, sentence, ends_s, observation.shape, plan)
        job.done, job.held = schedule.cycle(slot), slot
        job.windows.renew()
        return ""

    def _crowded(self) -> str:
        running = sum(job.holdout is not None for job in self._jobs.values())
        free = running < most_at_once(tuple(self._shares.values()))
        return "" if free else "another job's hold-out window is running"

    def _end(self, name: str, job: _Job, holdout: _OpenHoldout, why: str, *, over: bool) -> None:
        """Ends the hold-out and logs what it measured."""
        said = f"ended{'' if over else ' early'}"
        kept = job.windows.stop()
        job.holdout = None
        said += f": {kept}" if kept else f", nothing is counted: {why or REASONS['short']}"
        self._note(
            name, f"hold-out window {holdout.number} of today {said}", holdout.plan.generation
        )

    def _note(self, name: str, text: str, generation: int) -> bool:
        """Whether the audit log took it. A failing store costs a window, not a pass."""
        try:
            self._audit.note("verify", name, text, generation=generation)
        except JoulecutError:
            return False
        return True

    # -- windows ---------------------------------------------------------------------------

    def _open(
        self, job: _Job, inputs: PlanningInput, observation: JobObservation, applied: Plan | None
    ) -> None:
        """Opens a window where the clocks of its arm have run for long enough."""
        schedule, measured, now_s = job.schedule, observation.measured, inputs.view.now_s
        warm_up_s, held_s = job.windows.warm_up_s, now_s - measured.since_s
        settled = measured.settled and held_s >= SETTLING_S
        if job.windows.measuring or schedule is None or not settled:
            return
        holdout = job.holdout
        arm: Arm = "plan" if holdout is None else "default"
        if holdout is not None:
            if job.windows.tried == holdout.slot or not measured.at_default:
                return
            slot, plan, ends_s = holdout.slot, holdout.plan, holdout.ends_s
            opens_s = max(now_s, measured.since_s + warm_up_s)
        else:
            unix_s = self._unix_s()
            slot = schedule.slot(unix_s)
            into_s = unix_s - schedule.begins_unix_s(slot)
            late = into_s > warm_up_s + LATE_RATIO_MAX * schedule.slot_s
            warm = min(into_s, held_s) >= warm_up_s
            near = abs(slot - job.held) <= NEIGHBOURS or schedule.is_measured(slot)
            running = applied is not None and inputs.measured_applied and not measured.at_default
            if job.windows.tried == slot or not warm or late or not near or not running:
                return
            assert applied is not None
            plan, opens_s, ends_s = applied, now_s, now_s + schedule.slot_s - into_s
        job.windows.open(arm, slot, plan, observation, opens_s=opens_s, ends_s=ends_s)


def _unsettled(inputs: PlanningInput, measured: Measured) -> str:
    if not (measured.settled and inputs.measured_applied):
        return "the plan's clocks have not settled yet"
    young = inputs.view.now_s - measured.since_s < dwell_s(inputs)
    return "the plan is younger than its dwell" if young else ""


def _hindrance(inputs: PlanningInput, measured: Measured, learning: str) -> str:
    """Why no hold-out may begin and a running one ends; empty where there is no reason."""
    job = inputs.job
    if not job.policy.verify.holdout:
        return "the policy asks for none"
    if inputs.mode != "enforce":
        return job.reservation or f"mode is {inputs.mode}"
    if job.policy.profile is None:
        job = replace(job, policy=replace(job.policy, profile=NO_PROFILE))
    hindered = obstacle(replace(inputs, job=job))
    if hindered:
        return hindered[1]
    return "waiting for a straggler" if measured.straggling else learning
