"""What work costs under a power limit: the card holds a lower clock than a lock allows.

Work that would draw more than the limit runs at the clock where it draws the limit. A lock above
that clock changes nothing: time and power are those of the held clock. A lock below it binds. A
limit bounds the average power of some milliseconds, so each operation is held on its own.
"""

from bisect import bisect_left
from collections.abc import Sequence

from joulecut_engine.graph.clock_option import ClockOption

# Boards hold their mean 1 to 4 % below the limit, and neighbouring clocks of public sweeps differ
# by 0.5 % in power and by 0.2 % in time for no reason.
NEAR_RATIO = 0.01
FLAT_RATIO = 0.01

Curve = tuple[list[float], list[float]]  # seconds and watts by clock


def held(
    clocks_mhz: Sequence[int], times_s: Sequence[float], powers_w: Sequence[float], limit_w: float
) -> Curve:
    """Times and powers under a limit; clocks and, apart from noise, powers ascend.

    A curve that was measured under the same limit ends flat. Its flat rows differ by noise alone,
    and a solver would choose the luckiest of them: they become one state, with their mean.
    """
    times, powers = list(times_s), list(powers_w)
    near = next((i for i, w in enumerate(powers) if w >= limit_w * (1.0 - NEAR_RATIO)), None)
    if near is None:
        return times, powers
    rest = len(times) - near
    flat = max(times[near:]) <= (1.0 + FLAT_RATIO) * min(times[near:])
    power_w = sum(powers[near:]) / rest
    if rest > 1 and flat and power_w <= limit_w * (1.0 + NEAR_RATIO):
        time_s = sum(times[near:]) / rest
        return times[:near] + [time_s] * rest, powers[:near] + [power_w] * rest
    first = next((i for i, w in enumerate(powers) if w > limit_w), None)
    if first is None:
        return times, powers
    rest = len(times) - first
    if first == 0:  # below the lowest clock that is known, power goes with the clock at best
        slower = powers[0] / limit_w
        return [times[0] * slower] * rest, [limit_w] * rest
    part = (limit_w - powers[first - 1]) / (powers[first] - powers[first - 1])
    mhz = clocks_mhz[first - 1] + part * (clocks_mhz[first] - clocks_mhz[first - 1])
    share = (1.0 / mhz - 1.0 / clocks_mhz[first - 1]) / (
        1.0 / clocks_mhz[first] - 1.0 / clocks_mhz[first - 1]
    )
    time_s = times[first - 1] + share * (times[first] - times[first - 1])
    return times[:first] + [time_s] * rest, powers[:first] + [limit_w] * rest


def under_limit(options: tuple[ClockOption, ...], limit_w: float) -> tuple[ClockOption, ...]:
    """The options of an operation under a power limit, in their order."""
    rising = sorted(options)
    clocks = [one.clock_mhz for one in rising]
    times, powers = held(
        clocks, [one.time_s for one in rising], [one.power_w for one in rising], limit_w
    )
    made = [ClockOption(f, t, t * w) for f, t, w in zip(clocks, times, powers, strict=True)]
    return tuple(made[bisect_left(clocks, one.clock_mhz)] for one in options)
