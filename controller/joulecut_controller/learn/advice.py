"""What a decision on a job without a profile starts from, how far one step may go, and advice.

Apart from what computes advice, because the page shows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from joulecut_controller.learn.measurement_log import JobConstants, Measurement
from joulecut_controller.reference.reference import Figure

Verdict = Literal["measure", "probe", "settle", "raise", "enough"]
# One step below the lowest measured clock: 60 MHz on A100, 75 on A40. Power changes by 5-8 % and
# time by up to 4 % within it, which a window of 50 iterations resolves.
STEP_RATIO = 0.045
# A lowered stage may turn out to be the slowest. Even then one window is late by no more than this.
OVER_RATIO = 0.0045
# The first steps of a job whose curves other jobs let expect: as far as the worst case, work that
# slows as much as its clock, misses the budget by no more than a window over it may.
FIRST_WINDOWS = 2
FIRST_OVER_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class Expected:
    """Slopes of log time and log power against log(default clock / clock), by other jobs, with
    standard deviations.
    """

    time: float
    time_sd: float
    power: float
    power_sd: float


@dataclass(frozen=True, slots=True)
class ExplorerInput:
    """State of the job in this pass.

    `grids` are the allowed clocks by stage, ascending, ending with the default; `now_mhz` are the
    clocks in use. `budget` is the log slowdown that the policy allows. `alike` numbers the kind of
    GPU by stage: a measurement counts for its kind.
    """

    constants: JobConstants
    grids: tuple[tuple[int, ...], ...]
    now_mhz: tuple[int, ...]
    budget: float
    window_iterations: int
    alike: tuple[int, ...]
    host_power_w: float = 0.0  # per GPU
    slowdown: Figure | None = None  # log, of the clocks now, by the reference
    expected: Expected | None = None  # by other jobs
    first: bool = False  # fewer than FIRST_WINDOWS settings were measured below default clocks
    margin: float = 0.0  # log: how far default clocks may move before they are measured again

    @property
    def begins(self) -> bool:
        """Whether a step goes as far as the worst case allows."""
        return self.first and self.expected is not None

    @property
    def over_ratio(self) -> float:
        """How far the worst case of a step may miss the budget."""
        return FIRST_OVER_RATIO if self.begins else OVER_RATIO


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do next. Ratios are of the job's present energy and of its default iteration time;
    `time_high_s` is the upper band at `clocks_mhz`.

    `probe` lowers `stages` below the measured clocks, or tests whether other stages wait for them;
    `settle` changes clocks within the measured range; `raise` goes back because the job is late;
    `measure` and `enough` change nothing.
    """

    verdict: Verdict
    reason: str
    clocks_mhz: tuple[int, ...]
    stages: tuple[int, ...] = ()
    gain_ratio: float = 0.0
    time_s: float | None = None
    time_high_s: float | None = None
    deadline_s: float | None = None
    energy_j: float | None = None  # of one GPU per stage, as is the next
    baseline_energy_j: float | None = None
    baseline_time_s: float | None = None
    operations: float | None = None  # log slowdown of operations, the median over stages
    lowest_mhz: tuple[int, ...] = ()  # measured so far, by stage
    measurements: int = 0

    @property
    def stage(self) -> int | None:
        """The first of `stages`."""
        return self.stages[0] if self.stages else None

    @property
    def changes(self) -> bool:
        return self.verdict in ("probe", "settle", "raise")


def measurement_at(
    measurements: Sequence[Measurement], clocks_mhz: tuple[int, ...]
) -> Measurement | None:
    return next((one for one in measurements if one.clocks_mhz == clocks_mhz), None)


def lowest_of(measurements: Sequence[Measurement]) -> tuple[int, ...]:
    """Lowest measured clock by stage."""
    return tuple(map(min, zip(*(one.clocks_mhz for one in measurements), strict=True)))
