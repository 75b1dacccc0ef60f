"""Default windows: when a job runs at default clocks so that they are measured, and for whom.

Long ones (hold-outs) measure time and energy after a warm-up: `switchback` draws them by lot, for
the share of time that the policy gives. Short ones are a dozen iterations, for their time alone:
where the job's pace moved by itself, before clocks are lowered against an old measurement, where
the breaker suspects a plan, and now and then. They take at most `SHARE_MAX` of a job's time in the
long run. The planner suspends its plan meanwhile. A new phase needs none: its baseline is measured
before it has a plan.

A restarted controller does not catch up on hold-outs that it missed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from joulecut_controller.policy.policy import Verify
from joulecut_controller.trust.job_step import JobStep
from joulecut_controller.trust.measured_windows import (
    REASONS,
    SETTLING_S,
    Book,
    Mark,
    MeasuredWindows,
)
from joulecut_controller.trust.saved_energy import SavedEnergy
from joulecut_controller.trust.saving import HOLDOUTS_MIN, Saving
from joulecut_controller.trust.short_window import ITERATIONS, SHARE_MAX, length_s
from joulecut_controller.trust.switchback import (
    LATE_RATIO_MAX,
    NEIGHBOURS,
    WARM_UP_S,
    SwitchbackSchedule,
    clock_text,
    slot_s,
)
from joulecut_controller.trust.window import Arm
from joulecut_controller.view import BaselineDrift, GpuView

Asker = Literal["holdout", "shift", "breaker", "doubt"]
ASKERS: tuple[Asker, ...] = get_args(Asker)

SHRINK_RATIO = 1.25  # iterations must fit with this much room before slots become shorter
SHORT_SAVED = 2.0  # windows: doubt waits for two, so that one is left for shifts and the breaker
FIRST_S = 60.0  # a new leader's plans and leases come first
# Windows ahead of its share that a job has while clocks slow it by more than was planned.
OVERDRAWN = 4.0


@dataclass(frozen=True, slots=True)
class DefaultWindow:
    """A running one. `ends_s` is monotonic, infinite for a short one, which ends by iterations."""

    asker: Asker
    sentence: str
    shape: str
    phase: str
    ends_s: float
    generation: int
    slot: int = 0


@dataclass(frozen=True, slots=True)
class HoldoutsShown:
    """Hold-outs of one job. `text` is one line: what runs, what comes next, or why nothing does.
    `outcomes` counts windows since this controller began, by arm and by what became of them.
    """

    share: float
    window_s: float | None
    text: str
    held_out: bool  # default clocks run for a window now
    measuring: Arm | Literal[""] = ""
    next_unix_s: float | None = None
    outcomes: tuple[tuple[Arm, str, int], ...] = ()
    saving: Saving | None = None  # measured, of the last week's windows


@dataclass(frozen=True, slots=True)
class DefaultTime:
    """Default windows of one enforced job: their share of its time by who asked for them, how many
    seconds ago default clocks were measured (None where they have not been yet), and the sentence
    of a short one that runs.
    """

    shares: Mapping[Asker, float]
    age_s: float | None
    text: str

    @property
    def short_share(self) -> float:
        return math.fsum(self.shares.values()) - self.shares.get("holdout", 0.0)


@dataclass(frozen=True, slots=True)
class Account:
    """What default windows show of a job: joules saved since this controller began.

    `predicted_j` is promised for all time under plans. `measured_j` are those that hold-outs show,
    `promised_j` what plans promised for the same iterations, and `known_ratio` their share of the
    time under plans; None where hold-outs gave no interval.
    """

    predicted_j: float = 0.0
    measured_j: float | None = None
    promised_j: float | None = None
    known_ratio: float | None = None


class DefaultWindows:
    """Default windows of one job: measured windows, the schedule of hold-outs, and the credit of
    time for short ones, in seconds.
    """

    def __init__(self, book: Book, name: str) -> None:
        self._book = book
        self._windows, self._saved = MeasuredWindows(book, name), SavedEnergy()
        self._since_s: float | None = None  # None before the first step
        self._seen_s = 0.0
        self._running: DefaultWindow | None = None
        self._share = 0.0  # of time that the policy gives to hold-outs
        self._verify = Verify()
        self._schedule: SwitchbackSchedule | None = None
        self._scheduled_s = math.inf  # monotonic: earlier hold-outs are not caught up
        self._done: int | None = None  # the cycle whose hold-out was begun
        self._held = -NEIGHBOURS - 1  # the slot of the newest hold-out
        self._lowered_s = -math.inf  # clocks were ours last
        self._credit_s: float | None = None
        self._spent_s: dict[Asker, float] = {}
        self._measured_s = -math.inf  # default clocks, last
        self._enforced = False
        self._text = ""

    def step(self, step: JobStep) -> str:
        """Once a step, before planning. Returns the sentence of the running window, or ""."""
        self._charge(step)
        self._share = step.verify.holdout
        hindrance = step.hindrance or ("" if self._share else "the policy asks for none")
        before, resumed = self._running, None
        early = self._ends(step, hindrance)
        if before is not None and self._running is None and not early:
            resumed = before.generation  # another hold-out may follow at once
        self._text = hindrance
        if not hindrance:
            self._arrange(step)
            if self._running is None:
                self._text = self._begin_long(step, resumed=resumed)
        if self._running is None and resumed is None:
            self._begin_short(step)
        interrupted = bool(early) and before is not None and before.asker == "holdout"
        self._windows.see(step, self._mark(step, hindrance), interrupted=interrupted)
        if before is not None and before.asker == "holdout" and self._running is not before:
            self._log_end(step, before, early)
        self.reckon(step.unix_s, step.now_s)
        return self._running.sentence if self._running else ""

    def reckon(self, unix_s: float, now_s: float) -> None:
        """The saving from the windows in the store, where it has others than before."""
        if self._windows.stale:
            self._windows.reckon(unix_s)
            self._saved.learn(self._windows.savings, now_s)

    # -- shown -----------------------------------------------------------------------------

    def holdouts(self, unix_s: float) -> HoldoutsShown | None:
        """None for a job without hold-outs that was never measured."""
        share, saving, running = self._share, self._windows.saving, self._running
        if share == 0.0 and saving is None:
            return None
        schedule = self._schedule
        held_out = running is not None and running.asker == "holdout"
        ahead = schedule.next_unix_s(unix_s) if schedule and not self._text else None
        coming = f"next hold-out window at {clock_text(ahead)}" if ahead else "no hold-out windows"
        missing = HOLDOUTS_MIN - (saving.holdouts if saving else 0)
        if ahead and schedule and missing > 0:
            minutes = math.ceil(missing * schedule.slot_s / schedule.share / 60.0)
            within = f"{minutes} min" if minutes < 60 else f"{math.ceil(minutes / 60)} h"
            coming += f", a first interval within about {within}"
        text = f"no hold-out now: {self._text}" if self._text else coming
        return HoldoutsShown(
            share=share,
            window_s=schedule.slot_s - _warm_up_s(self._verify) if schedule else None,
            text=running.sentence if running and held_out else text,
            held_out=held_out,
            measuring="default" if held_out else self._windows.measuring,
            next_unix_s=ahead,
            outcomes=self._windows.outcomes,
            saving=saving,
        )

    def time(self) -> DefaultTime | None:
        """None for a job that was never enforced."""
        if self._since_s is None or self._credit_s is None:
            return None
        passed_s, age_s = self._seen_s - self._since_s, self._seen_s - self._measured_s
        running = self._running
        return DefaultTime(
            {asker: s / passed_s for asker, s in self._spent_s.items()} if passed_s > 0.0 else {},
            age_s if math.isfinite(age_s) else None,
            running.sentence if running and running.asker != "holdout" else "",
        )

    def account(self) -> Account:
        """Zeros and None for a job that was not seen yet."""
        measured_j, promised_j, known_ratio = self._saved.measured() or (None, None, None)
        return Account(self._saved.predicted_j, measured_j, promised_j, known_ratio)

    # -- turns -----------------------------------------------------------------------------

    def _charge(self, step: JobStep) -> None:
        """Time passed: on the account of the running window, and as credit for short ones."""
        if self._since_s is None:
            self._since_s = self._seen_s = step.now_s
        passed_s, self._seen_s = step.now_s - self._seen_s, step.now_s
        self._measured_s = step.measured.drift.measured_s
        self._enforced = step.enforced and step.iteration_s is not None
        if step.lowered:
            self._lowered_s = step.now_s
            # Waiting for a straggler has no hold-out beside it, and counts nowhere.
            if not step.measured.straggling:
                known = _under_plan(step)
                ran = step.chunk.ran if known and step.chunk else 0
                promised_j = ran * step.plan.saved_j if step.plan else 0.0
                kind = (step.shape, step.measured.phase.shape)
                self._saved.add(kind, step.now_s, passed_s, ran, promised_j)
        if not self._enforced or step.iteration_s is None:
            return
        expected_s = self._expected_s(step)
        if self._credit_s is None:  # one window, and the share since the last measurement
            credit_s = expected_s + SHARE_MAX * max(0.0, step.now_s - self._measured_s)
        else:
            credit_s = self._credit_s + SHARE_MAX * passed_s
        if self._running is not None:
            asker = self._running.asker
            self._spent_s[asker] = self._spent_s.get(asker, 0.0) + passed_s
            credit_s -= passed_s if asker != "holdout" else 0.0
        self._credit_s = min(credit_s, SHORT_SAVED * expected_s)

    def _expected_s(self, step: JobStep) -> float:
        """Of a short window. Clocks are not lowered again before the dwell, so it costs no less."""
        return max(length_s(step.iteration_s or 0.0), step.dwell_s)

    def _ends(self, step: JobStep, hindrance: str) -> str:
        """Ends the running window where it is over, or has to end. Returns why it ended early."""
        running = self._running
        if running is None:
            return ""
        early = ""
        if running.shape != step.shape:
            early = REASONS["shape"]
        elif running.phase != step.measured.phase.shape:
            early = REASONS["phase"]
        elif running.asker != "holdout":
            early = "" if self._enforced else "the job is not enforced now"
        elif hindrance or step.verify != self._verify:
            early = hindrance or "the policy changed"
        else:
            early = self._windows.dropped
        if running.asker == "holdout":
            over = step.now_s >= running.ends_s
        else:
            settled = step.measured.at_default and step.measured.settled
            over = settled and step.measured.current_iterations >= ITERATIONS and step.powered
        if early or over:
            self._running = None
        return early

    def _log_end(self, step: JobStep, ended: DefaultWindow, early: str) -> None:
        """Logs what a hold-out measured."""
        if early:
            said = f"ended early, nothing is counted: {early}"
        elif self._windows.said:
            said = f"ended: {self._windows.said}"
        else:
            said = f"ended: nothing is counted: {self._windows.dropped or REASONS['short']}"
        self._book.note(step.name, f"hold-out window {said}", ended.generation)

    def _arrange(self, step: JobStep) -> None:
        """The schedule for this policy and iteration time; changed as seldom as possible."""
        held_out = self._running is not None and self._running.asker == "holdout"
        if held_out or step.iteration_s is None:
            return
        verify, iteration_s = step.verify, step.iteration_s
        warm_up_s = _warm_up_s(verify)
        wanted_s = slot_s(verify.window_s, iteration_s, step.dwell_s, warm_up_s)
        slim_s = slot_s(verify.window_s, SHRINK_RATIO * iteration_s, step.dwell_s, warm_up_s)
        same = self._schedule is not None and verify == self._verify
        if same and self._schedule and wanted_s <= self._schedule.slot_s <= slim_s:
            return
        if not same or self._schedule is None or wanted_s != self._schedule.slot_s:
            self._verify = verify
            self._schedule = SwitchbackSchedule(step.name, verify.holdout, wanted_s)
            self._scheduled_s, self._done = step.now_s, None
            self._held = -NEIGHBOURS - 1

    def _due(self, schedule: SwitchbackSchedule, unix_s: float, now_s: float) -> bool:
        """Whether a hold-out should begin: at the drawn slot or, where that was prevented, at a
        later one of the cycle; never one that an earlier controller may have begun.
        """
        slot = schedule.slot(unix_s)
        cycle = schedule.cycle(slot)
        drawn = schedule.drawn(cycle)
        late = unix_s - schedule.begins_unix_s(slot) > LATE_RATIO_MAX * schedule.slot_s
        missed = schedule.begins_unix_s(drawn) - unix_s + now_s < self._scheduled_s
        return slot >= drawn and self._done != cycle and not late and not missed

    def _begin_long(self, step: JobStep, *, resumed: int | None) -> str:
        """Begins a hold-out where one is due. Returns what a due one waits for, else "".

        `resumed` is the plan that was suspended for a hold-out that ends in this step.
        """
        schedule, unix_s = self._schedule, step.unix_s
        generation = resumed
        if generation is None and step.plan is not None and step.lowered:
            generation = step.plan.generation
        if schedule is None or generation is None:
            return "no plan is in force that could be measured"
        if not self._due(schedule, unix_s, step.now_s):
            return ""
        why = "" if resumed is not None else _unsettled(step)
        if why:
            return why
        slot = schedule.slot(unix_s)
        until_unix_s = schedule.begins_unix_s(slot + 1)
        sentence = (
            "hold-out window: default clocks until "
            f"{clock_text(until_unix_s)}, to measure the saving"
        )
        if not self._book.note(step.name, f"{sentence}; it begins", generation):
            return "the store did not take the record of it"
        self._running = DefaultWindow(
            "holdout",
            sentence,
            step.shape,
            step.measured.phase.shape,
            ends_s=step.now_s + until_unix_s - unix_s,
            generation=generation,
            slot=slot,
        )
        self._done = schedule.cycle(slot)
        self._held, self._windows.said, self._windows.dropped = slot, "", ""
        return ""

    def _begin_short(self, step: JobStep) -> None:
        """Begins a short window where somebody asks for one, the account allows it, and it would
        show something: where a straggler, a power budget or another writer's lock changes the
        iteration time, default clocks tell nothing.
        """
        if not self._enforced or not step.lowered or step.measured.straggling or step.steered:
            return
        asker, why = self._asks(step)
        if asker is None:
            return
        shift = step.measured.drift.gpu_shift
        needed = SHORT_SAVED if asker == "doubt" else 1.0
        if shift is not None and shift.ratio < 1.0:
            needed -= OVERDRAWN  # our clocks slow the others by more than was planned
        if (self._credit_s or 0.0) < needed * self._expected_s(step):
            return
        sentence = f"default clocks for {ITERATIONS} iterations: {why}"
        self._running = DefaultWindow(
            asker,
            sentence,
            step.shape,
            step.measured.phase.shape,
            ends_s=math.inf,
            generation=step.plan.generation if step.plan else 0,
        )

    def _asks(self, step: JobStep) -> tuple[Asker | None, str]:
        """Who asks for a short window, the strongest reason first."""
        shifted = _shifted(step.measured.drift, step.gpus)
        if shifted:
            return "shift", shifted
        if step.suspected:
            return "breaker", step.suspected
        # A dozen iterations more say little where default clocks were only just measured.
        if not step.doubt or step.now_s - max(self._since_s or 0.0, self._measured_s) < FIRST_S:
            return None, ""
        return "doubt", step.doubt

    def _mark(self, step: JobStep, hindrance: str) -> Mark | None:
        """What this step belongs to; None where clocks are changing or not known."""
        arm: Arm = "plan" if _under_plan(step) else "default"
        measured = step.measured
        if measured.straggling or (arm == "default" and (step.lowered or not measured.at_default)):
            return None
        schedule, running, warm_up_s = self._schedule, self._running, _warm_up_s(self._verify)
        generation = step.plan.generation if arm == "plan" and step.plan else 0
        of = (arm, step.shape, measured.phase.shape, measured.since_s, generation)
        settled = measured.settled and step.now_s - measured.since_s >= min(SETTLING_S, warm_up_s)
        if arm == "default":
            if running is None or running.asker != "holdout":
                return Mark(*of)
            warm = step.now_s - self._lowered_s >= warm_up_s
            return Mark(*of, running.slot, settled and warm, running.ends_s)
        if schedule is None or hindrance:
            return Mark(*of)
        slot = schedule.slot(step.unix_s)
        into_s = step.unix_s - schedule.begins_unix_s(slot)
        warm = min(into_s, step.now_s - measured.since_s) >= warm_up_s
        near = abs(slot - self._held) <= NEIGHBOURS or schedule.is_measured(slot)
        on_time = into_s - warm_up_s <= LATE_RATIO_MAX * schedule.slot_s
        counts = near and (on_time or self._windows.is_open(arm, slot))
        return Mark(*of, slot, settled and warm and counts, step.now_s + schedule.slot_s - into_s)


def _under_plan(step: JobStep) -> bool:
    """Whether the clocks in force are those of a plan, on all GPUs."""
    lowered = step.lowered and not step.measured.at_default
    return step.plan is not None and step.as_asked and lowered


def _warm_up_s(verify: Verify) -> float:
    return verify.warm_up_s or WARM_UP_S


def _unsettled(step: JobStep) -> str:
    if not (step.measured.settled and step.as_asked):
        return "the plan's clocks have not settled yet"
    young = step.now_s - step.measured.since_s < step.dwell_s
    return "the plan is younger than its dwell" if young else ""


def _shifted(drift: BaselineDrift, gpus: Mapping[str, GpuView]) -> str:
    """How the job's pace has changed by itself since default clocks were measured; empty if not."""
    if drift.gpu_shift is not None:
        places = [gpus[uuid].place if uuid in gpus else uuid for uuid in drift.gpu_shift.uuids]
        return drift.gpu_shift.text(places)
    if drift.shift_ratio != 1.0:
        return f"iterations at the same clocks changed by {drift.shift_ratio - 1.0:+.1%}"
    return ""
