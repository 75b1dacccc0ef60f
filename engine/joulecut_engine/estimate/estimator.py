"""Samples, predictions, and the protocol of every estimator.

Pure: samples in, arrays out. No clock, no file, and no randomness but seeds.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from joulecut_engine.estimate.physics import Floats
from joulecut_engine.graph.pipeline import Kind

NOMINAL = 0.9  # share of measurements that every band is meant to hold
CAP_REASONS = 0x4  # NVML clock event reason: software power cap


@dataclass(frozen=True, slots=True)
class Subject:
    """One GPU doing one kind of work for one workload."""

    workload: str
    uuid: str
    stage: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class WorkShape:
    """Size of the work, as far as the job reports it; zero means unknown.

    `peak_ratio` is the peak of the data type used over the card's half-precision peak.
    """

    flops: float = 0.0
    bytes_moved: float = 0.0
    sequence: int = 0
    width: int = 0  # d_model
    heads: int = 0
    inner: int = 0  # d_ffn
    peak_ratio: float = 0.0


UNKNOWN_SHAPE = WorkShape()


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation: mean time of an operation and power while it ran, at one clock.

    `clock_mhz` is the observed SM clock. `power_w` is None if only time is known (a GPU's power
    cannot be split by kind within an iteration). Optional metadata: `asked_mhz` the clock lock
    then in use, `event_reasons` NVML's bits, `at_s` the monotonic time, `iteration` its number,
    `card` the model name, `shape` the size of the work.
    """

    subject: Subject
    clock_mhz: int
    time_s: float
    power_w: float | None = None
    weight: float = 1.0
    asked_mhz: int | None = None
    event_reasons: int = 0
    temperature_c: float | None = None
    at_s: float | None = None
    iteration: int | None = None
    card: str = ""
    shape: WorkShape | None = None

    @property
    def capped(self) -> bool:
        return bool(self.event_reasons & CAP_REASONS)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Arrays over the asked clocks: mean time (s) and power (W), with a band on time.

    `time_low_s <= time_s <= time_high_s`, all of shape (len(clocks_mhz),).
    """

    clocks_mhz: tuple[int, ...]
    time_s: Floats
    power_w: Floats
    time_low_s: Floats
    time_high_s: Floats


@dataclass(frozen=True, slots=True)
class Band:
    """Widest band of a subject within its known clocks.

    `time` is the largest `time_high_s / time_s - 1`; `nominal` the share meant to lie within.
    """

    time: float
    nominal: float = NOMINAL


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

    def band(self, subject: Subject) -> Band | None:
        """Widest band within the known clocks; None without evidence."""
        ...


def widest(predicted: Prediction) -> Band:
    """The band of a prediction over known clocks."""
    return Band(float(np.max(predicted.time_high_s / predicted.time_s)) - 1.0)
