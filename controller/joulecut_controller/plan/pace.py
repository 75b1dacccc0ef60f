"""Pace: measured over modelled iteration time.

The graph has no communication and no optimizer step. Where the job's operations are measured, what
its baseline takes beside the graph is a constant that no clock changes (`constant_s`). What is
left, and all of it where operations are not measured, counts as a ratio: the solver gets the
deadline divided by it. It is learned at default clocks first, and under a plan afterwards.
"""

import math
from dataclasses import dataclass, replace

from joulecut_controller.view import JobView, Window

# Where the graph misses the measured iteration by more, it does not describe this job.
EXPLAINED_RATIO = 0.03
# Communication and optimizer, over the time of the graph: 3.6 % on average in 365 published
# executions, 8.2 % at most.
CONSTANT_RATIO_MAX = 0.1
# Two standard errors: one false alarm in forty windows, and a false alarm only raises clocks.
DOUBT_STDERRS = 2.0
RISK_ITERATIONS_MIN = 8  # fewer do not give a standard error worth the name
TRUST_ITERATIONS_MIN = 30  # as for a baseline
RATIO_STEP_MIN = 0.003  # less is within the noise of a window
OVERRUN_RATIO_MAX = 1.05  # one step back at a time; the next window says whether it was enough
# A plan may turn out faster than the model says by this much. What is faster still may be the job
# itself, which would be as much faster at default clocks, where the promise is made.
FASTER_RATIO_MAX = 0.01
# After a plan came out late the correction is not relaxed for this many dwell times: a job
# must not swing between two plans of which one is late.
CAUTION_DWELLS = 20.0

# A plan may turn out faster than the model says by this much. What is faster still may be the job
# itself, which would be as much faster at default clocks, where the promise is made.
FASTER_RATIO_MAX = 0.01


@dataclass(frozen=True, slots=True)
class Pace:
    """`learned` is measured time over modelled time under a plan; None before any."""

    learned: float | None = None
    cautious_until_s: float = -math.inf

    def ratio(self, at_default: float) -> float:
        if self.learned is None:
            return at_default
        return max(self.learned, at_default * (1.0 - FASTER_RATIO_MAX))

    def shifted(self, ratio: float) -> "Pace":
        """Of a job whose iterations take `ratio` times as long at the same clocks."""
        return self if self.learned is None else replace(self, learned=ratio * self.learned)


def moved_ratio(job: JobView) -> float:
    """By how much the graph has to be scaled since it was first compared with the job. Operations
    that are reported correct the graph themselves.
    """
    reported = bool(job.time_ratios) or any(load.busy_s for load in job.loads)
    return 1.0 if reported else job.drift.moved_ratio


def constant_s(job: JobView, modelled_s: float, held_s: float) -> float:
    """Seconds of an iteration beside its pipeline, which takes `modelled_s` at default clocks; 0
    unless every GPU reports its operations. `held_s` while the difference is noise.
    """
    if job.baseline is None or not job.time_ratios:
        return 0.0
    measured_s = job.baseline.time_mean_s
    found_s = max(0.0, measured_s - modelled_s)
    return held_s if abs(found_s - held_s) < RATIO_STEP_MIN * measured_s else found_s


def surely_above(window: Window, limit_s: float) -> bool:
    """The mean is above the limit, and not by chance."""
    return window.time_mean_s - DOUBT_STDERRS * _stderr_s(window) > limit_s


def learn(
    pace: Pace,
    *,
    measured: Window,
    modelled_s: float,
    limit_s: float,
    at_default: float,
    now_s: float,
    dwell_s: float,
) -> tuple[Pace, bool]:
    """The pace updated by the running plan, and whether the plan is late.

    `measured` ran under the plan's clocks, for which the model says `modelled_s`; `limit_s`
    is the real deadline. A late plan is corrected at once, a fast one only after a while.
    """
    seen = measured.time_mean_s / modelled_s
    before = pace.ratio(at_default)
    if measured.iterations >= RISK_ITERATIONS_MIN and surely_above(measured, limit_s):
        cautious_until_s = now_s + CAUTION_DWELLS * dwell_s
        overrun = min(measured.time_mean_s / limit_s, OVERRUN_RATIO_MAX)
        return Pace(max(seen, before * overrun), cautious_until_s), True
    if measured.iterations < TRUST_ITERATIONS_MIN or abs(seen / before - 1.0) < RATIO_STEP_MIN:
        return pace, False
    if seen < before and now_s < pace.cautious_until_s:
        return pace, False
    return replace(pace, learned=seen), False


def _stderr_s(window: Window) -> float:
    return window.time_sd_s / math.sqrt(window.iterations)
