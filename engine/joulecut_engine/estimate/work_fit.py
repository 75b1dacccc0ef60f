"""Time and power of every kind of work at every clock: physics and own measurements.

    log t = log t_physics + smooth(residual at its own clocks)

and the same for power. Pure: the same evidence gives the same bytes.

    curves = fit_work(of_profile("gpt3", profile, card))  # or Evidence(Work(...), Sweep(...))
    curve = curves[Work("gpt3", 0, "forward")]
    curve.time_s(clocks), curve.power_w(clocks)
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from joulecut_engine.estimate.card_fit import fit_cards
from joulecut_engine.estimate.evidence import Evidence, Work
from joulecut_engine.estimate.physics import Floats, Physics
from joulecut_engine.estimate.smooth import Smooth, smooths


@dataclass(frozen=True, slots=True)
class WorkCurve:
    """Fitted time and power of one kind of work over the clock."""

    physics: Physics
    time_left: Smooth
    power_left: Smooth

    @property
    def clocks_mhz(self) -> Floats:
        return self.time_left.clocks_mhz

    @property
    def clock_min_mhz(self) -> float:
        return float(self.clocks_mhz[0])

    @property
    def clock_max_mhz(self) -> float:
        return float(self.clocks_mhz[-1])

    def time_s(self, clocks_mhz: Floats) -> Floats:
        """Mean seconds at each clock (n,), which is above 0."""
        left = self.time_left.mean(clocks_mhz)
        return np.asarray(self.physics.time_s(clocks_mhz) * np.exp(left))

    def power_w(self, clocks_mhz: Floats) -> Floats:
        """Mean watts at each clock (n,), which is above 0."""
        left = self.power_left.mean(clocks_mhz)
        return np.asarray(self.physics.power_w(clocks_mhz) * np.exp(left))


def fit_work(evidence: Iterable[Evidence]) -> dict[Work, WorkCurve]:
    """Fit all evidence together. Raises ValueError as `distinct`."""
    pieces = distinct(evidence)
    return {
        one.work: WorkCurve(
            curve,
            *smooths(
                one.sweep.clocks_mhz, log_residuals(one, curve), curve.clock_max_mhz, one.noise
            ),
        )
        for one, curve in zip(pieces, fit_cards(pieces), strict=True)
    }


def distinct(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Raises ValueError if two pieces are of the same work, or clocks are not ascending."""
    pieces = tuple(evidence)
    if len({one.work for one in pieces}) != len(pieces):
        raise ValueError("two pieces of evidence are of the same work")
    for one in pieces:
        if (np.diff(one.sweep.clocks_mhz) <= 0.0).any():
            raise ValueError(f"{one.work}: clocks must be distinct and ascending")
    return pieces


def log_residuals(one: Evidence, curve: Physics) -> Floats:
    """log(measured / physics) of time and power at the measured clocks, of shape (n, 2)."""
    sweep = one.sweep
    return np.column_stack(
        [
            np.log(sweep.time_s / curve.time_s(sweep.clocks_mhz)),
            np.log(sweep.power_w / curve.power_w(sweep.clocks_mhz)),
        ]
    )
