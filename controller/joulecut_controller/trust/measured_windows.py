"""Windows of one job: the open one, those of the last hours, and the records of complete ones.

A window is open whenever the job runs under known clocks, its own or those of a plan. It ends with
its clocks, plan, shape or phase, and at the marks of its schedule. All windows count for the paired
slowdown and the saved joules; complete ones of a hold-out and of the plan beside it are kept in the
store as well, and the saving of a week is computed from there.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from joulecut_controller.trust.heat_sink import time_constant_s, warm_up_s
from joulecut_controller.trust.measurement import WindowMeans, WindowMeasurement
from joulecut_controller.trust.saving import Saving, saving
from joulecut_controller.trust.seen import JobSeen, PlanInForce
from joulecut_controller.trust.window import Arm, MeasuredWindow

SAVING_S = 7 * 86_400.0  # what is shown is of the last week: a job of last month is another one
COVERED_RATIO_MIN = 0.5  # of a complete window: less was interrupted, whatever by
TRACE_KEPT = 512  # temperatures: eight minutes of a pass a second
PEEK_S = 5.0  # how old figures of the open window may be
SETTLING_S = 30.0  # after it clocks of all GPUs have changed, and temperatures follow
REASONS = {
    "clocks": "the clocks or the energy counter changed",
    "counter": "too few readings of the energy counters",
    "irregular": "too many outlier iterations",
    "pace": "the iteration time changed during the window",
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
    """What a window belongs to; another one begins with another mark.

    `part` changes where a window has to end though nothing else does: at the end of a slot, or of
    the warm-up. A `complete` window is kept, unless it ends before `ends_s`. `warm`: temperatures
    have followed the last change of clocks.
    """

    arm: Arm
    shape: str
    phase: str
    since_s: float
    generation: int
    part: tuple[int, bool]
    complete: bool = False
    ends_s: float = field(default=0.0, compare=False)

    @property
    def warm(self) -> bool:
        return self.part[1]


@dataclass(frozen=True, slots=True)
class TimedWindow:
    """A window of the last hours; times are monotonic."""

    mark: Mark
    means: WindowMeans
    plan: PlanInForce | None = None  # of the newest plan

    @property
    def key(self) -> tuple[str, str]:
        """Shape and phase: windows of two are never compared."""
        return self.mark.shape, self.mark.phase

    @property
    def middle_s(self) -> float:
        return (self.means.begun_s + self.means.ended_s) / 2.0


class MeasuredWindows:
    """`stale`: windows were stored since the saving was computed."""

    def __init__(self, book: Book, job: str, *, lag_s: float) -> None:
        self._book, self._job, self._lag_s = book, job, lag_s
        self._mark: Mark | None = None
        self._open: WindowMeasurement | None = None
        self._plan: PlanInForce | None = None
        self._peeked: tuple[float, TimedWindow | None] = (0.0, None)
        self._trace: list[tuple[float, float]] = []  # since the clocks changed: seconds, degrees
        self.stale = True
        self.saving: Saving | None = None
        self.warm_up_s = warm_up_s(())
        self.said = ""  # the newest complete window at default clocks, in words
        self.dropped = ""  # why there is none
        self._outcomes: Counter[tuple[Arm, str]] = Counter()

    @property
    def measuring(self) -> Arm | Literal[""]:
        """The arm of the complete window that is open."""
        return self._mark.arm if self._mark and self._mark.complete else ""

    @property
    def outcomes(self) -> tuple[tuple[Arm, str, int], ...]:
        """Count of complete windows by arm and outcome."""
        return tuple((*key, count) for key, count in sorted(self._outcomes.items()))

    def see(
        self, seen: JobSeen, mark: Mark | None, *, interrupted: bool = False
    ) -> TimedWindow | None:
        """Adds this step. Returns the window that ended with it, if it has figures. `mark` is None
        where nothing can be measured; `interrupted`: a hold-out ended early.
        """
        ended, before = None, self._mark
        why = _difference(before, mark) if before is not None else "clocks"
        if before is not None:
            if not why:
                self._take(seen)
            if why or before != mark:
                counts = before.complete or (interrupted and not self.dropped)
                ended = self._close(seen, why or ("stopped" if interrupted else ""), counts=counts)
        if mark is not None and self._open is None:
            if before is None or before.since_s != mark.since_s:
                self._trace = []
                opened_s = mark.since_s
            else:
                opened_s = seen.now_s
            self._mark, self._plan = mark, seen.plan or self._plan
            self._open = WindowMeasurement(opened_s, seen.measured.locks, lag_s=self._lag_s)
            if why:
                self._take(seen)
            else:
                self._open.see(seen.gpus, seen.now_s)
        return ended

    def is_open(self, arm: Arm, part: tuple[int, bool]) -> bool:
        """Whether a complete window of this part is open."""
        mark = self._mark
        return mark is not None and mark.complete and (mark.arm, mark.part) == (arm, part)

    def peek(self, now_s: float) -> TimedWindow | None:
        """The open window as far as it is; None without figures."""
        if now_s - self._peeked[0] >= PEEK_S or now_s < self._peeked[0]:
            found = self._timed()
            self._peeked = (now_s, None if isinstance(found, str) else found)
        return self._peeked[1]

    def reckon(self, unix_s: float) -> None:
        """Saving and warm-up from the last week's windows; unchanged where the store fails."""
        self.stale = False
        windows = self._book.windows(self._job, unix_s - SAVING_S)
        if windows is None:
            return
        self.warm_up_s = warm_up_s(window.heat_sink_s for window in windows)
        try:
            self.saving = saving(windows)
        except (ValueError, ArithmeticError):  # figures on a page are no reason to stop control
            self.saving = None

    def _take(self, seen: JobSeen) -> None:
        assert self._open is not None
        self._open.take(seen.ended)
        celsius = self._open.see(seen.gpus, seen.now_s)
        held_s = seen.now_s - seen.measured.since_s
        if celsius is not None and held_s >= SETTLING_S and len(self._trace) < TRACE_KEPT:
            self._trace.append((held_s, celsius))

    def _timed(self) -> TimedWindow | str:
        """The open window as far as it is, or one word for why it has no figures."""
        if self._mark is None or self._open is None:
            return "short"
        means = self._open.figures()
        if isinstance(means, str):
            return means
        return TimedWindow(self._mark, means, self._plan)

    def _close(self, seen: JobSeen, interrupted: str, *, counts: bool) -> TimedWindow | None:
        mark, made = self._mark, self._timed()
        assert mark is not None
        if counts:
            early = "stopped" if seen.now_s < mark.ends_s else ""
            outcome = (
                interrupted or early or (made if isinstance(made, str) else self._kept(seen, made))
            )
            self._outcomes[mark.arm, outcome or "kept"] += 1
            if mark.arm == "default":
                self.dropped = REASONS[outcome] if outcome else ""
        self._mark = self._open = None
        self._peeked = (0.0, None)
        return None if isinstance(made, str) else made

    def _kept(self, seen: JobSeen, made: TimedWindow) -> str:
        """Stores a complete window; returns why it could not."""
        mark, means, measurement = made.mark, made.means, self._open
        plan = made.plan or PlanInForce(0)
        assert measurement is not None
        wanted_s = mark.ends_s - measurement.opened_s
        covered = means.ended_s - means.begun_s >= COVERED_RATIO_MIN * wanted_s
        if means.fault or means.energy_j is None:
            return means.fault
        if not (covered or measurement.full):
            return "short"
        later_s, default = seen.unix_s - seen.now_s, mark.arm == "default"
        window = MeasuredWindow(
            job=self._job,
            shape=mark.shape,
            arm=mark.arm,
            generation=mark.generation,
            begun_unix_s=means.begun_s + later_s,
            ended_unix_s=means.ended_s + later_s,
            gpus=measurement.gpus,
            iterations=means.iterations,
            time_mean_s=means.time_mean_s,
            time_sd_s=means.time_sd_s,
            energy_j=means.energy_j,
            left_out=means.left_out,
            temperature_celsius=means.temperature_celsius,
            heat_sink_s=time_constant_s(self._trace) if default else None,
            phase=mark.phase,
            predicted_time_s=plan.default_time_s if default else plan.time_s,
            predicted_energy_j=plan.default_energy_j if default else plan.energy_j,
        )
        if not self._book.keep(window):
            return "store"
        if default:
            out = f", {window.left_out} left out" if window.left_out else ""
            self.said = (
                f"{window.time_mean_s:.4g} s and {window.energy_j:.4g} J an iteration at default "
                f"clocks ({window.iterations} iterations{out})"
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
