"""What a sweep says once measured: curves, their best points, and what the best costs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from joulecut_lab.study.row import Row

Setting = tuple[str, str, int, int, str, str]


@dataclass(frozen=True, slots=True)
class Saving:
    """The fastest point of a curve against the one of least energy."""

    setting: Setting
    fastest: Row
    frugal: Row

    @property
    def saved_ratio(self) -> float:
        return 1.0 - self.frugal.energy_j / self.fastest.energy_j

    @property
    def slower_ratio(self) -> float:
        return self.frugal.time_s / self.fastest.time_s - 1.0


def curves(rows: Iterable[Row]) -> dict[Setting, tuple[Row, ...]]:
    """Stable rows by setting, clocks ascending; in the order of the file."""
    found: dict[Setting, list[Row]] = defaultdict(list)
    for row in rows:
        if row.stable:
            found[row.setting].append(row)
    return {
        setting: tuple(sorted(curve, key=lambda row: (row.clock_asked_mhz, row.clock_mhz)))
        for setting, curve in found.items()
    }


def frontier(curve: Sequence[Row]) -> tuple[Row, ...]:
    """Rows that no other beats on both time and energy, fastest first."""
    kept: list[Row] = []
    for row in sorted(curve, key=lambda row: (row.time_s, row.energy_j)):
        if not kept or row.energy_j < kept[-1].energy_j:
            kept.append(row)
    return tuple(kept)


def saving(curve: Sequence[Row]) -> Saving:
    points = frontier(curve)
    return Saving(points[0].setting, points[0], points[-1])


def savings(rows: Iterable[Row]) -> list[Saving]:
    """One per curve of at least two clocks: a single one has nothing to compare."""
    return [saving(curve) for curve in curves(rows).values() if len(curve) > 1]
