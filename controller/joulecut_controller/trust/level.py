"""Level of a quantity that drifts, from measurements now and then, each with its own doubt.

A random walk seen through noise (the local level model of Harvey, "Forecasting, Structural Time
Series Models and the Kalman Filter", 1989), filtered from either side. A noisy measurement is
averaged with its neighbours, a precise one is not; between two precise ones the level is a straight
line, beyond the last one it stays. How fast the level walks is estimated from what the
measurements show beyond their doubt, and is never less than `WALK_PER_S`. Pure.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

WALK_PER_S = 0.005**2 / 3600.0  # half a percent an hour: a room that warms up, a fuller switch
GAP_S_MIN = 1.0  # between two measurements


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement, as a logarithm; `variance` is its own."""

    at_s: float
    value: float
    variance: float


@dataclass(frozen=True, slots=True)
class Estimate:
    value: float
    variance: float


class Level:
    """Of one or more points in order of their times."""

    def __init__(self, measured: Iterable[Point]) -> None:
        points = tuple(measured)
        self._at_s = [point.at_s for point in points]
        self._walk = walk_per_s(points)
        self._forward = self._filtered(points)
        self._backward = self._filtered(points[::-1])[::-1]

    def at(self, at_s: float) -> Estimate:
        place = bisect_right(self._at_s, at_s)
        before = self._carried(self._forward, place - 1, at_s)
        after = self._carried(self._backward, place, at_s)
        if before is None or after is None:
            found = before or after
            assert found is not None
            return found
        share = before.variance / (before.variance + after.variance)
        value = before.value + share * (after.value - before.value)
        return Estimate(value, share * after.variance)

    @property
    def newest(self) -> Estimate:
        return self._forward[-1]

    def _carried(self, side: Sequence[Estimate], place: int, at_s: float) -> Estimate | None:
        if not 0 <= place < len(side):
            return None
        known = side[place]
        return Estimate(known.value, known.variance + self._walk * abs(at_s - self._at_s[place]))

    def _filtered(self, points: Sequence[Point]) -> list[Estimate]:
        """Each level as of the points up to it."""
        known = Estimate(points[0].value, points[0].variance)
        made = [known]
        for before, point in pairwise(points):
            variance = known.variance + self._walk * abs(point.at_s - before.at_s)
            gain = variance / (variance + point.variance)
            known = Estimate(
                known.value + gain * (point.value - known.value), gain * point.variance
            )
            made.append(known)
        return made


def walk_per_s(points: Sequence[Point]) -> float:
    """Variance that the level gains in a second."""
    moved = sum((b.value - a.value) ** 2 - a.variance - b.variance for a, b in pairwise(points))
    lasted_s = sum(max(b.at_s - a.at_s, GAP_S_MIN) for a, b in pairwise(points))
    return max(WALK_PER_S, moved / lasted_s) if lasted_s else WALK_PER_S
