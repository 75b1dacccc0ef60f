"""Measurements of one kind of work on one card: the unit that models are fitted to."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_engine.estimate.card import Card
from joulecut_engine.estimate.physics import Floats, Sweep
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile


@dataclass(frozen=True, slots=True, order=True)
class Work:
    """One kind of operation of one stage of one workload; it has one curve."""

    workload: str
    stage: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Evidence:
    """Measurements of one `Work`, distinct clocks ascending.

    `noise` is the relative standard deviation of each measured time, None if unknown. `card` None
    means a card of which only these measurements are known.
    """

    work: Work
    sweep: Sweep
    card: Card | None = None
    clock_max_mhz: float = 0.0  # of the card, if the sweep does not reach it
    noise: Floats | None = None

    @property
    def top_mhz(self) -> float:
        return max(self.clock_max_mhz, float(self.sweep.clocks_mhz.max()))


def sweep_of(options: Sequence[ClockOption]) -> Sweep:
    """Options as arrays, ascending in clock. `options` is not empty."""
    rows = sorted(options)
    return Sweep(
        clocks_mhz=np.array([row.clock_mhz for row in rows], dtype=np.float64),
        time_s=np.array([row.time_s for row in rows], dtype=np.float64),
        power_w=np.array([row.power_w for row in rows], dtype=np.float64),
    )


def of_profile(
    workload: str, profile: Profile, card: Card | None = None, clock_max_mhz: float = 0.0
) -> tuple[Evidence, ...]:
    """One piece of evidence per (stage, kind) with options, in the profile's order."""
    return tuple(
        Evidence(Work(workload, stage, kind), sweep_of(options), card, clock_max_mhz)
        for (stage, kind), options in profile.options.items()
        if options
    )


def fingerprint(profile: Profile) -> str:
    """Hash of a profile's numbers."""
    digest = hashlib.sha256()
    for key in sorted(profile.options):
        digest.update(repr((key, sorted(profile.options[key]))).encode())
    return digest.hexdigest()[:16]
