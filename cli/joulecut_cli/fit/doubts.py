"""What in a sweep looks like a mistake of whoever measured it: no fit can make it good.

A unit, a swapped column or another job on the card gives curves that fit and mean nothing.
It is said and not refused: the limits are those of one clock against another, and of GPUs.
"""

from collections.abc import Iterator
from itertools import pairwise

from joulecut_cli import figures
from joulecut_cli.fit.fitted import Result
from joulecut_engine.estimate.admission import NEAREST_RATIO_MAX, follows_the_clock
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind

POWER_MIN_W, POWER_MAX_W = 1.0, 10_000.0  # no GPU idles below or draws more; 1.4 kW is the most


def doubts(fitted: Result) -> tuple[str, ...]:
    """A line for each kind of mistake, about the first operation that shows it."""
    found = (_powers(fitted), _against_each_other(fitted))
    return tuple(line for lines in found for line in [next(lines, None)] if line is not None)


def _powers(fitted: Result) -> Iterator[str]:
    for (stage, kind), predicted in fitted.predicted.items():
        power_w = float(predicted.power_w[-1])
        if not POWER_MIN_W <= power_w <= POWER_MAX_W:
            said = f"{figures.watts(power_w)} at stage {stage} {kind} is no GPU's power"
            yield f"{said}: is time in seconds, and energy in joules?"


def _against_each_other(fitted: Result) -> Iterator[str]:
    for key, options in fitted.probed.options.items():
        rows = sorted(options)
        for low, high in (*pairwise(rows), *((row, rows[-1]) for row in rows[:-2])):
            yield from _pair(key, low, high)


def _pair(key: tuple[int, Kind], low: ClockOption, high: ClockOption) -> Iterator[str]:
    """`low` and `high` in clock."""
    time, power = low.time_s / high.time_s, high.power_w / low.power_w
    stretch = high.clock_mhz / low.clock_mhz
    same = "no clock explains that: was it the same work, and nothing else on the card?"
    if not 1.0 / NEAREST_RATIO_MAX <= time <= stretch * NEAREST_RATIO_MAX:
        took = f"{figures.seconds(low.time_s)} at {low.clock_mhz} MHz"
        took += f" and {figures.seconds(high.time_s)} at {high.clock_mhz} MHz"
        yield f"stage {key[0]} {key[1]} took {took}; {same}"
    if not follows_the_clock(power, stretch):
        drew = f"{figures.watts(low.power_w)} at {low.clock_mhz} MHz"
        drew += f" and {figures.watts(high.power_w)} at {high.clock_mhz} MHz"
        yield f"stage {key[0]} {key[1]} drew {drew}; {same}"
