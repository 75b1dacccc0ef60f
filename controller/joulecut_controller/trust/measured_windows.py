"""Windows of one job: a hold-out, or a slot under the plan beside it.

A window ends with its clocks, plan, shape or phase, and at the end of its slot. Whole ones are kept
in the store, and the saving of a week is computed from there.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from joulecut_controller.chunk import Chunk
from joulecut_controller.trust.job_step import JobStep, PlanInForce
from joulecut_controller.trust.saving import Saving, by_shape
from joulecut_controller.trust.window import Arm, MeasuredWindow

SAVING_S = 7 * 86_400.0  # what is shown is of the last week: a job of last month is another one
COVERED_RATIO_MIN = 0.5  # of a complete window: less was interrupted, whatever by
ITERATIONS_MIN = 8  # fewer give no standard deviation
LEFT_OUT_RATIO_MAX = 0.25  # of the iterations; with more no duration is usual
POWERED_RATIO_MIN = 0.5  # of the time of iterations must be known from the energy counters
SETTLING_S = 30.0  # after it clocks of all GPUs have changed, and temperatures follow
REASONS = {
    "clocks": "the clocks or the energy counter changed",
    "counter": "too few readings of the energy counters",
    "irregular": "too many outlier iterations",
    "phase": "the job began another phase",
    "plan": "another plan came into force",
    "shape": "the job's GPUs or its pipeline changed",
    "short": "too few iterations ran",
    "store": "the store did not take the window",
    "stopped": "the window was interrupted",
}


class Book(Protocol):
    """What trust writes to, and reads after a restart."""

    def keep(self, window: MeasuredWindow) -> bool:
        """Whether the store took it."""

    def note(self, job: str, text: str, generation: int) -> bool:
        """Whether the audit log took it."""

    def windows(self, job: str, since_unix_s: float) -> Sequence[MeasuredWindow] | None:
        """None where the store cannot be read."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a step belongs to: clocks known since `since_s`. `slot` is that of the schedule, None
    where there is none. A window is open while steps are `measured`; it is kept unless it ends
    before `ends_s`.
    """

    arm: Arm
    shape: str
    phase: str
    since_s: float
    generation: int
    slot: int | None = None
    measured: bool = False
    ends_s: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class _Sums:
    """What the chunks of the open window add up to."""

    opened_s: float
    gpus: int
    iterations: int = 0
    time_s: float = 0.0  # of all iterations
    square_s2: float = 0.0
    begun_s: float = math.nan
    ended_s: float = math.nan
    left_out: int = 0
    energy_j: float = 0.0
    energy_s: float = 0.0

    @property
    def mean_s(self) -> float:
        return self.time_s / self.iterations

    @property
    def sd_s(self) -> float:
        beyond = self.square_s2 - self.iterations * self.mean_s**2
        return math.sqrt(max(0.0, beyond) / (self.iterations - 1))

    @property
    def powered(self) -> bool:
        """Whether the energy counters cover enough of it."""
        return self.energy_s >= POWERED_RATIO_MIN * self.time_s

    def take(self, chunk: Chunk) -> None:
        if not self.iterations:
            self.begun_s = chunk.begun_s
        self.ended_s = chunk.at_s
        self.iterations += len(chunk.iterations)
        self.time_s += math.fsum(chunk.times_s)
        self.square_s2 += math.fsum(time_s**2 for time_s in chunk.times_s)
        self.left_out += chunk.left_out
        self.energy_j += chunk.energy_j
        self.energy_s += chunk.energy_s

    def fault(self) -> str:
        """Why it is no measurement of one steady job; its sums are right all the same."""
        if self.left_out > LEFT_OUT_RATIO_MAX * (self.iterations + self.left_out):
            return "irregular"
        if self.iterations < ITERATIONS_MIN:
            return "short"
        return "" if self.powered else "counter"


class MeasuredWindows:
    """`stale`: windows were stored since the saving was computed."""

    def __init__(self, book: Book, job: str) -> None:
        self._book, self._job = book, job
        self._mark: Mark | None = None
        self._open: _Sums | None = None
        self._plan = PlanInForce(0)  # the newest
        self._ahead_s = 0.0  # of the wall clock, over the monotonic one
        self.stale = True
        self.savings: tuple[Saving, ...] = ()  # of each shape and phase
        self.said = ""  # the newest window at default clocks, in words
        self.dropped = ""  # why there is none
        self._outcomes: Counter[tuple[Arm, str]] = Counter()

    @property
    def saving(self) -> Saving | None:
        """In the newest shape and phase."""
        return max(self.savings, key=lambda one: one.ended_unix_s, default=None)

    @property
    def measuring(self) -> Arm | Literal[""]:
        """The arm of the open window."""
        return self._mark.arm if self._mark else ""

    @property
    def outcomes(self) -> tuple[tuple[Arm, str, int], ...]:
        """Count of windows by arm and outcome."""
        return tuple((*key, count) for key, count in sorted(self._outcomes.items()))

    def see(self, step: JobStep, mark: Mark | None, *, interrupted: bool = False) -> None:
        """Adds this step. `mark` is None where nothing can be measured; `interrupted`: a hold-out
        ended early.
        """
        before, self._ahead_s = self._mark, step.unix_s - step.now_s
        if before is not None:
            why = _difference(before, mark)
            if not why:
                self._take(step.chunk)
            if why or before != mark:
                self._close(step, why or ("stopped" if interrupted else ""))
        elif interrupted and not self.dropped:
            self._count("default", "stopped")
        self._plan = step.plan or self._plan
        if mark is not None and mark.measured and self._open is None:
            self._mark = mark
            self._open = _Sums(step.now_s, len(step.measured.locks))

    def is_open(self, arm: Arm, slot: int) -> bool:
        """Whether the window of this slot is open."""
        return self._mark is not None and (self._mark.arm, self._mark.slot) == (arm, slot)

    def reckon(self, unix_s: float) -> None:
        """The saving from the last week's windows; unchanged where the store fails."""
        self.stale = False
        windows = self._book.windows(self._job, unix_s - SAVING_S)
        if windows is None:
            return
        try:
            self.savings = by_shape(windows)
        except (ValueError, ArithmeticError):  # figures on a page are no reason to stop control
            self.savings = ()

    def _take(self, chunk: Chunk | None) -> None:
        assert self._open is not None
        if chunk is not None:
            self._open.take(chunk)

    def so_far(self) -> MeasuredWindow | None:
        """The open window; None where it has no figures."""
        mark, sums, plan = self._mark, self._open, self._plan
        if mark is None or sums is None or sums.iterations < ITERATIONS_MIN:
            return None
        default = mark.arm == "default"
        return MeasuredWindow(
            job=self._job,
            shape=mark.shape,
            arm=mark.arm,
            generation=mark.generation,
            begun_unix_s=sums.begun_s + self._ahead_s,
            ended_unix_s=sums.ended_s + self._ahead_s,
            gpus=sums.gpus,
            iterations=sums.iterations,
            time_mean_s=sums.mean_s,
            time_sd_s=sums.sd_s,
            energy_j=sums.mean_s * sums.energy_j / sums.energy_s if sums.powered else 0.0,
            left_out=sums.left_out,
            phase=mark.phase,
            predicted_time_s=plan.default_time_s if default else plan.time_s,
            predicted_energy_j=plan.default_energy_j if default else plan.energy_j,
        )

    def _close(self, step: JobStep, interrupted: str) -> None:
        mark, sums = self._mark, self._open
        assert mark is not None
        assert sums is not None
        early = "stopped" if step.now_s < mark.ends_s else ""
        self._count(mark.arm, interrupted or early or sums.fault() or self._kept(mark, sums))
        self._mark = self._open = None

    def _count(self, arm: Arm, outcome: str) -> None:
        self._outcomes[arm, outcome or "kept"] += 1
        if arm == "default":
            self.dropped = REASONS[outcome] if outcome else ""

    def _kept(self, mark: Mark, sums: _Sums) -> str:
        """Stores the window; returns why it could not."""
        made = self.so_far()
        wanted_s = COVERED_RATIO_MIN * (mark.ends_s - sums.opened_s)
        if made is None or sums.ended_s - sums.begun_s < wanted_s:
            return "short"
        if not self._book.keep(made):
            return "store"
        if mark.arm == "default":
            out = f", {made.left_out} left out" if made.left_out else ""
            self.said = (
                f"{made.time_mean_s:.4g} s and {made.energy_j:.4g} J an iteration at default "
                f"clocks ({made.iterations} iterations{out})"
            )
        self.stale = True
        return ""


def _difference(before: Mark, mark: Mark | None) -> str:
    """Why a window ends before its time; empty where it does not."""
    if mark is None:
        return "stopped"
    pairs = (
        (before.shape != mark.shape, "shape"),
        (before.phase != mark.phase, "phase"),
        (before.since_s != mark.since_s or before.arm != mark.arm, "clocks"),
        (before.generation != mark.generation, "plan"),
    )
    return next((word for found, word in pairs if found), "")
