"""Counters of the control loop: passes, plans and their durations.

Plain numbers; `metrics` turns them into series.
"""

from dataclasses import dataclass, field
from typing import Literal

# From a cached answer to a solve that should have been a smaller problem.
BUCKETS_S = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

PassResult = Literal["unchanged", "changed", "failed"]
PASS_RESULTS: tuple[PassResult, ...] = ("unchanged", "changed", "failed")


@dataclass(slots=True)
class Histogram:
    """Cumulative counts per bucket, as in Prometheus."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.sum_s += seconds
        for i, bound in enumerate((*BUCKETS_S, float("inf"))):
            if seconds <= bound:
                self.counts[i] += 1


@dataclass(slots=True)
class LoopMetrics:
    """Counters since this controller began."""

    plans: Histogram = field(default_factory=Histogram)
    passes: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)  # of the event loop
    results: dict[PassResult, int] = field(default_factory=lambda: dict.fromkeys(PASS_RESULTS, 0))
    drifts: int = 0  # jobs released because a GPU showed something else than was commanded
    last_success_unix_s: float | None = None
