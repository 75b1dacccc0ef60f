"""Where a power cap, and not the lock, decides the clock: seen from flat time and flat energy.

Under a cap a lower lock changes nothing until it passes the clock that the cap leaves. Such
windows say nothing about the uncapped curve, and a fit that took them for it would conclude
that lower clocks save nothing. Drivers that show the clock they run at save this detour. Pure.
"""

from collections.abc import Sequence

from joulecut_controller.predict.rate import Reading

# Uncapped, 1 % less clock saves 0.3-0.6 % of a GPU's energy on the public sweeps (above the
# knee); a window's energy is known to 0.4 %.
SAVING_SLOPE_MIN = 0.15
TIME_FLAT = 0.002
# Over less than this what would be saved uncapped is no more than the noise of two counters.
FALL_MIN = 0.04


def capped_mhz(
    default_mhz: tuple[int, ...], readings: Sequence[Reading], alike: tuple[int, ...]
) -> tuple[int, ...]:
    """The lowest clock by stage that was no different from default; GPUs of one kind share it.

    Two readings tell where they differ in one stage only.
    """
    edges = dict(zip(alike, default_mhz, strict=True))
    for stage, kind in enumerate(alike):
        edges[kind] = max(edges[kind], default_mhz[stage])
    moved = True
    while moved:
        moved = False
        for one in readings:
            for other in readings:
                changed = _lowered(one, other)
                if changed is None:
                    continue
                kind, low_mhz = alike[changed], other.clocks_mhz[changed]
                if low_mhz < edges[kind] <= one.clocks_mhz[changed] and _flat(one, other, changed):
                    edges[kind] = low_mhz
                    moved = True
    return tuple(min(mhz, edges[kind]) for mhz, kind in zip(default_mhz, alike, strict=True))


def _lowered(one: Reading, other: Reading) -> int | None:
    """The only stage whose clock differs, where it is lower in the other."""
    pairs = list(zip(one.clocks_mhz, other.clocks_mhz, strict=True))
    differ = [stage for stage, (a, b) in enumerate(pairs) if a != b]
    return differ[0] if len(differ) == 1 and pairs[differ[0]][1] < pairs[differ[0]][0] else None


def _flat(one: Reading, other: Reading, stage: int) -> bool:
    fall = 1.0 - other.clocks_mhz[stage] / one.clocks_mhz[stage]
    saved = 1.0 - other.energy_j[stage] / one.energy_j[stage]
    later = other.time_s / one.time_s - 1.0
    return fall >= FALL_MIN and later < TIME_FLAT and saved < SAVING_SLOPE_MIN * fall
