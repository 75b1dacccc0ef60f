"""What a fit on a grid is made of: axes that grow finer, and straight lines in closed form.

Fitting curves of a few numbers by descent needs starts, and stops in local minima (an A40
has a poor one); a grid over the numbers that enter nonlinearly, refined, needs neither and
gives the same answer on every run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

NEARBY = np.linspace(-1.0, 1.0, 5)  # in old steps; see `Axis.around`


@dataclass(frozen=True, slots=True)
class Axis:
    """Values to try for one number, and how far apart they lie."""

    low: float
    high: float
    step: float
    values: Floats

    def around(self, best: float) -> "Axis":
        """The same axis near its best value, with steps half as long.

        It reaches a whole old step either way: the numbers trade off against each other,
        so the best pair may lie further along the valley than half a step.
        """
        near = best + self.step * NEARBY
        inside = near[(near >= self.low) & (near <= self.high)]
        return Axis(self.low, self.high, self.step / 2.0, inside)


def axis(low: float, high: float, steps: int) -> Axis:
    return Axis(low, high, (high - low) / steps, np.linspace(low, high, steps + 1))


@dataclass(frozen=True, slots=True)
class Line:
    """`y = offset + slope * x`, neither negative; arrays over curves and a grid of x."""

    offset: Floats
    slope: Floats
    misfit: Floats  # weighted sum of squared relative errors, the anchor's among them


@dataclass(frozen=True, slots=True)
class Measured:
    """What lines are laid through, many curves at once: y, scaled to 1 at most, and sums of it.

    An anchor (what is believed of y at x = 0 before anything is measured) counts as one more
    measurement. Arrays over curves: `columns` (curves, 2, n) holds weight and weight times
    y, the others are (curves, 1, 1).
    """

    columns: Floats
    scale: Floats
    s: Floats
    sy: Floats
    syy: Floats

    @staticmethod
    def of(
        y: Floats, weight: Floats, anchor: Floats, anchor_sd: Floats, misfit: float
    ) -> "Measured":
        """`y`, `weight` (curves, n), a weight of 0 for none; `anchor` and its sd (curves,).

        `misfit` is the relative error that a measurement of weight 1 has.
        """
        # Squares of very short times must not run out of floats.
        scale = np.where(weight > 0.0, y, 0.0).max(axis=1)
        y = y / scale[:, None]
        w = weight / y**2
        y0, w0 = anchor / scale, (misfit * scale / anchor_sd) ** 2
        return Measured(
            columns=np.stack([w, w * y], axis=1),
            scale=scale[:, None, None],
            s=(w.sum(axis=1) + w0)[:, None, None],
            sy=((w * y).sum(axis=1) + w0 * y0)[:, None, None],
            syy=((w * y * y).sum(axis=1) + w0 * y0**2)[:, None, None],
        )

    def lines(self, x: Floats, alike: Sequence[Sequence[int]]) -> Line:
        """Least squares of relative error, in closed form.

        `x` is (x of their own, rows, n, columns); `alike` has the curves of each. Where the
        free minimum has a negative number, the better of the two edges is taken: a line
        through the origin, or else a constant. Returns arrays (curves, rows, columns).
        """
        sx, sxy = _sums(x, self.columns, alike)
        (sxx,) = _sums(x * x, self.columns[:, :1], alike)
        s, sy = self.s, self.sy
        spread = s * sxx - sx * sx
        free = spread > 1e-12 * s * sxx
        slope = np.where(free, (s * sxy - sx * sy) / np.where(free, spread, 1.0), -1.0)
        offset = (sy - slope * sx) / s
        flat, steep = sy / s, sxy / sxx
        outside = (slope < 0.0) | (offset < 0.0)
        flat_wins = outside & (sy * flat > sxy * steep * (1.0 + 1e-9))
        steep_wins = outside & ~flat_wins
        slope = np.where(flat_wins, 0.0, np.where(steep_wins, steep, slope))
        offset = np.where(steep_wins, 0.0, np.where(flat_wins, flat, offset))
        # The squared errors, multiplied out: no pass over measurements for each line.
        inner = offset * s + 2.0 * (slope * sx - sy)
        squares = self.syy + offset * inner + slope * (slope * sxx - 2.0 * sxy)
        return Line(offset * self.scale, slope * self.scale, np.maximum(squares, 0.0))


def _sums(x: Floats, columns: Floats, alike: Sequence[Sequence[int]]) -> tuple[Floats, ...]:
    """Of each column times x over the measurements: (curves, rows, columns of x) each."""
    curves, sums, n = columns.shape
    if len(alike) == curves:
        found = columns[:, None] @ x
        return tuple(found[:, :, i] for i in range(sums))
    # Curves of the same x take one pass over it.
    out = np.empty((sums, curves, x.shape[1], x.shape[3]))
    for one, members in zip(x, alike, strict=True):
        found = columns[members].swapaxes(0, 1).reshape(1, sums * len(members), n) @ one
        out[:, members] = found.swapaxes(0, 1).reshape(sums, len(members), *one.shape[::2])
    return tuple(out)
