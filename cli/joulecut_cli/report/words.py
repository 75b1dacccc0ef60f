"""Intervals, money and dates as people read them; what is not known is `unknown`, never 0."""

import math
import time
from typing import Any

UNKNOWN = "unknown"
DECIMALS_MAX = 6

Json = dict[str, Any]


def share(interval: Json | None, *, signed: bool = False) -> str:
    """`15.2 ± 0.3 %` of a fraction."""
    if interval is None:
        return UNKNOWN
    return f"{spread(interval, 100.0, signed=signed)} %"


def one_share(ratio: float | None, *, signed: bool = False) -> str:
    if ratio is None:
        return UNKNOWN
    rounded = round(ratio * 100.0, 1) + 0.0  # there is no minus zero
    return f"{rounded:+.1f} %" if signed else f"{rounded:.1f} %"


def spread(interval: Json | None, factor: float = 1.0, *, signed: bool = False) -> str:
    """`12.3 ± 0.4`: the half width to two digits at most, the middle as far as that reaches."""
    if interval is None:
        return UNKNOWN
    half = (interval["high"] - interval["low"]) / 2.0 * abs(factor)
    mid = interval["mid"] * factor
    decimals = _decimals(half if half > 0.0 else abs(mid) / 1000.0)
    middle = round(mid, decimals) + 0.0
    sign = "+" if signed else ""
    return f"{middle:{sign}.{decimals}f} ± {half:.{decimals}f}"


def _decimals(half: float) -> int:
    """So many that a half width keeps one digit, or two where the first is small."""
    if half < 10.0**-DECIMALS_MAX:
        return DECIMALS_MAX if half > 0.0 else 1
    first = math.floor(math.log10(half))
    return min(DECIMALS_MAX, max(0, (1 if half / 10.0**first < 3.0 else 0) - first))


def energy(joules: float | None) -> str:
    """In kWh."""
    if joules is None:
        return UNKNOWN
    kwh = joules / 3.6e6
    return f"{kwh:.{_decimals(abs(kwh) / 300.0)}f}"


def moment(unix_s: float) -> str:
    """`2026-01-01 12:00` in UTC, as everything here."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(unix_s))


def second(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(unix_s))


def length(span_s: float) -> str:
    """`7 days`, `36 h`, `20 min`."""
    for limit, size, unit in ((5400.0, 60.0, "min"), (172_800.0, 3600.0, "h")):
        if span_s < limit:
            return f"{span_s / size:.3g} {unit}"
    return f"{span_s / 86_400.0:.3g} days"
