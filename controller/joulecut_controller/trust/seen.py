"""One job in one step, as far as default windows and the breaker's evidence depend on it.

A value made by the control loop, so that this package knows neither planner nor observer. Times
are seconds of the monotonic clock, but for `unix_s`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from joulecut_controller.policy.policy import Verify
from joulecut_controller.trust.measurement import EndedIteration
from joulecut_controller.view import BaselineDrift, GpuView


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
class JobSeen:
    """`plan` is the one whose clocks are held under leases; `lowered` says whether any clock is.
    `as_asked`: all GPUs show exactly those clocks. `since_s` is when clocks or counters changed
    last, `iterations` how many ran since then, `powered` whether their energy is known where it can
    be. `iteration_s` is the baseline's, None before it is measured.
    """

    job: str
    now_s: float
    unix_s: float
    verify: Verify
    shape: str
    phase: str
    gpus: Mapping[str, GpuView]
    locks: Mapping[str, int]
    ended: tuple[EndedIteration, ...]
    since_s: float
    iterations: int
    iteration_s: float | None
    powered: bool
    drift: BaselineDrift
    dwell_s: float
    plan: PlanInForce | None
    lowered: bool
    as_asked: bool
    at_default: bool
    settled: bool
    straggling: bool = False
    enforced: bool = True  # and no operator's pause or breaker's hold
    hindrance: str = ""  # why no hold-out can run now
    steered: bool = False  # a power budget or another writer's lock sets the iteration time
    doubt: str = ""  # why default clocks should be measured
    suspected: str = ""  # the breaker's evidence after a first window that was too slow
