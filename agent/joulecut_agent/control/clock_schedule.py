"""Steps GPUs between clocks on the job's own marks, since a controller is a network away.

A program comes whole, under its lease: the keeper has judged and journaled every clock that
it may ask for, and refuses all others. Here is only which one is due. Where marks stop coming
the GPU goes to its highest clock and rests there: a job that went silent is never kept slow.
"""

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from joulecut_agent.counters import Tally
from joulecut_agent.keeper import lease as leases
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.lease import STEP_S, Command
from joulecut_agent.keeper.protocol import ProtocolError
from joulecut_wire.messages import ProgramStep, Setting
from joulecut_wire.metrics import CONTROL_STEPS
from joulecut_wire.reports import Mark

STEPS_MAX = 512  # begin and end of a forward and a backward of 96 microbatches, and some more
CLOCKS_MAX = 32  # what one message to the keeper holds for each GPU
LATENCIES_MIN = 5.0  # of a step: below, the clock is on its way for most of it
SILENT_S = 5.0  # before an iteration was seen whole
SILENT_ITERATIONS, SILENT_S_MIN, SILENT_S_MAX = 2.0, 1.0, 60.0
ACCEPTED, REFUSED, RESTED = "accepted", "refused", "rested"
RESULTS = (ACCEPTED, REFUSED, RESTED)
_Key = tuple[str, int | None, bool]


def refusal(setting: Setting, set_latency_p95_s: float) -> str:
    """Why a program makes no sense on this GPU, or ""; a latency of 0 is not known yet."""
    if not setting.program:
        return ""
    return _misshapen(setting) or _hurried(setting.shortest_step_s, set_latency_p95_s)


def clocks_of(setting: Setting) -> tuple[int, ...]:
    """Every clock that a program may ask for, ascending, as the keeper wants them."""
    return tuple(sorted({step.clock_max_mhz for step in setting.program}))


@dataclass(slots=True)
class _Program:
    """One GPU's. `patience_s` is how long marks may stay away."""

    job: str
    generation: int
    rest_mhz: int
    clocks_mhz: Mapping[_Key, int]
    at_mhz: int
    since_s: float
    heard_s: float
    patience_s: float = SILENT_S
    wait_s: float = 0.0  # until when no step down is tried: one was refused
    iteration: int | None = None
    begun_s: float | None = None  # the first mark of an iteration that was seen to begin

    def hear(self, iteration: int, now_s: float) -> None:
        """Learns from marks how long an iteration takes."""
        self.heard_s = now_s
        if iteration == self.iteration:
            return
        if self.begun_s is not None:
            silent_s = SILENT_ITERATIONS * (now_s - self.begun_s)
            self.patience_s = min(max(silent_s, SILENT_S_MIN), SILENT_S_MAX)
        self.begun_s = now_s if self.iteration is not None else None
        self.iteration = iteration


class Programs:
    """Safe to use from every thread."""

    def __init__(self, keeper: KeeperClient, tally: Tally) -> None:
        self._keeper = keeper
        self._tally = tally
        self._lock = threading.Lock()
        self._stepping = threading.Lock()  # a mark and a look at the same GPU, one after the other
        self._gpus: Mapping[str, _Program] = {}

    def ordered(self, job: str, generation: int, settings: tuple[Setting, ...]) -> None:
        """An order was accepted: what it says of programs holds from now on."""
        now_s, ours = time.monotonic(), {}
        for setting in settings:
            if setting.program:
                rest_mhz = setting.clock_max_mhz
                clocks = {_key(step): step.clock_max_mhz for step in setting.program}
                ours[setting.uuid] = _Program(
                    job, generation, rest_mhz, clocks, rest_mhz, now_s, now_s
                )
        self._forget({setting.uuid for setting in settings}, ours)

    def marked(self, mark: Mark) -> str:
        """Takes the step that is due at a mark; why no program waits for it, or ""."""
        program = self._gpus.get(mark.uuid)
        if program is None or program.job != mark.job:
            return f"no clock program of job {mark.job} on GPU {mark.uuid}"
        with self._stepping:
            self._hear(program, mark, time.monotonic())
        return ""

    def _hear(self, program: _Program, mark: Mark, now_s: float) -> None:
        program.hear(mark.iteration, now_s)
        at_end = mark.mark == "end"
        due_mhz = program.clocks_mhz.get((mark.kind, mark.microbatch, at_end))
        if due_mhz is None:
            due_mhz = program.clocks_mhz.get((mark.kind, None, at_end))
        if due_mhz is None or due_mhz == program.at_mhz:
            return
        if due_mhz > program.at_mhz or now_s >= program.wait_s:
            self._step(mark.uuid, program, due_mhz, ACCEPTED)

    def look(self) -> None:
        """Lets rest what hears no marks any more, and forgets what has no lease."""
        with self._stepping:
            self._look()

    def _look(self) -> None:
        status, now_s = self._keeper.status, time.monotonic()
        if status is None:
            return
        for uuid, slot in status.slots.items():
            lease, program = slot.lease, self._gpus.get(uuid)
            if program is None:
                # Left low by an agent before this one, which knew its program.
                if lease and 0 < lease.step_mhz < lease.clocks_mhz[1]:
                    rest_mhz = lease.clocks_mhz[1]
                    left = _Program(lease.job, lease.generation, rest_mhz, {}, 0, now_s, now_s)
                    self._step(uuid, left, rest_mhz, RESTED)
                continue
            ours = (program.job, program.generation)
            over = lease is None or (lease.job, lease.generation) != ours
            if over and status.taken_at_s > program.since_s:
                self._forget({uuid}, {}, program)
            elif (
                program.at_mhz != program.rest_mhz and now_s - program.heard_s > program.patience_s
            ):
                self._step(uuid, program, program.rest_mhz, RESTED)

    def _step(self, uuid: str, program: _Program, mhz: int, result: str) -> None:
        command = Command(
            leases.STEP, job=program.job, generation=program.generation, clocks_mhz={uuid: (0, mhz)}
        )
        try:
            done = self._keeper.ask(command).slots[0].accepted
        except (KeeperGone, ProtocolError):
            done = False
        if done:
            program.at_mhz = mhz
        else:
            program.wait_s = time.monotonic() + STEP_S
        self._tally.count(CONTROL_STEPS.name, result if done else REFUSED)

    def _forget(
        self, uuids: set[str], instead: Mapping[str, _Program], only: _Program | None = None
    ) -> None:
        with self._lock:
            kept = {
                u: p for u, p in self._gpus.items() if u not in uuids or (only and p is not only)
            }
            self._gpus = {**kept, **instead}


def _misshapen(setting: Setting) -> str:
    program = setting.program
    if len(program) > STEPS_MAX:
        return f"a program of {len(program)} steps; allowed: up to {STEPS_MAX}"
    if len(clocks_of(setting)) > CLOCKS_MAX:
        return f"a program with more than {CLOCKS_MAX} clocks"
    if len({_key(step) for step in program}) < len(program):
        return "a program with two steps on one mark"
    if any(step.clock_max_mhz > setting.clock_max_mhz for step in program):
        return f"a program above {setting.clock_max_mhz} MHz, the clock where it begins and rests"
    return ""


def _hurried(shortest_s: float, latency_s: float) -> str:
    if not (math.isfinite(shortest_s) and shortest_s > 0.0):
        return "the shortest step of the program is not known"
    least_s = max(STEP_S, LATENCIES_MIN * latency_s)
    if shortest_s >= least_s:
        return ""
    known = f"; clocks follow within {latency_s:g} s here" if latency_s else ""
    return f"the shortest step of the program takes {shortest_s:g} s; allowed: {least_s:g} s{known}"


def _key(step: ProgramStep) -> _Key:
    return step.kind, step.microbatch, step.at_end
