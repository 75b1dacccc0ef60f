"""What a stretch of a job's life cost per iteration, from counters and reports alone."""

from dataclasses import dataclass

from joulecut_sim.results import Record

GAP_S = 1e-3  # far below an iteration; where there is no gap the schedule leaves none at all


@dataclass(slots=True)
class Window:
    """Whole iterations added up: seconds from reports, joules from the energy counters.

    An iteration counts once the next one began right after it: only then has its energy
    been read at both ends.
    """

    iterations: int = 0
    seconds: float = 0.0
    joules: float = 0.0
    _last: Record | None = None

    def add(self, record: Record) -> None:
        """Takes the next iteration; after a gap counting begins anew.

        A machine that stood still leaves one, too: what idle boards used in it was no iteration's.
        """
        last = self._last
        if last is not None and _follows(last, record):
            self.iterations += 1
            self.seconds += last.duration_s
            self.joules += sum(record.counters_j) - sum(last.counters_j)
        self._last = record

    def cut(self) -> None:
        """What follows does not belong to the iteration added last."""
        self._last = None

    @property
    def time_s(self) -> float | None:
        """Mean iteration time; None before the first whole iteration."""
        return self.seconds / self.iterations if self.iterations else None

    @property
    def energy_j(self) -> float | None:
        """Mean energy of all GPUs per iteration."""
        return self.joules / self.iterations if self.iterations else None


def _follows(last: Record, record: Record) -> bool:
    between_s = record.begin_s - (last.begin_s + last.duration_s)
    return record.iteration == last.iteration + 1 and abs(between_s) < GAP_S
