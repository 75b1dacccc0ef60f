"""Bloat of one job, by kind: power above the frontier at the clocks that run. Predicted.

A plan removes bloat. Once it is applied only its gap to the lower bound is left; what it removed
shows as saved power, never as bloat.
"""

from joulecut_controller.board import JobBoard

KINDS = ("intrinsic", "extrinsic", "variability")


def bloat_w(job: JobBoard) -> dict[str, float]:
    """Watts of each known kind. Empty while a job without a profile is learnt: its frontier is not
    known then.
    """
    forecast = job.decision.forecast if job.decision else None
    if forecast is None or not forecast.bounded:
        return {}
    before = (
        forecast.intrinsic_bloat_w,
        forecast.extrinsic_bloat_w,
        forecast.variability_bloat_w,
    )
    known = {kind: watts for kind, watts in zip(KINDS, before, strict=True) if watts is not None}
    if job.applied is None or job.applied != job.decision:
        return known
    gap_w = (forecast.energy_j - forecast.lower_bound_j) / forecast.iteration_time_s
    left = {"intrinsic": max(0.0, gap_w), "extrinsic": 0.0}
    return left | {kind: 0.0 for kind in known if kind == "variability"}
