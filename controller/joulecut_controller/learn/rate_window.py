"""One window of a job that nobody profiled, and what is known of the job without measuring.

What is measured is written down, kept in a store and read by parts that fit nothing; so it
knows nothing of fits. Pure.
"""

from dataclasses import dataclass

from joulecut_engine.graph.pipeline import Pipeline

TIME_NOISE_MIN = 1e-4  # of a mean iteration time: clocks of computers are no better over a window


@dataclass(frozen=True, slots=True)
class Reading:
    """One window of iterations under one set of clocks (MHz, observed, by stage).

    `energy_j` is per iteration and GPU, by stage; `busy_s` the mean seconds of one operation by
    stage and kind (order of `workload.KINDS`), empty at L1; then `operation_sd_ratio` is None.
    """

    clocks_mhz: tuple[int, ...]
    iterations: int
    time_s: float
    time_sd_s: float
    energy_j: tuple[float, ...]
    busy_s: tuple[tuple[float, ...], ...] = ()
    operation_sd_ratio: float | None = None  # of one operation; None where nobody told it

    @property
    def stderr_ratio(self) -> float:
        return float(max(TIME_NOISE_MIN, self.time_sd_s / self.time_s / self.iterations**0.5))


@dataclass(frozen=True, slots=True)
class Ground:
    """What is known without measuring. `default_mhz` is what each stage is seen to run at
    without a lock: under a power cap that is below the highest clock.
    """

    pipeline: Pipeline
    default_mhz: tuple[int, ...]
    clock_max_mhz: int
    blocking_power_w: float  # 0 where nobody said
