"""Durations as users write them, such as 90s, 10m or 7d."""

import math
import re

from joulecut_wire.errors import BadInput

ITERATION_S_MAX = 86_400.0  # no iteration lasts a day; a clock jump can look like one
UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_TEXT = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(UNITS_S)})?", re.ASCII)


def parse_s(text: str) -> tuple[float, str] | None:
    """Seconds and the unit as written ("" without one); None where `text` is no duration."""
    match = _TEXT.fullmatch(text.strip())
    return (float(match[1]) * UNITS_S[match[2] or "s"], match[2] or "") if match else None


def seconds(text: str, where: str, longest_s: float) -> float:
    """`90`, `90s`, `10m`, `10min`, `1h` or `7d` in seconds. Raises BadInput above `longest_s`."""
    allowed = f"above 0 and up to {longest_s:g} s, like 90s, 10m or 1h"
    if longest_s >= 2.0 * UNITS_S["d"]:
        allowed = f"above 0 and up to {longest_s / UNITS_S['d']:g}d, like 90m, 24h or 7d"
    value_s, _ = parse_s(text) or (math.nan, "")
    if not 0.0 < value_s <= longest_s:
        raise BadInput(where, f'"{text:.60}"', allowed)
    return value_s
