"""Which windows say something about other clocks beyond what a form says: those near by.

What a form misses changes little from one clock to the next, so it is carried over from windows
to clocks by how far apart they are. Pure.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Near:
    """Clocks of readings (n, stages), and how alike others are to them. Above `default_mhz` all
    clocks are one; distances are shares of `clock_max_mhz`.
    """

    def __init__(self, measured_mhz: Floats, default_mhz: Floats, clock_max_mhz: float) -> None:
        self._default, self._top = default_mhz, clock_max_mhz
        self._measured = self.seen(measured_mhz)

    def seen(self, clocks_mhz: Floats) -> Floats:
        return np.asarray(np.minimum(clocks_mhz, self._default) / self._top)

    def all(self, clocks_mhz: Floats, sd: float, reach: float) -> Floats:
        """Covariance of what depends on all stages' clocks, with the readings': (m, n)."""
        apart = (self.seen(clocks_mhz)[:, None, :] - self._measured) / reach
        return np.asarray(sd**2 * np.exp(-0.5 * (apart**2).sum(axis=2)))

    def one(self, clocks_mhz: Floats, stage: int, sd: float, reach: float) -> Floats:
        """The same of what depends on one stage's own clock."""
        apart = (self.seen(clocks_mhz)[:, None, stage] - self._measured[None, :, stage]) / reach
        return np.asarray(sd**2 * np.exp(-0.5 * apart**2))
