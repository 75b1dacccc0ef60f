"""What every predictor must be able to do, so that physics and forests are interchangeable.

Pure: samples go in, arrays come out; no clock, no file, no random state that is not a seed.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.workload import Kind

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose cost is asked: one GPU doing one kind of work for one workload."""

    workload: str
    uuid: str
    stage: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation: mean time of an operation and power while it ran, at one clock.

    `clock_mhz` is the observed SM clock, not the one asked. `power_w` is None where only
    time is known (a GPU's power cannot be split by kind within an iteration).
    """

    subject: Subject
    clock_mhz: int
    time_s: float
    power_w: float | None = None
    weight: float = 1.0


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
