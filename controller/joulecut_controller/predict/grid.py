"""What a fit on a grid is made of: axes that grow finer, and straight lines in closed form.

Fitting curves of a few numbers by descent needs starts, and stops in local minima (an A40
has a poor one); a grid over the numbers that enter nonlinearly, refined, needs neither and
gives the same answer on every run.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
        if self.step <= 0.0:
            return self
        near = best + self.step * np.linspace(-1.0, 1.0, 5)
        inside = near[(near >= self.low) & (near <= self.high)]
        return Axis(self.low, self.high, self.step / 2.0, inside)


def axis(low: float, high: float, steps: int) -> Axis:
    return Axis(low, high, (high - low) / steps, np.linspace(low, high, steps + 1))


def fixed(value: float) -> Axis:
    return Axis(value, value, 0.0, np.array([value]))


@dataclass(frozen=True, slots=True)
class Anchor:
    """What is believed of a line's value at x = 0 before anything is measured."""

    value: float
    sd: float  # in the unit of `value`


@dataclass(frozen=True, slots=True)
class Line:
    """`y = offset + slope * x`, neither negative; arrays over a grid of different x."""

    offset: Floats
    slope: Floats
    misfit: Floats  # weighted sum of squared relative errors, the anchor's among them


def line(x: Floats, y: Floats, weight: Floats, anchor: Anchor, misfit: float) -> Line:
    """Least squares of relative error over the last axis of `x`, in closed form.

    The anchor counts as one more measurement; `misfit` is the relative error that one of
    weight 1 has. Where the free minimum has a negative number, the better of the two edges
    is taken: a line through the origin, or else a constant.
    """
    scale = float(y.max())  # squares of very short times must not run out of floats
    y = y / scale
    w = weight / y**2
    y0, w0 = anchor.value / scale, (misfit * scale / anchor.sd) ** 2
    s, sy = float(w.sum()) + w0, float(w @ y) + w0 * y0
    sx, sxx, sxy = x @ w, (x * x) @ w, x @ (w * y)
    spread = s * sxx - sx * sx
    free = spread > 1e-12 * s * sxx
    slope = np.where(free, (s * sxy - sx * sy) / np.where(free, spread, 1.0), -1.0)
    offset = (sy - slope * sx) / s
    flat, steep = sy / s, sxy / sxx
    inside = (slope >= 0.0) & (offset >= 0.0)
    flat_wins = sy * flat > sxy * steep * (1.0 + 1e-9)
    slope = np.where(inside, slope, np.where(flat_wins, 0.0, steep))
    offset = np.where(inside, offset, np.where(flat_wins, flat, 0.0))
    errors = y - offset[..., None] - slope[..., None] * x
    squares = (errors * errors) @ w + w0 * (y0 - offset) ** 2
    return Line(offset * scale, slope * scale, np.asarray(squares))
