"""Advice for a job without a profile: what to measure next.

A module of its own, because the page shows advice and must not import what computes it.
"""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["measure", "probe", "settle", "raise", "enough"]


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do next. Ratios are of the job's present energy and of its default iteration time;
    `time_high_s` is the upper band at `clocks_mhz`.

    `probe` lowers `stages` below the measured clocks, or tests whether other stages wait for them;
    `settle` changes clocks within the measured range; `raise` goes back because the job is late;
    `measure` and `enough` change nothing.
    """

    verdict: Verdict
    reason: str
    clocks_mhz: tuple[int, ...]
    stages: tuple[int, ...] = ()
    gain_ratio: float = 0.0
    gain_doubt_ratio: float = 0.0
    time_s: float | None = None
    time_high_s: float | None = None
    deadline_s: float | None = None
    energy_j: float | None = None  # of one GPU per stage, as is the next
    baseline_energy_j: float | None = None
    baseline_time_s: float | None = None
    lowest_mhz: tuple[int, ...] = ()  # measured so far, by stage
    measurements: int = 0

    @property
    def stage(self) -> int | None:
        """The first of `stages`."""
        return self.stages[0] if self.stages else None

    @property
    def changes(self) -> bool:
        return self.verdict in ("probe", "settle", "raise")
