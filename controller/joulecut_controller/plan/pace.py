"""Pace: measured over modelled iteration time.

The graph has no communication and no optimizer step. Where the job's operations are measured, what
its baseline takes beside the graph is a constant that no clock changes (`constant_s`). What is
left, and all of it where operations are not measured, counts as a ratio: the solver gets the
deadline divided by it. It is learned at default clocks first, and under a plan afterwards.
"""

import math
from dataclasses import dataclass, replace

from joulecut_controller.view import JobState, Window

# Where the graph misses the measured iteration by more, it does not describe this job.
EXPLAINED_RATIO = 0.03
# Communication and optimizer take 3.6 % of the time of the graph on average in 365 published
# executions, 8.2 % at most; waiting for data may take as long as the graph. Where the operations
# are measured, the rest follows no clock.
CONSTANT_RATIO_MAX = 1.0
# Two standard errors: one false alarm in forty windows, and a false alarm only raises clocks.
DOUBT_STDERRS = 2.0
RISK_ITERATIONS_MIN = 8  # fewer do not give a standard error worth the name
TRUST_ITERATIONS_MIN = 30  # as for a baseline
BASELINE_STDERR_RATIO = 0.0025  # a tenth of a usual slowdown budget; most baselines are as good
RATIO_STEP_MIN = 0.003  # less is within the noise of a window
OVERRUN_RATIO_MAX = 1.05  # one step back at a time; the next window says whether it was enough
# A plan may turn out faster than the model says by this much. What is faster still may be the job
# itself, which would be as much faster at default clocks, where the promise is made.
FASTER_RATIO_MAX = 0.01
# After a plan came out late the correction is not relaxed for this many dwell times: a job
# must not swing between two plans of which one is late. Each plan that is late again doubles it.
CAUTION_DWELLS = 20.0
CAUTION_DOUBLINGS_MAX = 6  # at 10 s of dwell: 3.6 hours


@dataclass(frozen=True, slots=True)
class Pace:
    """`learned` is measured time over modelled time under a plan; None before any. `late` counts
    the plans that came out late since one that did not.
    """

    learned: float | None = None
    cautious_until_s: float = -math.inf
    late: int = 0

    def ratio(self, at_default: float) -> float:
        if self.learned is None:
            return at_default
        return max(self.learned, at_default * (1.0 - FASTER_RATIO_MAX))

    def shifted(self, ratio: float) -> "Pace":
        """Of a job whose iterations take `ratio` times as long at the same clocks."""
        return self if self.learned is None else replace(self, learned=ratio * self.learned)


def moved_ratio(job: JobState) -> float:
    """By how much the graph has to be scaled since it was first compared with the job. Operations
    that are reported correct the graph themselves.
    """
    reported = bool(job.measured.time_ratios) or any(load.busy_s for load in job.measured.loads)
    return 1.0 if reported else job.measured.drift.moved_ratio


def constant_s(job: JobState, measured_s: float, modelled_s: float, held_s: float) -> float:
    """Seconds of an iteration beside its pipeline, which takes `modelled_s` at default clocks,
    where the iteration takes `measured_s`; 0 unless every GPU reports its operations. `held_s`
    while the difference is noise.
    """
    if job.measured.baseline is None or not job.measured.time_ratios:
        return 0.0
    found_s = max(0.0, measured_s - modelled_s)
    step_s = max(RATIO_STEP_MIN, job.measured.baseline.stderr_ratio) * measured_s
    return held_s if abs(found_s - held_s) < step_s else found_s


def surely_above(mean_s: float, doubt_ratio: float, limit_s: float) -> bool:
    """The mean, with its relative standard error, is above the limit, and not by chance."""
    return mean_s * (1.0 - DOUBT_STDERRS * doubt_ratio) > limit_s


def doubt_ratio(window: Window, baseline: Window) -> float:
    """Relative standard error of a window's mean beside its baseline's."""
    # A usual baseline is as good as exact; the doubt of a noisy one is shared by all windows.
    rough = max(0.0, baseline.stderr_ratio**2 - BASELINE_STDERR_RATIO**2)
    return math.hypot(window.stderr_ratio, math.sqrt(rough))


def learn(
    pace: Pace,
    *,
    measured_s: float,
    iterations: int,
    doubt: float,
    modelled_s: float,
    limit_s: float,
    at_default: float,
    now_s: float,
    dwell_s: float,
) -> tuple[Pace, bool]:
    """The pace updated by the running plan, and whether the plan is late.

    Iterations take `measured_s` under the plan's clocks, with a relative standard error `doubt`;
    the model says `modelled_s`, and `limit_s` is the real deadline, all for the same work. A late
    plan is corrected at once, a fast one only after a while.
    """
    seen = measured_s / modelled_s
    before = pace.ratio(at_default)
    if iterations >= RISK_ITERATIONS_MIN and surely_above(measured_s, doubt, limit_s):
        caution_s = CAUTION_DWELLS * dwell_s * 2.0 ** min(pace.late, CAUTION_DOUBLINGS_MAX)
        overrun = min(measured_s / limit_s, OVERRUN_RATIO_MAX)
        return Pace(max(seen, before * overrun), now_s + caution_s, pace.late + 1), True
    if iterations < TRUST_ITERATIONS_MIN:
        return pace, False
    cautious = now_s < pace.cautious_until_s
    if abs(seen / before - 1.0) < max(RATIO_STEP_MIN, DOUBT_STDERRS * doubt):
        return pace if cautious else replace(pace, late=0), False
    if seen < before and cautious:
        return pace, False
    return replace(pace, learned=seen), False
