"""Cost of one operation at one clock. SI units; clocks in integer MHz, as drivers list them."""

from dataclasses import dataclass

ANY_CLOCK_MHZ = 0  # of an operation that costs the same at every clock


@dataclass(frozen=True, slots=True, order=True)
class ClockOption:
    """Time and energy of an operation at one SM clock, on one GPU."""

    clock_mhz: int
    time_s: float
    energy_j: float

    @property
    def power_w(self) -> float:
        return self.energy_j / self.time_s

    def effective_cost_j(self, blocking_power_w: float) -> float:
        """`c = e - P_block * t` (Perseus, SOSP'24, section 4): energy on top of waiting."""
        return self.energy_j - blocking_power_w * self.time_s


def undominated(options: tuple[ClockOption, ...]) -> tuple[ClockOption, ...]:
    """Options that no other beats in both time and energy, fastest first.

    Of equal options the lower clock stays. Real sweeps hold many dominated ones: above a power cap
    a higher clock is slower and costs more.
    """
    kept: list[ClockOption] = []
    for option in sorted(options, key=lambda o: (o.time_s, o.energy_j, o.clock_mhz)):
        if not kept or option.energy_j < kept[-1].energy_j:
            kept.append(option)
    return tuple(kept)
