"""Numbers and tables for a terminal: plain ASCII, a unit on every number."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

NONE = "-"  # not known; never zero

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def joules(value: float | None) -> str:
    return _scaled(value, "J")


def watt_hours(value_j: float | None) -> str:
    """Of sums over time, as on the page. An iteration's energy is in joules."""
    return _scaled(None if value_j is None else value_j / 3600.0, "Wh")


def watts(value: float | None) -> str:
    return _scaled(value, "W")


def seconds(value: float | None) -> str:
    """Four significant digits; milliseconds below a second."""
    if value is None:
        return NONE
    if value and abs(value) < 1.0:
        return f"{_digits(value * 1e3)} ms"
    return f"{_digits(value)} s"


def ago(value: float | None) -> str:
    """An age in one coarse unit: 4 s, 3 min, 2 h, 5 days."""
    if value is None:
        return NONE
    for limit, size, unit in ((90, 1, "s"), (5400, 60, "min"), (172800, 3600, "h")):
        if value < limit:
            return f"{max(0.0, value) / size:.0f} {unit}"
    return f"{value / 86400:.0f} days"


def length(span_s: float) -> str:
    """A stretch of time as people say it: `15 s`, `20 min`, `36 h`, `7 days`."""
    for limit, size, unit in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h")):
        if span_s < limit:
            return f"{span_s / size:.3g} {unit}"
    return f"{span_s / 86_400.0:.3g} days"


def point_wait(in_s: float | None) -> str:
    """How long the measured saving takes to an interval one point wide; empty where it is."""
    return f"1 point wide in about {ago(in_s)}" if in_s else ""


def moment(unix_s: float) -> str:
    """`2026-01-01 12:00` in UTC, as all times of day."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(unix_s))


def percent(ratio: float | None, *, signed: bool = False) -> str:
    if ratio is None:
        return NONE
    rounded = round(ratio * 100, 1) + 0.0  # + 0.0 turns -0.0 into 0.0
    return f"{rounded:+.1f} %" if signed else f"{rounded:.1f} %"


def mhz(clock: int | None, otherwise: str = "default") -> str:
    return otherwise if clock is None else str(clock)


def sentence(text: str, names: Collection[str] = ()) -> str:
    """Capitalised, with a full stop; a leading policy key or one of `names` keeps its letters."""
    if not text:
        return ""
    word = text.split(maxsplit=1)[0]
    fixed = "_" in word or word.rstrip(":,") in names
    return (text if fixed else text[0].upper() + text[1:]) + ("" if text[-1] in ".!?" else ".")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str]) -> list[str]:
    """Aligned columns; those named in `right` are right-aligned, as numbers are."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(head, cells, widths, strict=True)
        ).rstrip()

    return [line(head), *map(line, rows)]


def labelled(name: str, text: str) -> str:
    """One line of a list of facts; an empty name continues the fact before."""
    return f"{name:<10} {text}"


def gpu_name(gpu: dict[str, Any]) -> str:
    """`node/index` where the node is known, else the UUID."""
    return f"{gpu['node'] or '?'}/{gpu['index']}" if gpu["node"] is not None else str(gpu["uuid"])


def _scaled(value: float | None, unit: str) -> str:
    if value is None:
        return NONE
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{_digits(value / size)} {prefix}{unit}"
    return f"{_digits(value)} {unit}"


def _digits(value: float, significant: int = 4) -> str:
    if value == 0.0:
        return "0"
    decimals = significant - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(6, max(0, decimals))}f}"


def band_text(band: Mapping[str, float]) -> str:
    """What nine in ten forecasts like this one stay within."""
    slower = [percent(band[f"slowdown_{end}_ratio"], signed=True) for end in ("low", "high")]
    less = [percent(-band[f"saved_{end}_ratio"], signed=True) for end in ("high", "low")]
    return (
        f"nine in ten stay within {slower[0]} to {slower[1]} time and {less[0]} to {less[1]} "
        "energy (predicted)"
    )
