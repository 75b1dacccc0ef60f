"""One job in one step, as far as default windows and the breaker's evidence depend on it.

A value made by the control loop, so that this package knows neither planner nor observer. Times
are seconds of the monotonic clock, but for `unix_s`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from joulecut_controller.chunk import Chunk
from joulecut_controller.policy.policy import Verify
from joulecut_controller.view import GpuView, JobState, Measured


@dataclass(frozen=True, slots=True)
class PlanInForce:
    """A plan and what it predicts of an iteration, None without a forecast."""

    generation: int
    time_s: float | None = None
    energy_j: float | None = None
    default_time_s: float | None = None
    default_energy_j: float | None = None

    @property
    def saved_j(self) -> float:
        """Of an iteration, predicted; 0 without a forecast."""
        known = self.default_energy_j is not None and self.energy_j is not None
        return self.default_energy_j - self.energy_j if known else 0.0  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class JobStep:
    """`chunk` ran wholly under the clocks in force since the last step. `plan` is the one whose
    clocks are held under leases; `lowered` says whether any clock is. `as_asked`: all GPUs show
    exactly those clocks.
    """

    job: JobState
    shape: str
    now_s: float
    unix_s: float
    gpus: Mapping[str, GpuView]
    chunk: Chunk | None
    dwell_s: float
    plan: PlanInForce | None
    lowered: bool
    as_asked: bool
    enforced: bool = True  # and no operator's pause or breaker's hold
    hindrance: str = ""  # why no hold-out can run now
    steered: bool = False  # a power budget or another writer's lock sets the iteration time
    doubt: str = ""  # why default clocks should be measured
    suspected: str = ""  # the breaker's evidence after a first window that was too slow

    @property
    def name(self) -> str:
        return self.job.policy.name

    @property
    def verify(self) -> Verify:
        return self.job.policy.verify

    @property
    def measured(self) -> Measured:
        return self.job.measured

    @property
    def iteration_s(self) -> float | None:
        """The baseline's, None before it is measured."""
        return self.measured.baseline.time_mean_s if self.measured.baseline else None

    @property
    def powered(self) -> bool:
        """Whether the energy of the iterations is known where it can be."""
        baseline, current = self.measured.baseline, self.measured.current
        without = baseline is not None and baseline.power_w is None
        return without or (current is not None and current.power_w is not None)
