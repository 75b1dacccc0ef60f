"""How far one GPU is from the profile, learnt from what it is seen to do.

A profile is measured once, on some card; the one at hand is a little slower or hungrier,
warmer or throttled, and drifts. One number per (GPU, workload) on the logarithm of time,
and one on power, follow that: in the public stream experiment such an average kept the
error at 4 % through a 15 % shift where a refitted forest alone stood at 11 %.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

WEIGHT = 0.1  # of a new sample, once there are enough (that experiment's)
# A sample further off is another workload, unit or clock, and no bias: cards of one kind
# differ by a few percent, and a throttled one by tens.
RATIO_MAX = 2.0
LOG_MAX = math.log(RATIO_MAX)
SAMPLE_WEIGHT_MAX = 100.0  # beyond it the old average counts for 1e-5 anyway
BIASES_MAX = 16_384  # 4,096 GPUs with four workloads each; the least recently seen goes


@dataclass(frozen=True, slots=True)
class Bias:
    """A running mean of log(measured / profile), with the scatter around it.

    `count` is the weight of all samples so far. The mean begins at 0 as if one sample had
    said so, which takes half of what the first one says.
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

    @property
    def valid(self) -> bool:
        """Whether `after` could have made it: what comes back from a file is checked."""
        return (
            math.isfinite(self.mean)
            and abs(self.mean) <= LOG_MAX
            and 0.0 <= self.variance <= LOG_MAX**2 * 4.0
            and 0.0 <= self.count <= SAMPLE_WEIGHT_MAX
        )


@dataclass(frozen=True, slots=True)
class GpuBias:
    """Both biases of one GPU on one workload."""

    time: Bias = Bias()
    power: Bias = Bias()


class Biases:
    """All biases by (workload, GPU), bounded: the least recently learnt goes first."""

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

    def state(self) -> list[list[Any]]:
        """As JSON-able rows, least recently learnt first."""
        return [[*key, [*_row(bias.time)], [*_row(bias.power)]] for key, bias in self._kept.items()]

    def restore(self, rows: Iterable[Iterable[Any]]) -> None:
        """Takes rows of `state` in. Raises ValueError where one holds no bias."""
        for workload, uuid, time, power in rows:
            self.put(str(workload), str(uuid), GpuBias(read(time), read(power)))

    def items(self) -> list[tuple[tuple[str, str], GpuBias]]:
        """Least recently learnt first."""
        return list(self._kept.items())


def read(row: Sequence[float]) -> Bias:
    """A bias from its three numbers. Raises ValueError where they are none."""
    mean, variance, count = (float(number) for number in row)
    bias = Bias(mean, variance, count)
    if not bias.valid:
        raise ValueError(f"{list(row)} is no bias")
    return bias


def _row(bias: Bias) -> tuple[float, float, float]:
    return bias.mean, bias.variance, bias.count
