"""How long a GPU has stayed at one clock, whoever set it, and what it did there.

A pass sees a clock and an energy counter; a promise speaks of means. Only what stood still
for long enough is one number that the other may be held against.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from joulecut_controller.observe.measurement_window import KINDS_MAX, RECENT
from joulecut_controller.verify.shadow import Observed
from joulecut_controller.view import GpuView, StageLoad

# Iterations in a stay: as many as `JobView.current` is a mean of, whose duration goes with it.
ITERATIONS_MIN = RECENT
SECONDS_MIN = 10.0  # the energy counter moves every 100 ms: 1 % of this at either end
SETTLE_PASSES = 2  # reports of a pass may be of the clocks before


@dataclass(slots=True)
class SteadyInterval:
    """One GPU since its clock last moved."""

    clock_mhz: int
    passes: int = 0
    iterations: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)  # sums of means, by iteration
    begun: tuple[float, float] | None = None  # seconds, joules
    ended: tuple[float, float] | None = None

    def observed(self, uuid: str, iteration_s: float) -> Observed | None:
        """None while it is too short."""
        if self.iterations < ITERATIONS_MIN or self.begun is None or self.ended is None:
            return None
        seconds = self.ended[0] - self.begun[0]
        if seconds < SECONDS_MIN:
            return None
        joules = self.ended[1] - self.begun[1]
        return Observed(
            uuid=uuid,
            clock_mhz=self.clock_mhz,
            busy_s={kind: sum_s / self.iterations for kind, sum_s in self.busy_s.items()},
            iteration_s=iteration_s,
            power_w=joules / seconds if joules > 0.0 else None,
        )

    def work(self, load: StageLoad | None, iterations: int) -> None:
        """Iterations that the GPU worked at this clock, by the job's reports."""
        if load is None or self.passes <= SETTLE_PASSES:
            return
        self.iterations += iterations
        for kind, busy_s in load.busy_s.items():
            if kind not in self.busy_s and len(self.busy_s) >= KINDS_MAX:
                continue
            self.busy_s[kind] = self.busy_s.get(kind, 0.0) + busy_s * iterations


def followed(stay: SteadyInterval | None, gpu: GpuView, taken_s: float) -> SteadyInterval:
    """The stay with this look in it; a new one where the clock moved or the counter fell."""
    shown = gpu.snapshot
    assert shown is not None
    mhz = shown.clock_sm_mhz or 0
    if stay is None or not alike(stay.clock_mhz, mhz, gpu):
        return SteadyInterval(mhz)
    stay.passes += 1
    if stay.passes <= SETTLE_PASSES or shown.energy_j is None:
        return stay
    if stay.ended is not None and shown.energy_j < stay.ended[1]:
        return SteadyInterval(mhz)
    stay.begun = stay.begun or (taken_s, shown.energy_j)
    stay.ended = (taken_s, shown.energy_j)
    return stay


def alike(one_mhz: int, other_mhz: int, gpu: GpuView) -> bool:
    """Within one step of the GPU's own clock list."""
    return abs(one_mhz - other_mhz) <= _step_mhz(gpu.description.clocks_mhz)


@lru_cache(maxsize=64)  # models of card in one cluster
def _step_mhz(clocks_mhz: tuple[int, ...]) -> int:
    return max((high - low for low, high in pairwise(clocks_mhz)), default=0)
