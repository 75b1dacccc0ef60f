"""Walks along one run: what it can lose at least, and what it passes on (`solve.spans`).

A run's rows have losses by ticks, and two in a row that span the same two moments as two of
another stage share a price by length with these. To and back, each length's least is known:
what it loses beyond the best is passed on by moving the price.
"""

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.levels import Floats, Ints


@exact
def walked(
    value: Floats,
    count: Ints,
    span: Ints,
    sign: Floats,
    shift: Ints,
    price: Floats,
    gives: NDArray[np.bool_],
    share_wall: tuple[float, float],
    back: Floats,
) -> float:
    """The least one run can lose, by its rows' tables and its spans' prices; and passes on, where
    `gives`, a share of what each length of a span would lose beyond that.

    Span i is rows i and i + 1 together: `sign[i] * price[span[i], shift[i] + k]` for k ticks more
    than their fastest, the last price for all that is longer.
    """
    rows, width = len(count), price.shape[1]
    own, later, least = np.empty(width), np.empty(width), np.empty(width)
    most = value.shape[1]
    now, then = np.empty(most), np.empty(most)
    back[rows - 1, : count[rows - 1]] = value[rows - 1, : count[rows - 1]]
    for i in range(rows - 2, -1, -1):
        here, after = count[i], count[i + 1]
        if span[i] < 0:
            back[i, :here] = value[i, :here] + np.min(back[i + 1, :after])
            continue
        priced(price[span[i]], sign[i], shift[i], own, later)
        joined(back[i + 1, :after], value[i, :here], own, later, back[i, :here])
    now[: count[0]] = value[0, : count[0]]
    for i in range(rows - 1):
        here, after = count[i], count[i + 1]
        if span[i] < 0:
            then[:after] = value[i + 1, :after] + np.min(now[:here])
        else:
            priced(price[span[i]], sign[i], shift[i], own, later)
            if gives[i]:
                lengths(now[:here], back[i + 1, :after], own, least)
                passed(least, share_wall, price[span[i]], sign[i], shift[i])
                priced(price[span[i]], sign[i], shift[i], own, later)
            joined(now[:here], value[i + 1, :after], own, later, then[:after])
        now, then = then, now
    found: float = np.min(now[: count[rows - 1]])
    return found


@exact
def priced(price: Floats, sign: float, shift: int, own: Floats, later: Floats) -> None:
    """What each length costs this stage, and the least of all that are no shorter."""
    last = len(price) - 1
    for k in range(len(price)):
        own[k] = sign * price[min(shift + k, last)]
    least = np.inf
    for k in range(last, -1, -1):
        least = min(least, own[k])
        later[k] = least


@exact
def joined(now: Floats, value: Floats, own: Floats, later: Floats, out: Floats) -> None:
    """out[y]: value[y] and the least over x of now[x] and the span's price. The last x and the
    last y stand for all that is longer, so does their sum."""
    n, m = len(now) - 1, len(value) - 1
    out[:] = np.inf
    for x in range(n):
        v = now[x]
        lane = own[x : x + m]
        for y in range(m):
            c = v + lane[y]
            if c < out[y]:  # noqa: PLR1730 - min() is not made lanes of
                out[y] = c
        out[m] = min(out[m], v + later[x + m])
    for y in range(m + 1):
        out[y] = min(out[y], now[n] + later[n + y]) + value[y]


@exact
def lengths(now: Floats, back: Floats, own: Floats, least: Floats) -> None:
    """least[k]: what the run loses if this span takes k ticks more than its fastest."""
    n, m = len(now) - 1, len(back) - 1
    least[:] = np.inf
    for x in range(n):
        v = now[x]
        lane = least[x : x + m]
        for y in range(m):
            c = v + back[y]
            if c < lane[y]:  # noqa: PLR1730
                lane[y] = c
    longer = np.inf  # some row beyond its table: any length from there on
    for k in range(len(least)):
        if m <= k <= m + n:
            longer = min(longer, now[k - m] + back[m])
        if n <= k <= n + m:
            longer = min(longer, now[n] + back[k - n])
        least[k] = min(least[k], longer) + own[k]


@exact
def passed(
    least: Floats, share_wall: tuple[float, float], price: Floats, sign: float, shift: int
) -> None:
    share, wall = share_wall
    best = np.min(least)
    for k in range(len(price)):
        beyond = wall  # shorter than its fastest
        if k >= shift:
            beyond = min(wall, least[k - shift] - best)
        price[k] -= sign * share * beyond
