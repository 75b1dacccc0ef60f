"""Where a power cap, and not the lock, decides the clock: seen from flat time and flat energy.

Under a cap a lower lock changes nothing until it passes the clock that the cap leaves. Such
windows say nothing about the uncapped curve, and a fit that took them for it would conclude
that lower clocks save nothing. Drivers that show the clock they run at save this detour. Pure.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from joulecut_controller.learn.rate_energy import ENERGY_NOISE
from joulecut_controller.learn.rate_window import Reading

# Uncapped, 1 % less clock saves 0.3-0.6 % of a GPU's energy on the public sweeps (above the
# knee); a window's energy is known to 0.4 %.
SAVING_SLOPE_MIN = 0.3
SAVING_SLOPE_FLAT = 0.15
DOUBTS_FLAT = 1.5  # standard deviations that the energy has to be flatter than uncapped


def capped_mhz(
    default_mhz: tuple[int, ...], readings: Sequence[Reading], alike: tuple[int, ...]
) -> tuple[int, ...]:
    """The lowest clock by stage that was no different from default; GPUs of one kind share it.

    Two readings tell where stages of the kind differ by clocks from the lowest known such clock
    down, and no stage differs otherwise. Of stages lowered together each tells by its own energy.
    """
    edges = dict(zip(alike, default_mhz, strict=True))
    for stage, kind in enumerate(alike):
        edges[kind] = max(edges[kind], default_mhz[stage])
    moved = True
    while moved:
        moved = False
        for one in readings:
            for other in readings:
                for kind, stages in _lowered(one, other, edges, alike).items():
                    if _flat(one, other, stages, edges[kind]):
                        edges[kind] = max(other.clocks_mhz[stage] for stage in stages)
                        moved = True
    return tuple(min(mhz, edges[kind]) for mhz, kind in zip(default_mhz, alike, strict=True))


def _lowered(
    one: Reading, other: Reading, edges: Mapping[int, int], alike: tuple[int, ...]
) -> dict[int, list[int]]:
    """By kind the stages that the other reading has below their edge, and this one has not; none
    where something else differs.
    """
    found: dict[int, list[int]] = {}
    for stage, (high, low) in enumerate(zip(one.clocks_mhz, other.clocks_mhz, strict=True)):
        edge_mhz = edges[alike[stage]]
        if high == low or min(high, low) >= edge_mhz:
            continue
        if high < edge_mhz or low > high:
            return {}
        found.setdefault(alike[stage], []).append(stage)
    return found


def _flat(one: Reading, other: Reading, stages: Sequence[int], edge_mhz: int) -> bool:
    """Whether what is below the edge is no different either: far above it lies nothing to save."""
    fall = fmean(1.0 - other.clocks_mhz[s] / edge_mhz for s in stages)
    later = max(0.0, other.time_s / one.time_s - 1.0)
    # Measured times are rough where a cap decides; what a GPU spends while it waits longer for
    # others is no more than as much of its energy.
    saved = later + fmean(1.0 - other.energy_j[s] / one.energy_j[s] for s in stages)
    doubt = DOUBTS_FLAT * ENERGY_NOISE * (2.0 / len(stages)) ** 0.5
    return saved < SAVING_SLOPE_FLAT * fall and saved + doubt < SAVING_SLOPE_MIN * fall
