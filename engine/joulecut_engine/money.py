"""What energy and GPU time cost, and when a saving pays.

A job's work is fixed. One iteration on N GPUs takes T0 seconds and E0 joules at default clocks, T
and E under a plan. With `per_joule` the price of a joule at the GPUs (PUE * price of a kWh /
3.6e6) and `per_gpu_s` that of a second of a GPU (price of its hour / 3600, and of its host's
energy), an iteration costs

    cost(T, E) = per_joule * E + N * T * per_gpu_s

and the plan is worth cost(T0, E0) - cost(T, E). That is zero at the break-even slowdown

    s = per_joule * (E0 - E) / (N * T0 * per_gpu_s)

PUE is that of the building over its computers (ISO/IEC 30134-2). Money is in the currency of the
prices.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

JOULES_PER_KWH = 3.6e6  # by definition
SECONDS_PER_HOUR = 3600.0
HOURS_PER_YEAR = 8760.0

# Prices of a site that gives none, in US dollars. Rented H100s were at 2 to 3 an hour in 2025.
GPU_HOUR = 2.0
KWH = 0.08  # industrial electricity in the United States in 2024 (EIA, Electric Power Monthly)
PUE = 1.2  # large new buildings report 1.1 to 1.3, the mean of all is near 1.55 (Uptime Institute)

ROUNDING = 1e-12  # of a cost: less is the order of a sum
# Of a job of which nothing is measured: a static setting at a few per cent of slowdown, or a plan
# without one, saves about so much on the published profiles; a busy H100 draws about 650 W.
USUAL_SAVED_RATIO = 0.10
USUAL_POWER_W = 650.0


class Iteration(NamedTuple):
    """One iteration of a job: seconds, and joules of all its GPUs."""

    time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of one site. `host_power_w` is the host's power per GPU, where energies are those of
    the GPUs alone. `assumed` names the prices that were not given, `currency` is a word or empty,
    `hour` says which prices by the hour these are.
    """

    gpu_hour: float = GPU_HOUR
    kwh: float = KWH
    pue: float = PUE
    host_power_w: float = 0.0
    assumed: tuple[str, ...] = ()
    currency: str = ""
    hour: str = ""

    @property
    def per_joule(self) -> float:
        """Price of one joule at a GPU."""
        return self.pue * self.kwh / JOULES_PER_KWH

    @property
    def per_gpu_s(self) -> float:
        """Price of one second of one GPU, with its host's energy."""
        return self.gpu_hour / SECONDS_PER_HOUR + self.host_power_w * self.per_joule

    @property
    def time_power_w(self) -> float:
        """The power whose energy costs as much as the time of one GPU; infinite where energy is
        free.
        """
        return self.per_gpu_s / self.per_joule if self.per_joule else float("inf")

    def cost(self, time_s: Any, energy_j: Any, gpus: Any) -> Any:
        """Of one iteration; numbers, or arrays of one shape."""
        return energy_j * self.per_joule + gpus * time_s * self.per_gpu_s

    def __str__(self) -> str:
        word = f" {self.currency}" if self.currency else ""
        text = f"{self.gpu_hour:g}{word} a GPU-hour, {self.kwh:g}{word} a kWh, PUE {self.pue:g}"
        if self.host_power_w:
            text += f", {self.host_power_w:g} W of host per GPU"
        return f"{text} ({self.hour})" if self.hour else text


@dataclass(frozen=True, slots=True)
class Worth:
    """What a plan is worth beside default clocks.

    `break_even_slowdown` is a fraction, negative where the plan takes more energy, infinite where
    GPU time is free. `net_per_gpu_hour` is saved in each hour of a GPU under the plan.
    """

    slowdown: float
    saved_ratio: float
    break_even_slowdown: float
    net_per_gpu_hour: float
    gpus: int
    currency: str = ""

    @property
    def net_per_year(self) -> float:
        """Of all the job's GPUs, all year under this plan."""
        return self.net_per_gpu_hour * HOURS_PER_YEAR * self.gpus

    @property
    def break_even_text(self) -> str:
        """Two decimals: break-even slowdowns are below a per cent."""
        ratio = self.break_even_slowdown
        return "any slowdown" if ratio == float("inf") else f"{100.0 * ratio + 0.0:.2f} %"

    @property
    def point_text(self) -> str:
        """The plan as a point of a frontier."""
        saved = 100.0 * self.saved_ratio + 0.0
        return f"{100.0 * self.slowdown + 0.0:+.2f} % time, {saved:.1f} % less energy"

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPU{'' if self.gpus == 1 else 's'}"
        word = f" {self.currency}" if self.currency else ""
        hour, year = (signed(one) + word for one in (self.net_per_gpu_hour, self.net_per_year))
        even = self.break_even_text
        return f"{hour} a GPU-hour, {year} a year on {gpus}; breaks even at {even} slower"

    def as_json(self) -> dict[str, float | int | str | None]:
        """Plain values, and the same in words; an infinite break-even is null."""
        finite = abs(self.break_even_slowdown) < float("inf")
        return {
            "text": str(self),
            "slowdown_ratio": self.slowdown,
            "saved_ratio": self.saved_ratio,
            "break_even_slowdown_ratio": self.break_even_slowdown if finite else None,
            "net_per_gpu_hour": self.net_per_gpu_hour,
            "net_per_year": self.net_per_year,
            "gpus": self.gpus,
            "currency": self.currency or None,
        }


def signed(money: float) -> str:
    """Whole from 100 on, else three significant digits."""
    return f"{money:+,.0f}" if abs(money) >= 100.0 else f"{money + 0.0:+.3g}"


def worth(default: Iteration, plan: Iteration, gpus: int, prices: Prices) -> Worth:
    """One iteration of the same work, at default clocks and under a plan."""
    saved = prices.per_joule * (default.energy_j - plan.energy_j)
    lost = gpus * default.time_s * prices.per_gpu_s
    free = float("inf") if saved > 0.0 else 0.0
    net = saved - gpus * (plan.time_s - default.time_s) * prices.per_gpu_s
    if abs(net) <= ROUNDING * prices.cost(*default, gpus):
        net = 0.0
    return Worth(
        slowdown=plan.time_s / default.time_s - 1.0,
        saved_ratio=1.0 - plan.energy_j / default.energy_j if default.energy_j else 0.0,
        break_even_slowdown=saved / lost if lost > 0.0 else free,
        net_per_gpu_hour=net / (gpus * plan.time_s / SECONDS_PER_HOUR),
        gpus=gpus,
        currency=prices.currency,
    )


def least_cost(points: Iterable[Iteration], gpus: int, prices: Prices) -> Iteration:
    """The point where energy and GPU time together cost least; of equals the fastest. Raises
    ValueError without points.
    """
    return min(points, key=lambda one: (prices.cost(one.time_s, one.energy_j, gpus), one.time_s))


def usual_break_even(prices: Prices) -> float:
    """The break-even slowdown of a usual saving, for a job of which nothing is known."""
    default = Iteration(1.0, USUAL_POWER_W)
    plan = Iteration(1.0, USUAL_POWER_W * (1.0 - USUAL_SAVED_RATIO))
    return worth(default, plan, 1, prices).break_even_slowdown
