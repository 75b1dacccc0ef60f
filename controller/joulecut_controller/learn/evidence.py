"""What a decision on a job without a profile starts from, and how far one step may go."""

from collections.abc import Sequence
from dataclasses import dataclass

from joulecut_controller.learn.measurement_log import JobConstants, Measurement
from joulecut_controller.policy.policy import Slo
from joulecut_controller.reference.reference import Figure

# One step below the lowest measured clock: 60 MHz on A100, 75 on A40. Power changes by 5-8 % and
# time by up to 4 % within it, which a window of 50 iterations resolves.
STEP_RATIO = 0.045
# A lowered stage may turn out to be the slowest. Even then one window is late by no more than this.
OVER_RATIO = 0.0045


@dataclass(frozen=True, slots=True)
class ExplorerInput:
    """State of the job in this pass.

    `grids` are the allowed clocks by stage, ascending, ending with the default; `now_mhz` are the
    clocks in use. `alike` numbers the kind of GPU by stage: a measurement counts for its kind.
    """

    constants: JobConstants
    grids: tuple[tuple[int, ...], ...]
    now_mhz: tuple[int, ...]
    slo: Slo
    window_iterations: int
    alike: tuple[int, ...]
    host_power_w: float = 0.0  # per GPU
    slowdown: Figure | None = None  # log, of the clocks now, by the reference
    margin: float = 0.0  # log: how far default clocks may move before they are measured again


def measurement_at(
    measurements: Sequence[Measurement], clocks_mhz: tuple[int, ...]
) -> Measurement | None:
    return next((one for one in measurements if one.clocks_mhz == clocks_mhz), None)


def lowest_of(measurements: Sequence[Measurement]) -> tuple[int, ...]:
    """Lowest measured clock by stage."""
    return tuple(map(min, zip(*(one.clocks_mhz for one in measurements), strict=True)))
