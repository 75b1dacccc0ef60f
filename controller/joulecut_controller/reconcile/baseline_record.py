"""One job's baseline in the store: a new leader goes on with it, and knows when to look again."""

import math

from joulecut_controller.observe.baseline import Recalled
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.ports import StoredBaseline
from joulecut_controller.reconcile.context import ReconcileContext, in_thread
from joulecut_controller.view import BaselineDrift

BASELINE_STEP_RATIO = 0.002  # a mean that moved less plans the same clocks
SHAPES_KEPT = 32  # of a job in memory: a job that moves every hour finds those of a day
BASELINE_STEP_S = 300.0  # a new leader looks so much sooner at most


class BaselineRecord:
    """Written where it changed by BASELINE_STEP_RATIO or has become newer by BASELINE_STEP_S: at
    default clocks both move with every iteration.
    """

    def __init__(self, context: ReconcileContext, job: str) -> None:
        self._context, self._job = context, job
        self._kept: dict[str, StoredBaseline] | None = None  # by shape

    async def begin(self) -> None:
        """Reads what an earlier controller measured. Raises Unavailable."""
        if self._kept is None:
            known = await in_thread(self._context.store.baselines, self._job)
            self._kept = dict([*known.items()][-SHAPES_KEPT:])

    def recall(self, shape: str) -> Recalled | None:
        """The baseline that was measured in this shape; None without one."""
        kept = self._kept.get(shape) if self._kept else None
        if kept is None:
            return None
        age_s = math.inf
        if kept.measured_unix_s is not None:
            age_s = self._context.unix_s() - kept.measured_unix_s
        # Below 0 the wall clock was set back since, and the age is not known.
        return Recalled(kept.window, age_s if age_s >= 0.0 else math.inf)

    async def keep(self, observation: JobObservation) -> None:
        """Raises Unavailable; the next pass then tries again."""
        baseline, drift = observation.job.measured.baseline, observation.job.measured.drift
        if baseline is None or self._kept is None:
            return
        made = StoredBaseline(baseline, self._measured_unix_s(drift))
        kept = self._kept.get(observation.shape)
        if kept is not None and not _differs(made, kept):
            return
        await in_thread(self._context.store.keep_baseline, self._job, observation.shape, made)
        self._kept.pop(observation.shape, None)
        self._kept[observation.shape] = made
        if len(self._kept) > SHAPES_KEPT:
            del self._kept[next(iter(self._kept))]

    def _measured_unix_s(self, drift: BaselineDrift) -> float | None:
        """None where the job has changed since, so that a new leader looks soon."""
        age_s = self._context.now_s() - drift.measured_s
        moved = drift.shift_ratio != 1.0 or drift.gpu_shift is not None
        if moved or not math.isfinite(age_s):
            return None
        return self._context.unix_s() - age_s


def _differs(made: StoredBaseline, kept: StoredBaseline) -> bool:
    """Whether a new leader would notice."""
    new, old = made.window, kept.window
    moved = abs(new.time_mean_s / old.time_mean_s - 1.0) >= BASELINE_STEP_RATIO
    richer = old.energy_j is None and new.energy_j is not None
    if made.measured_unix_s is None or kept.measured_unix_s is None:
        return moved or richer or made.measured_unix_s != kept.measured_unix_s
    newer_s = abs(made.measured_unix_s - kept.measured_unix_s)
    return moved or richer or newer_s >= BASELINE_STEP_S
