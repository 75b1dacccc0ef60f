"""What every predictor must be able to do, so that physics and forests are interchangeable.

Pure: samples go in, arrays come out; no clock, no file, no random state that is not a seed.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from joulecut_engine.estimate.physics import Floats
from joulecut_engine.graph.pipeline import Kind

NOMINAL = 0.9  # share of what is seen that every band is meant to hold
CAP_REASONS = 0x4  # NVML clock event reason: software power cap


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose cost is asked: one GPU doing one kind of work for one workload."""

    workload: str
    uuid: str
    stage: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class WorkShape:
    """What is computed, where a job tells it; zero means not told.

    `peak_ratio` is the peak of the data type used over the card's half-precision peak.
    """

    flops: float = 0.0
    bytes_moved: float = 0.0
    sequence: int = 0
    width: int = 0  # d_model
    heads: int = 0
    inner: int = 0  # d_ffn
    peak_ratio: float = 0.0


UNTOLD = WorkShape()


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation: mean time of an operation and power while it ran, at one clock.

    `clock_mhz` is the observed SM clock, not the one asked. `power_w` is None where only
    time is known (a GPU's power cannot be split by kind within an iteration). The rest is
    told where it is known: `asked_mhz` the clock in force when it was taken,
    `event_reasons` NVML's bits, `at_s` when it was taken (monotonic), `iteration` its
    number, `card` the model's name, `shape` what was computed.
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
    """How far truth may lie from a subject's prediction within its known clocks.

    `time` is relative: `time_high_s / time_s - 1` where the band is widest. `nominal` is
    the share that is meant to lie within.
    """

    time: float
    nominal: float = NOMINAL


class Estimator(Protocol):
    """Learns online; predicts a whole clock grid in one call."""

    def learn(self, samples: tuple[Sample, ...]) -> tuple[str, ...]:
        """Takes samples in; returns one reason per sample refused (NaN, zero, unknown)."""
        ...

    def predict(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Prediction | None:
        """None where there is no evidence for this subject: the answer then is no change."""
        ...

    def known_clocks_mhz(self, subject: Subject) -> tuple[int, ...]:
        """Clocks with evidence, ascending; no clock below the first may be chosen."""
        ...

    def band(self, subject: Subject) -> Band | None:
        """How sure a prediction within the known clocks is; None without evidence."""
        ...


def widest(predicted: Prediction) -> Band:
    """The band of a prediction over known clocks."""
    return Band(float(np.max(predicted.time_high_s / predicted.time_s)) - 1.0)
