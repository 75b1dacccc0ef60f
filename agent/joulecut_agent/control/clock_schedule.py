"""Clock schedules: steps GPUs between clocks, on marks of operations, timed from iterations, or
while nothing uses them.

A schedule arrives whole, under its lease: the keeper has judged and journaled every clock of it and
refuses all others. `mark_schedule`, `timed_schedule` and `unused_schedule` find the clock that is
due; this module takes the steps, in the thread of a mark, a start or a reading, or in its own when
their time comes. A step below the highest clock is held for a moment only: a GPU whose agent is
gone goes up by itself.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from joulecut_agent.control.iteration_starts import MARK, IterationStarts
from joulecut_agent.control.mark_schedule import MarkSchedule, refuse_marks, refuse_pace
from joulecut_agent.control.timed_schedule import (
    SetLatencies,
    TimedSchedule,
    refuse_timed_steps,
    refuse_uncertainty,
    shortest_stretch_s,
)
from joulecut_agent.control.unused_schedule import READ_S, UnusedSchedule, refuse_unused
from joulecut_agent.counters import Counters
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.lease import STEP_S
from joulecut_agent.keeper.protocol import ProtocolError
from joulecut_agent.keeper.requests import Clear, Hold, Step
from joulecut_agent.log import log
from joulecut_wire.messages import IterationTiming, NodeSnapshot, Setting
from joulecut_wire.metrics import CONTROL_STEPS
from joulecut_wire.reports import Mark

CLOCKS_MAX = 32  # what one message to the keeper holds for each GPU
HOLD_S, HOLD_EACH_S = 0.9, 0.4  # one hold may come late by a switch of threads, or be lost
QUEUE_S_MAX = 0.5  # 16 driver calls of 30 ms; a step that waits longer does so for another reason
KEEPER_GONE_S = 1.0  # between two tries while no keeper answers
FAILED_WAIT_S = 1.0  # after an unexpected error
ACCEPTED, REFUSED, RESTED = "accepted", "refused", "rested"
RESULTS = (ACCEPTED, REFUSED, RESTED)


def refuse_schedule(setting: Setting, latencies: SetLatencies, jitter_s: float) -> str:
    """Reason why a GPU cannot follow a schedule, or ""; what is 0 is unknown."""
    if setting.unused_clock_mhz:
        return refuse_unused(setting)
    if not (setting.clock_schedule or setting.timed_steps):
        return ""
    if len(clocks_of(setting)) > CLOCKS_MAX:
        return f"a clock schedule of more than {CLOCKS_MAX} clocks"
    if not setting.timed_steps:
        return refuse_marks(setting) or refuse_pace(setting.shortest_step_s, latencies.p95_s)
    return refuse_timed_steps(setting) or refuse_uncertainty(
        shortest_stretch_s(setting), latencies.spread_s, jitter_s
    )


def clocks_of(setting: Setting) -> tuple[int, ...]:
    """The distinct clocks of a schedule, ascending."""
    clocks = [step.clock_max_mhz for step in setting.clock_schedule]
    clocks += [step.clock_max_mhz for step in setting.timed_steps]
    return tuple(sorted({*clocks, *filter(None, (setting.unused_clock_mhz,))}))


@dataclass(slots=True)
class _Gpu:
    """A GPU under a schedule."""

    uuid: str
    job: str
    generation: int
    rest_mhz: int
    schedule: MarkSchedule | TimedSchedule | UnusedSchedule
    at_mhz: int  # as the keeper has set it
    since_s: float
    next_s: float  # when another step is due
    held_s: float = math.inf  # when a lowered step was set or held
    wait_until_s: float = 0.0  # no step down before: one was refused

    @property
    def is_lowered(self) -> bool:
        return self.at_mhz < self.rest_mhz

    @property
    def due_s(self) -> float:
        """When to look at it again."""
        return min(self.next_s, self.held_s + HOLD_EACH_S)


@dataclass(eq=False)
class ClockSchedules:
    """The schedules of all GPUs. Thread-safe."""

    keeper: KeeperClient
    counters: Counters
    starts: IterationStarts
    latencies: Callable[[str], SetLatencies] = lambda _: SetLatencies()

    def __post_init__(self) -> None:
        # Called before a step of a timed schedule: GPU, clock, when it was due and when it is
        # wanted. What steps of other GPUs delay it by is thus part of its measured latency.
        self.stepping: Callable[[str, int, float, float], None] = lambda *_: None
        self._gpus: Mapping[str, _Gpu] = {}
        self._changed = threading.Condition()  # guards the GPUs; one step at a time
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="clocks", daemon=True)
        self.starts.changed = self.on_start

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._leaving = True
            self._changed.notify()

    def apply(self, job: str, generation: int, settings: tuple[Setting, ...]) -> None:
        """Takes the schedules of an accepted command, and drops those it replaces."""
        now_s, found = time.monotonic(), {}
        for setting in settings:
            uuid, rest_mhz = setting.uuid, setting.clock_max_mhz
            schedule: MarkSchedule | TimedSchedule | UnusedSchedule
            if setting.timed_steps:
                schedule = TimedSchedule(setting)
                self.starts.expect(job, uuid, setting.iteration_time_s)
            elif setting.clock_schedule:
                schedule = MarkSchedule(setting, now_s)
            elif setting.unused_clock_mhz:
                schedule = UnusedSchedule(setting, now_s)
            else:
                continue
            found[uuid] = _Gpu(uuid, job, generation, rest_mhz, schedule, rest_mhz, now_s, now_s)
        gone = {setting.uuid for setting in settings}
        with self._changed:
            kept = {uuid: gpu for uuid, gpu in self._gpus.items() if uuid not in gone}
            self._gpus = {**kept, **found}
            self._changed.notify()

    def on_mark(self, mark: Mark) -> str:
        """Takes the step that is due at a mark; reason why another's schedule has one, or "".

        A mark without a schedule is one of the job's iteration starts, and says that marks come.
        """
        self.starts.on_start(mark.job, mark.uuid, time.monotonic(), mark.iteration, MARK)
        gpu = self._gpus.get(mark.uuid)
        if gpu is not None and gpu.job != mark.job:
            return f"the clock schedule of GPU {mark.uuid} is job {gpu.job}'s, not {mark.job}'s"
        if gpu is not None and isinstance(gpu.schedule, MarkSchedule):
            with self._changed:
                gpu.schedule.mark(mark, time.monotonic())
                self._look(gpu, time.monotonic())
        return ""

    def on_start(self, uuid: str) -> None:
        """Takes the step that is due after the start of an iteration."""
        gpu = self._gpus.get(uuid)
        if gpu is not None and isinstance(gpu.schedule, TimedSchedule):
            with self._changed:
                self._look(gpu, time.monotonic())

    def on_reading(self, snapshot: NodeSnapshot) -> None:
        """Ends the leases of unused GPUs that work again. Where the keeper does not answer, their
        low clock is no longer held.
        """
        shown = {gpu.uuid: gpu for gpu in snapshot.gpus}
        with self._changed:
            for gpu, schedule in self._unused():
                if gpu.uuid in shown and snapshot.taken_at_s > gpu.since_s:
                    schedule.look(shown[gpu.uuid], snapshot.taken_at_s)
                    self._look(gpu, time.monotonic())
            used = [gpu for gpu, schedule in self._unused() if schedule.used]
            gone = {gpu.uuid for gpu in used}
            self._gpus = {uuid: gpu for uuid, gpu in self._gpus.items() if uuid not in gone}
        for gpu in used:
            log("agent", f"{gpu.uuid} is used again: its lease ends", job=gpu.job)
            with contextlib.suppress(KeeperGone, ProtocolError):
                self.keeper.ask(Clear(job=gpu.job, uuids=(gpu.uuid,), cause="used"))
                self.keeper.refresh()

    def reading_s(self) -> float:
        """The longest time between two readings; infinite where none is needed."""
        return READ_S if self._unused() else math.inf

    def _unused(self) -> list[tuple[_Gpu, UnusedSchedule]]:
        known = ((gpu, gpu.schedule) for gpu in self._gpus.values())
        return [(gpu, one) for gpu, one in known if isinstance(one, UnusedSchedule)]

    def turn(self) -> None:
        """Takes the steps that are due, raises first, and holds those below the highest clock."""
        with self._changed:
            for gpu in sorted(self._gpus.values(), key=lambda gpu: not gpu.is_lowered):
                if time.monotonic() >= gpu.next_s:
                    self._look(gpu, time.monotonic())
            self._hold(time.monotonic())

    def due_s(self) -> float:
        """Time of the next turn if no mark or start comes before."""
        return min([gpu.due_s for gpu in self._gpus.values()], default=math.inf)

    def follow_leases(self) -> None:
        """Drops schedules whose lease is gone or another's."""
        status = self.keeper.status
        if status is None:
            return
        with self._changed:
            over = set()
            for uuid, gpu in self._gpus.items():
                slot = status.slots.get(uuid)
                lease = slot.lease if slot else None
                ours = lease and (lease.job, lease.generation) == (gpu.job, gpu.generation)
                if not ours and status.taken_at_s > gpu.since_s:
                    over.add(uuid)
            if over:
                self._gpus = {u: gpu for u, gpu in self._gpus.items() if u not in over}

    def timings(self, change_error_s: Callable[[str], float]) -> tuple[IterationTiming, ...]:
        return self.starts.timings(change_error_s)

    def jitter_s(self, job: str, uuid: str) -> float:
        """Of the starts of a job on a GPU; 0 while it is unknown."""
        starts = self.starts.prediction(job, uuid, time.monotonic())
        return starts.jitter_s if starts else 0.0

    def _run(self) -> None:
        while not self._leaving:
            try:
                self.turn()
            except Exception as error:  # GPUs go up by themselves meanwhile
                log("agent", f"clock schedules failed: {type(error).__name__}: {error}", "error")
                time.sleep(FAILED_WAIT_S)
            with self._changed:
                wait_s = self.due_s() - time.monotonic()
                if wait_s > 0.0 and not self._leaving:
                    self._changed.wait(None if math.isinf(wait_s) else wait_s)

    def _look(self, gpu: _Gpu, now_s: float) -> None:
        """Takes the step that is due on one GPU."""
        before_s = gpu.due_s
        if isinstance(gpu.schedule, TimedSchedule):
            latencies = self.latencies(gpu.uuid)
            starts = self.starts.prediction(gpu.job, gpu.uuid, now_s)
            due = gpu.schedule.due(starts, latencies, now_s)
            if due.clock_mhz != gpu.at_mhz and not due.rests:
                rises = due.clock_mhz > gpu.at_mhz
                ahead_s = latencies.raise_ahead_s if rises else latencies.p5_s
                due_s = min(now_s, max(gpu.next_s, now_s - QUEUE_S_MAX))
                self.stepping(gpu.uuid, due.clock_mhz, due_s, due_s + ahead_s)
        else:
            due = gpu.schedule.due(now_s, self.latencies(gpu.uuid).raise_ahead_s)
        at_mhz = gpu.at_mhz
        if due.clock_mhz > at_mhz or (due.clock_mhz < at_mhz and now_s >= gpu.wait_until_s):
            self._step(gpu, due.clock_mhz, RESTED if due.rests else ACCEPTED)
        refused = due.clock_mhz != gpu.at_mhz
        gpu.next_s = min(due.next_s, gpu.wait_until_s) if refused else due.next_s
        if gpu.due_s < before_s:
            self._changed.notify()

    def _step(self, gpu: _Gpu, mhz: int, result: str) -> None:
        wait_s = STEP_S
        try:
            step = Step(gpu.job, gpu.generation, gpu.uuid, mhz, HOLD_S)
            done = self.keeper.ask(step).slots[0].accepted
        except (KeeperGone, ProtocolError):
            done, wait_s = False, KEEPER_GONE_S
        now_s = time.monotonic()
        if done:
            gpu.at_mhz = mhz
            gpu.held_s = now_s if gpu.is_lowered else math.inf
        else:
            gpu.wait_until_s = now_s + wait_s
        self.counters.count(CONTROL_STEPS.name, result if done else REFUSED)

    def _hold(self, now_s: float) -> None:
        """Holds every lowered step in one message, once the first of them needs it."""
        lowered = [gpu for gpu in self._gpus.values() if gpu.is_lowered]
        if not any(now_s >= gpu.held_s + HOLD_EACH_S for gpu in lowered):
            return
        try:
            slots = self.keeper.ask(Hold(tuple(gpu.uuid for gpu in lowered), HOLD_S)).slots
            held = {slot.uuid for slot in slots if slot.accepted}
        except (KeeperGone, ProtocolError):
            held = set()  # without a keeper, or without an answer, they go up
        for gpu in lowered:
            if gpu.uuid in held:
                gpu.held_s = now_s
            else:  # the keeper has raised it, or restored it
                gpu.at_mhz, gpu.held_s = gpu.rest_mhz, math.inf
                gpu.wait_until_s = now_s + KEEPER_GONE_S
                gpu.next_s = gpu.wait_until_s
                self.counters.count(CONTROL_STEPS.name, REFUSED)
