"""What is to be learnt next of a job without a profile, in words and numbers.

Apart from whoever gives the advice, since the page shows it and may not plan.
"""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["measure", "probe", "settle", "raise", "enough"]


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do next, in numbers. Ratios are of the job's present energy and of its default
    iteration time; `time_high_s` is the upper band at `clocks_mhz`.

    `probe` lowers `stages` beyond what was measured, one or several that are judged together, or
    shows whether they are waited for; `settle` changes clocks within the
    evidence; `raise` goes back because the job is late; `measure` and `enough` change nothing.
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
    readings: int = 0

    @property
    def stage(self) -> int | None:
        """The first of `stages`."""
        return self.stages[0] if self.stages else None

    @property
    def changes(self) -> bool:
        return self.verdict in ("probe", "settle", "raise")
