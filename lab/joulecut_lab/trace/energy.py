"""Power of a card while kernels of a class run, at any clock: the model's power, by class.

Matrix products run at the system's efficiency and stream a part of what the memory gives;
pointwise kernels stream all of it; NCCL's kernels keep a GPU as busy as waiting does. Each share is
an assumption, printed as such.
"""

from collections.abc import Callable, Mapping

import numpy as np

from joulecut_lab.model.cost import SEARCH_STEPS
from joulecut_lab.model.links import BITS
from joulecut_lab.model.power import power_of
from joulecut_lab.model.system import System
from joulecut_lab.trace.kernels import COMPUTE, NETWORK, KernelClass

# A tile of 128 x 128 reads each number of a large product about this often from HBM, as a share of
# what the memory can give.
PRODUCT_MEMORY = 0.3


def power_w(system: System, kind: KernelClass, clock_mhz: float) -> float:
    """Watts of one GPU; at the clock of `held_mhz` their mean is within the limit."""
    power, clock = power_of(system), np.array(float(clock_mhz))
    stream_w = system.hbm_gb_s * 1e9 * system.hbm_efficiency * BITS * power.hbm_bit_j
    watts = power.idle_w
    if kind in COMPUTE:
        rate = system.bf16_tflops * 1e12 * clock_mhz / system.peak_clock_mhz
        rate *= system.matrix_efficiency
        watts += rate * power.flop_j * float(power.voltage_square(clock))
        watts += PRODUCT_MEMORY * stream_w
    else:
        watts += float(power.waiting_over_idle_w(clock))
        watts += 0.0 if kind in NETWORK else stream_w
    return watts


def limited_w(system: System, kind: KernelClass, clock_mhz: float) -> float:
    """The same of a long kernel alone: never above the limit."""
    return min(system.power_cap_w, power_w(system, kind, clock_mhz))


def held_mhz(
    system: System, seconds: Callable[[float], Mapping[KernelClass, float]], clock_mhz: float
) -> float:
    """The clock at or below `clock_mhz` where the kernels' mean power meets the limit; `seconds` of
    each class depend on the clock. A card averages over milliseconds, so gaps do not count.
    """

    def within(mhz: float) -> bool:
        found = seconds(mhz)
        joules = sum(time_s * power_w(system, kind, mhz) for kind, time_s in found.items())
        return joules <= system.power_cap_w * sum(found.values())

    low, high = min(system.clock_min_mhz, clock_mhz), clock_mhz
    if within(high):
        return high
    for _ in range(SEARCH_STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def between_w(system: System, clock_mhz: float) -> float:
    """Between kernels, with the clock up."""
    power = power_of(system)
    return power.idle_w + float(power.waiting_over_idle_w(np.array(float(clock_mhz))))
