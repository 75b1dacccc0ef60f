"""How one GPU departs from its curve: a bias that follows it, and drift that no bias explains.

`Bias` is a running mean of log(measured / curve) per GPU and workload. In the public stream
experiment such a mean kept the error at 4 % through a 15 % shift, where a refitted forest alone
stood at 11 %. Errors that a bias does not follow (a throttling card, a job that changed its mix)
leave the band again and again: `DriftDetector` then widens the band to what is seen, drops old
readings, and asks for new clocks.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joulecut_engine.estimate.estimator import NOMINAL

WEIGHT = 0.1  # of a new sample, once there are enough; as in that experiment
# A sample further off is of another workload, unit or clock: cards of one kind differ by a few
# percent, a throttled one by tens.
RATIO_MAX = 2.0
LOG_MAX = math.log(RATIO_MAX)
SAMPLE_WEIGHT_MAX = 100.0  # beyond it the old average counts for 1e-5 anyway
BIASES_MAX = 16_384  # 4,096 GPUs with four workloads each; the least recent is dropped


@dataclass(frozen=True, slots=True)
class Bias:
    """Running mean and variance of log(measured / curve).

    `count` is the weight of all samples so far. The prior mean of 0 counts as one sample.
    """

    mean: float = 0.0
    variance: float = 0.0
    count: float = 0.0

    def after(self, log_ratio: float, weight: float) -> "Bias":
        """The bias after one more sample. `weight` is in (0, SAMPLE_WEIGHT_MAX]."""
        share = max(1.0 - (1.0 - WEIGHT) ** weight, weight / (self.count + 1.0 + weight))
        off = log_ratio - self.mean
        return Bias(
            mean=self.mean + share * off,
            # Exponentially weighted variance (Finch 2009, eq. 143).
            variance=(1.0 - share) * (self.variance + share * off * off),
            count=min(self.count + weight, SAMPLE_WEIGHT_MAX),
        )


@dataclass(frozen=True, slots=True)
class GpuBias:
    """Biases of one GPU on one workload."""

    time: Bias = Bias()
    power: Bias = Bias()


class Biases:
    """Biases by (workload, GPU), bounded: the least recently moved is dropped first."""

    def __init__(self, size_max: int = BIASES_MAX) -> None:
        self._size_max = size_max
        self._kept: OrderedDict[tuple[str, str], GpuBias] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, workload: str, uuid: str) -> GpuBias:
        return self._kept.get((workload, uuid), GpuBias())

    def put(self, workload: str, uuid: str, bias: GpuBias) -> None:
        self._kept[workload, uuid] = bias
        self._kept.move_to_end((workload, uuid))
        while len(self._kept) > self._size_max:
            self._kept.popitem(last=False)

    def forget(self, workload: str) -> None:
        for key in [key for key in self._kept if key[0] == workload]:
            del self._kept[key]


WATCHED = 20  # comparisons: two in a hundred thousand have ten outside by chance (90 % band)
OUTSIDE_MAX = 0.5  # share outside the band above which the GPU drifts
SETTLED_MAX = 0.2  # share outside the band at which drift ends
TRACKED_MAX = 16_384  # GPUs and workloads, as many as there are biases


@dataclass(frozen=True, slots=True)
class Drift:
    """One GPU that departs from its curve; `off` is the relative error of time when noticed."""

    workload: str
    uuid: str
    off: float


@dataclass(slots=True)
class _Track:
    """Last errors (logarithms) of one GPU on one workload, and whether each left its band."""

    errors: deque[float] = field(default_factory=lambda: deque(maxlen=WATCHED))
    outside: deque[bool] = field(default_factory=lambda: deque(maxlen=WATCHED))
    since: int = 0  # zero: it does not drift
    off: float = 0.0  # median error when it was found to drift


class DriftDetector:
    """Compares predictions with readings, and declares drift. Bounded."""

    def __init__(self, tracked_max: int = TRACKED_MAX) -> None:
        self._tracked_max = tracked_max
        self._tracks: OrderedDict[tuple[str, str], _Track] = OrderedDict()
        self._drifting: dict[str, set[str]] = {}  # GPUs by workload

    def observe(
        self, workload: str, uuid: str, *, error: float, outside: bool, number: int
    ) -> bool:
        """Record one comparison; true if it starts a drift. `number` is that of the reading."""
        track = self._tracks.setdefault((workload, uuid), _Track())
        self._tracks.move_to_end((workload, uuid))
        while len(self._tracks) > self._tracked_max:
            self._end(*self._tracks.popitem(last=False)[0])
        track.errors.append(error)
        track.outside.append(outside)
        if track.since:
            return False
        if len(track.outside) < WATCHED or sum(track.outside) <= OUTSIDE_MAX * WATCHED:
            return False
        first = next(i for i, was in enumerate(track.outside) if was)
        track.since = max(1, number - (len(track.outside) - 1 - first))
        self._drifting.setdefault(workload, set()).add(uuid)
        track.off = float(
            np.median([e for e, was in zip(track.errors, track.outside, strict=True) if was])
        )
        return True

    def refitted(self) -> None:
        """New curves are in use: end drifts of GPUs that follow them."""
        for workload, uuid in [(w, uuid) for w, uuids in self._drifting.items() for uuid in uuids]:
            track = self._tracks[workload, uuid]
            if track.outside and np.mean(track.outside) <= SETTLED_MAX:
                track.since = 0
                self._end(workload, uuid)

    def since(self, workload: str, uuid: str) -> int:
        """Number of the first reading after the drift began; zero without drift."""
        track = self._tracks.get((workload, uuid))
        return track.since if track else 0

    def half(self, workload: str, uuid: str) -> float:
        """Half width (a logarithm) that holds NOMINAL of the errors seen; zero without drift.

        At least the error at which drift was declared: clocks not seen since may be off as much.
        """
        track = self._tracks.get((workload, uuid))
        if track is None or not track.since:
            return 0.0
        seen = float(np.quantile(np.abs(track.errors), NOMINAL, method="higher"))
        return max(seen, abs(track.off))

    def drifts(self, workload: str) -> tuple[Drift, ...]:
        """The drifts of one workload, ordered by GPU."""
        return tuple(
            Drift(workload, uuid, math.expm1(self._tracks[workload, uuid].off))
            for uuid in sorted(self._drifting.get(workload, ()))
        )

    def forget(self, workload: str) -> None:
        for key in [key for key in self._tracks if key[0] == workload]:
            del self._tracks[key]
        self._drifting.pop(workload, None)

    def forget_gpu(self, workload: str, uuid: str) -> None:
        self._tracks.pop((workload, uuid), None)
        self._end(workload, uuid)

    def _end(self, workload: str, uuid: str) -> None:
        uuids = self._drifting.get(workload, set())
        uuids.discard(uuid)
        if not uuids:
            self._drifting.pop(workload, None)

    def state(self) -> list[list[Any]]:
        return [
            [*key, list(t.errors), list(t.outside), t.since, t.off]
            for key, t in self._tracks.items()
        ]

    def restore(self, rows: Iterable[Iterable[Any]]) -> None:
        """Read rows of `state`; earlier ones have clocks before the last two numbers."""
        for workload, uuid, errors, outside, *_, since, off in rows:
            self._tracks[workload, uuid] = _Track(
                deque(errors, WATCHED), deque(outside, WATCHED), since, off
            )
            if since:
                self._drifting.setdefault(workload, set()).add(uuid)
