"""A job's baseline in the store, so that a controller that starts anew need not measure it again.

Written when it says something new: a mean that moves with every iteration would be written
every pass.
"""

from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.ports import Store
from joulecut_controller.view import Window

NEWS_RATIO = 0.002  # a mean that moved less plans the same clocks


class BaselineRecord:
    """What the store holds of one job, as far as this controller wrote it."""

    def __init__(self, store: Store, job: str) -> None:
        self._store, self._job = store, job
        self._kept: tuple[str, Window] | None = None  # with the shape of the job it is of

    def keep(self, observation: JobObservation) -> None:
        """Raises Unavailable; the next pass then tries again."""
        baseline, kept = observation.measured.baseline, self._kept
        if baseline is None:
            return
        if kept and kept[0] == observation.shape:
            moved = abs(baseline.time_mean_s / kept[1].time_mean_s - 1.0)
            richer = kept[1].energy_j is None and baseline.energy_j is not None
            if moved < NEWS_RATIO and not richer:
                return
        self._store.keep_baseline(self._job, observation.shape, baseline)
        self._kept = (observation.shape, baseline)
