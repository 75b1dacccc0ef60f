"""Durations on command lines, such as 90s, 10m or 7d."""

import math
import re

from joulecut_wire.errors import BadInput

ITERATION_S_MAX = 86_400.0  # no iteration lasts a day; a clock jump can look like one
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)", re.ASCII)


def seconds(text: str, where: str, longest_s: float) -> float:
    """`90`, `90s`, `10m`, `1h` or `7d` in seconds. Raises BadInput, also above `longest_s`."""
    allowed = f"above 0 and up to {longest_s:g} s, like 90s, 10m or 1h"
    if longest_s >= 2.0 * _UNITS_S["d"]:
        allowed = f"above 0 and up to {longest_s / _UNITS_S['d']:g}d, like 90m, 24h or 7d"
    match = _TEXT.fullmatch(text.strip())
    value_s = float(match[1]) * _UNITS_S[match[2]] if match else math.nan
    if not 0.0 < value_s <= longest_s:
        raise BadInput(where, f'"{text:.60}"', allowed)
    return value_s
