"""Samples, predictions, and the protocol of every estimator.

Pure: samples in, arrays out. No clock, no file, and no randomness but seeds.
"""

from dataclasses import dataclass
from typing import Protocol

from joulecut_engine.estimate.physics import Floats
from joulecut_engine.graph.pipeline import Kind

NOMINAL = 0.9  # share of measurements that every band is meant to hold
NOMINAL_SDS = 1.645  # half width of that share of a normal distribution


@dataclass(frozen=True, slots=True)
class Subject:
    """One GPU doing one kind of work for one workload."""

    workload: str
    uuid: str
    stage: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation: mean time of an operation and power while it ran, at one clock.

    `clock_mhz` is the observed SM clock. `power_w` is None if only time is known (a GPU's power
    cannot be split by kind within an iteration). `asked_mhz` is the clock lock then in use, if any;
    `capped` says that the power cap held the clock.
    """

    subject: Subject
    clock_mhz: int
    time_s: float
    power_w: float | None = None
    weight: float = 1.0
    asked_mhz: int | None = None
    capped: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """Arrays over the asked clocks, (len(clocks_mhz),): mean time (s) and power (W)."""

    clocks_mhz: tuple[int, ...]
    time_s: Floats
    power_w: Floats


class Estimator(Protocol):
    """Learns online; predicts a whole clock grid in one call."""

    def learn(self, samples: tuple[Sample, ...]) -> tuple[str, ...]:
        """Learn from samples; return one reason per refused sample (NaN, zero, unknown)."""
        ...

    def predict(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Prediction | None:
        """None without evidence for this subject: its clocks then stay as they are."""
        ...

    def known_clocks_mhz(self, subject: Subject) -> tuple[int, ...]:
        """Clocks with evidence, ascending. No clock below the first may be chosen."""
        ...
