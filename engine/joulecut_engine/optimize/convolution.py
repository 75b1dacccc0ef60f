"""Tables by length made longer or shorter by shares: min-plus convolutions, and what they leave.

A table's last entry stands for all that is longer. Compiled by themselves, as `solve.compiled`
asks.
"""

import numpy as np

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.levels import Floats


@exact
def stretched(value: Floats, share: Floats) -> Floats:
    """By length: the least of a row that gets so much more of a share, at its price. The last
    entry stands for all that is longer, of both tables."""
    n, wide = len(value), len(share)
    out = np.full(n + wide - 1, np.inf)
    for t in range(wide):
        c = share[t]
        lane = out[wide - 1 - t : wide - 1 - t + n]
        for k in range(n):
            v = value[k] + c
            if v < lane[k]:  # noqa: PLR1730
                lane[k] = v
        last = value[n - 1] + c
        for k in range(wide - 1 - t + n, n + wide - 1):
            out[k] = min(out[k], last)
    return out


@exact
def shrunk(value: Floats, share: Floats) -> Floats:
    """By length: the least of a row that loses so much of a share, at its price."""
    n, wide = len(value), len(share)
    out = np.full(n + wide - 1, np.inf)
    for s in range(wide):
        c = share[s]
        lane = out[s : s + n]
        for k in range(n):
            v = value[k] + c
            if v < lane[k]:  # noqa: PLR1730
                lane[k] = v
        last = value[n - 1] + c
        for k in range(s + n, n + wide - 1):
            out[k] = min(out[k], last)
    return out


@exact
def by_begin(rest: Floats, value: Floats, wide: int) -> Floats:
    """What each share at the begin costs but for its price: `value` is stretched already."""
    n = len(value)
    out = np.empty(wide)
    for s in range(wide):
        least = np.inf
        for k in range(n):
            least = min(least, rest[s + k] + value[k])
        for k in range(s + n, len(rest)):
            least = min(least, rest[k] + value[n - 1])
        out[s] = least
    return out


@exact
def by_end(rest: Floats, value: Floats, begin: Floats, wide: int) -> Floats:
    """What each share at the end costs but for its price."""
    n = len(value) + wide - 1
    inner = np.full(n, np.inf)  # by length without what is lost at the begin
    for s in range(len(begin)):
        c = begin[s]
        for k in range(n):
            v = rest[s + k] + c
            if v < inner[k]:  # noqa: PLR1730
                inner[k] = v
        for k in range(s + n, len(rest)):
            inner[n - 1] = min(inner[n - 1], rest[k] + c)
    out = np.empty(wide)
    for t in range(wide):
        least = np.inf
        for k in range(len(value)):
            least = min(least, inner[wide - 1 - t + k] + value[k])
        for k in range(wide - 1 - t + len(value), n):
            least = min(least, inner[k] + value[len(value) - 1])
        out[t] = least
    return out
