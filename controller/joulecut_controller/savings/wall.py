"""What a saving at the GPUs is worth where the bill is written: at the wall, in money, in CO2.

A GPU's counter sees neither its host nor the cooling, and a job that takes longer keeps both
busy longer. So a saving is carried to the wall with the time it cost. PUE is that of the building
over its computers (ISO/IEC 30134-2), CO2 location-based scope 2 of the GHG Protocol.
"""

from collections.abc import Collection
from dataclasses import dataclass

from joulecut_controller.policy.policy import Cost
from joulecut_controller.savings.job_saving import JobSaving, total
from joulecut_controller.trust.interval import Interval
from joulecut_engine.money import JOULES_PER_KWH, SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class Wall:
    """A period's saving at the wall. Bounds hold both measurements at their worst at once, so
    they are no narrower than 95 %.

    `net_money` is `energy_money` less `time_money`: what was saved on energy, less the price of the
    GPU hours that the same work took longer.
    """

    saved_kwh: Interval
    gpu_hours_longer: Interval
    energy_money: Interval | None
    time_money: Interval | None
    net_money: Interval | None
    co2_kg: Interval | None


def at_the_wall(saved_j: Interval, longer_gpu_s: Interval, given: Cost) -> Wall:
    """Carries joules saved at the GPUs, and GPU seconds that were needed more, to the wall.

    W = PUE * (saved - host_power * longer), money = W * price - longer * price of a GPU.
    """
    host_w, pue = given.host_power_w, given.pue

    def kwh(joules: float, gpu_s: float) -> float:
        return pue * (joules - host_w * gpu_s) / JOULES_PER_KWH

    energy = Interval(
        kwh(saved_j.mid, longer_gpu_s.mid),
        kwh(saved_j.low, longer_gpu_s.high),
        kwh(saved_j.high, longer_gpu_s.low),
    )
    hours = longer_gpu_s.scaled(1.0 / SECONDS_PER_HOUR)
    energy_money = None if given.kwh is None else energy.scaled(given.kwh)
    time_money = None if given.gpu_hour is None else hours.scaled(given.gpu_hour)
    net = None
    if energy_money is not None and time_money is not None:
        net = Interval(
            energy_money.mid - time_money.mid,
            energy_money.low - time_money.high,
            energy_money.high - time_money.low,
        )
    grams = given.co2_g_per_kwh
    return Wall(
        saved_kwh=energy,
        gpu_hours_longer=hours,
        energy_money=energy_money,
        time_money=time_money,
        net_money=net,
        co2_kg=None if grams is None else energy.scaled(grams / 1000.0),
    )


@dataclass(frozen=True, slots=True)
class Sum:
    """Several jobs together. None where nothing is known of any; `unknown` counts such jobs.
    `measured_j` is the part of `saved_j` in windows.
    """

    jobs: int
    unknown: int
    saved_j: Interval | None
    measured_j: Interval | None
    wall: Wall | None


def sum_of(jobs: Collection[JobSaving], prices: Cost) -> Sum:
    known = [one for one in jobs if one.saved_j and one.longer_gpu_s]
    saved_j = total([one.saved_j for one in known if one.saved_j])
    measured_j = total([one.measured_j for one in known if one.measured_j])
    longer_gpu_s = total([one.longer_gpu_s for one in known if one.longer_gpu_s])
    wall = at_the_wall(saved_j, longer_gpu_s, prices) if saved_j and longer_gpu_s else None
    return Sum(len(jobs), len(jobs) - len(known), saved_j, measured_j, wall)
