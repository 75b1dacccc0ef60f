"""Clock schedules: steps GPUs between clocks on the job's own operation marks.

A schedule arrives whole, under its lease: the keeper has judged and journaled every clock of it and
refuses all others. This module only finds the step that is due. When marks stop coming the GPU
rests at the schedule's highest clock: a silent job is never kept slow.
"""

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from joulecut_agent.counters import Counters
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.lease import STEP_S
from joulecut_agent.keeper.protocol import ProtocolError
from joulecut_agent.keeper.requests import Step
from joulecut_wire.messages import ScheduleStep, Setting
from joulecut_wire.metrics import CONTROL_STEPS
from joulecut_wire.reports import Mark

STEPS_MAX = 512  # begin and end of a forward and a backward of 96 microbatches, and some more
CLOCKS_MAX = 32  # what one message to the keeper holds for each GPU
LATENCIES_MIN = 5.0  # in a shorter step the clock is in transition most of the time
SILENT_S = 5.0  # until the duration of an iteration is known
SILENT_ITERATIONS, SILENT_S_MIN, SILENT_S_MAX = 2.0, 1.0, 60.0
ACCEPTED, REFUSED, RESTED = "accepted", "refused", "rested"
RESULTS = (ACCEPTED, REFUSED, RESTED)
_Key = tuple[str, int | None, bool]


def refuse_schedule(setting: Setting, set_latency_p95_s: float) -> str:
    """Reason why a GPU cannot follow a schedule, or ""; a latency of 0 is unknown."""
    if not setting.clock_schedule:
        return ""
    return _refuse_content(setting) or _refuse_pace(setting.shortest_step_s, set_latency_p95_s)


def clocks_of(setting: Setting) -> tuple[int, ...]:
    """The distinct clocks of a schedule, ascending."""
    return tuple(sorted({step.clock_max_mhz for step in setting.clock_schedule}))


@dataclass(slots=True)
class _Schedule:
    """The schedule of one GPU. Without a mark for `silent_s_max` it rests at `rest_mhz`."""

    job: str
    generation: int
    rest_mhz: int
    clocks_mhz: Mapping[_Key, int]
    at_mhz: int
    since_s: float
    marked_s: float
    silent_s_max: float = SILENT_S
    wait_until_s: float = 0.0  # no step down before: one was refused
    iteration: int | None = None
    iteration_began_s: float | None = None  # None if its first mark was not seen

    def observe(self, iteration: int, now_s: float) -> None:
        """Learns the duration of an iteration from its marks."""
        self.marked_s = now_s
        if iteration == self.iteration:
            return
        if self.iteration_began_s is not None:
            silent_s = SILENT_ITERATIONS * (now_s - self.iteration_began_s)
            self.silent_s_max = min(max(silent_s, SILENT_S_MIN), SILENT_S_MAX)
        self.iteration_began_s = now_s if self.iteration is not None else None
        self.iteration = iteration


class ClockSchedules:
    """The schedules of all GPUs. Thread-safe."""

    def __init__(self, keeper: KeeperClient, counters: Counters) -> None:
        self._keeper = keeper
        self._counters = counters
        self._lock = threading.Lock()
        self._stepping = threading.Lock()  # one step of one GPU at a time
        self._gpus: Mapping[str, _Schedule] = {}

    def apply(self, job: str, generation: int, settings: tuple[Setting, ...]) -> None:
        """Takes the schedules of an accepted command, and drops those it replaces."""
        now_s, schedules = time.monotonic(), {}
        for setting in settings:
            if setting.clock_schedule:
                rest_mhz = setting.clock_max_mhz
                clocks = {_key(step): step.clock_max_mhz for step in setting.clock_schedule}
                schedules[setting.uuid] = _Schedule(
                    job, generation, rest_mhz, clocks, rest_mhz, now_s, now_s
                )
        self._replace({setting.uuid for setting in settings}, schedules)

    def on_mark(self, mark: Mark) -> str:
        """Takes the step that is due at a mark; reason why no schedule has one, or ""."""
        schedule = self._gpus.get(mark.uuid)
        if schedule is None or schedule.job != mark.job:
            return f"no clock schedule of job {mark.job} on GPU {mark.uuid}"
        with self._stepping:
            self._take_step(schedule, mark, time.monotonic())
        return ""

    def rest_silent(self) -> None:
        """Rests schedules without marks, and drops those without a lease."""
        with self._stepping:
            self._rest_silent()

    def _take_step(self, schedule: _Schedule, mark: Mark, now_s: float) -> None:
        schedule.observe(mark.iteration, now_s)
        at_end = mark.mark == "end"
        due_mhz = schedule.clocks_mhz.get((mark.kind, mark.microbatch, at_end))
        if due_mhz is None:
            due_mhz = schedule.clocks_mhz.get((mark.kind, None, at_end))
        if due_mhz is None or due_mhz == schedule.at_mhz:
            return
        if due_mhz > schedule.at_mhz or now_s >= schedule.wait_until_s:
            self._step(mark.uuid, schedule, due_mhz, ACCEPTED)

    def _rest_silent(self) -> None:
        status, now_s = self._keeper.status, time.monotonic()
        if status is None:
            return
        for uuid, slot in status.slots.items():
            lease, schedule = slot.lease, self._gpus.get(uuid)
            if schedule is None:
                # A lowered step of an earlier agent, which alone knew the schedule.
                if lease and 0 < lease.step_mhz < lease.limits.max_mhz:
                    rest_mhz = lease.limits.max_mhz
                    left = _Schedule(lease.job, lease.generation, rest_mhz, {}, 0, now_s, now_s)
                    self._step(uuid, left, rest_mhz, RESTED)
                continue
            ours = (schedule.job, schedule.generation)
            over = lease is None or (lease.job, lease.generation) != ours
            silent_s = now_s - schedule.marked_s
            if over and status.taken_at_s > schedule.since_s:
                self._replace({uuid}, {}, only=schedule)
            elif schedule.at_mhz != schedule.rest_mhz and silent_s > schedule.silent_s_max:
                self._step(uuid, schedule, schedule.rest_mhz, RESTED)

    def _step(self, uuid: str, schedule: _Schedule, mhz: int, result: str) -> None:
        step = Step(schedule.job, schedule.generation, uuid, mhz)
        try:
            done = self._keeper.ask(step).slots[0].accepted
        except (KeeperGone, ProtocolError):
            done = False
        if done:
            schedule.at_mhz = mhz
        else:
            schedule.wait_until_s = time.monotonic() + STEP_S
        self._counters.count(CONTROL_STEPS.name, result if done else REFUSED)

    def _replace(
        self, uuids: set[str], schedules: Mapping[str, _Schedule], only: _Schedule | None = None
    ) -> None:
        """Drops the schedules of `uuids`, or `only` that one, and adds `schedules`."""
        with self._lock:
            kept = {
                u: s for u, s in self._gpus.items() if u not in uuids or (only and s is not only)
            }
            self._gpus = {**kept, **schedules}


def _refuse_content(setting: Setting) -> str:
    schedule = setting.clock_schedule
    if len(schedule) > STEPS_MAX:
        return f"a clock schedule of {len(schedule)} steps; allowed: up to {STEPS_MAX}"
    if len(clocks_of(setting)) > CLOCKS_MAX:
        return f"a clock schedule of more than {CLOCKS_MAX} clocks"
    if len({_key(step) for step in schedule}) < len(schedule):
        return "a clock schedule with two steps on one mark"
    if any(step.clock_max_mhz > setting.clock_max_mhz for step in schedule):
        return f"a clock schedule above {setting.clock_max_mhz} MHz, the clock where it rests"
    return ""


def _refuse_pace(shortest_s: float, latency_s: float) -> str:
    if not (math.isfinite(shortest_s) and shortest_s > 0.0):
        return "the shortest step of the clock schedule is not known"
    least_s = max(STEP_S, LATENCIES_MIN * latency_s)
    if shortest_s >= least_s:
        return ""
    known = f"; clocks follow within {latency_s:g} s here" if latency_s else ""
    shortest = f"the shortest step of the clock schedule takes {shortest_s:g} s"
    return f"{shortest}; allowed: {least_s:g} s{known}"


def _key(step: ScheduleStep) -> _Key:
    return step.kind, step.microbatch, step.at_end
