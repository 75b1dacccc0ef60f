"""Variance of a job's operations, from the sums that it reports.

A report has the sums of all forwards and all backwards of an iteration. Variation from operation
to operation averages out over the microbatches and moves the two sums independently; a GPU that is
slower for a whole iteration moves both together. Their variances and covariance separate the two.
Pure and bounded.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

DEVIATIONS_MIN = 16  # of all GPUs: a standard deviation is then known to a sixth
ITERATIONS_MIN = 4  # of a GPU whose deviations count


@dataclass(slots=True)
class OperationVariance:
    """Running means, variances and covariance of the mean operation of two kinds (Welford)."""

    iterations: int = 0
    first_s: float = 0.0
    second_s: float = 0.0
    first_var: float = 0.0  # sums of squared deviations
    second_var: float = 0.0
    both_var: float = 0.0
    count: float = 0.0  # operations of each kind per iteration, harmonic over the two

    def add(self, first: tuple[float, float], second: tuple[float, float]) -> None:
        """(busy seconds, operations) of one iteration, by kind."""
        if first[1] <= 0 or second[1] <= 0:
            return
        self.iterations += 1
        one, two = first[0] / first[1], second[0] / second[1]
        ahead, behind = one - self.first_s, two - self.second_s
        self.first_s += ahead / self.iterations
        self.second_s += behind / self.iterations
        self.first_var += ahead * (one - self.first_s)
        self.second_var += behind * (two - self.second_s)
        self.both_var += ahead * (two - self.second_s)
        self.count = 2.0 / (1.0 / first[1] + 1.0 / second[1])

    @property
    def known(self) -> bool:
        return self.iterations >= ITERATIONS_MIN and self.first_s > 0 and self.second_s > 0


def ratios(scatters: Iterable[OperationVariance]) -> tuple[float, float] | None:
    """Relative standard deviations of an operation, and of a GPU for a whole iteration, over
    all the GPUs given; None while too little was seen."""
    known = [one for one in scatters if one.known]
    if sum(one.iterations - 1 for one in known) < DEVIATIONS_MIN:
        return None
    operation = gpu = 0.0
    for one in known:
        spare = one.iterations - 1
        together = one.both_var / (spare * one.first_s * one.second_s)
        each = one.first_var / one.first_s**2 + one.second_var / one.second_s**2
        operation += one.count * (each / (2 * spare) - together)
        gpu += together
    return math.sqrt(max(0.0, operation / len(known))), math.sqrt(max(0.0, gpu / len(known)))
