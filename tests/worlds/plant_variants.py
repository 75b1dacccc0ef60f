"""A plant of a replayed sweep, without the fitted curves of `gpt3`.

It keeps the jumps of a measurement: on the public A40 sweep time jumps by up to a tenth between
neighbouring clocks.
"""

from dataclasses import dataclass
from pathlib import Path

from joulecut_controller.sources import profile
from joulecut_sim.gpt3 import INSTRUCTIONS, Instruction
from joulecut_sim.plant import Noise, Plant
from joulecut_sim.skus import Sku
from joulecut_wire.errors import BadInput

FULL_SPEED_RATIO = 1.01  # a lower clock that is no slower than this shows a power cap at work

Table = dict[tuple[int, Instruction], dict[int, tuple[float, float]]]  # clock -> seconds, joules


@dataclass(frozen=True, slots=True)
class ReplayedCurve:
    """One (stage, instruction) of the sweep; asked between its clocks it answers the next below."""

    rows: dict[int, tuple[float, float]]
    cap_mhz: float

    def _row(self, clock_mhz: float) -> tuple[float, float]:
        known = [clock for clock in self.rows if clock <= clock_mhz]
        return self.rows[max(known) if known else min(self.rows)]

    def time_s(self, clock_mhz: float) -> float:
        return self._row(clock_mhz)[0]

    def power_w(self, clock_mhz: float) -> float:
        time_s, energy_j = self._row(clock_mhz)
        return energy_j / time_s


class ReplayPlant(Plant):
    """A pipeline whose operations cost as measured in the sweep, on GPUs that differ a little."""

    def __init__(
        self,
        sku: Sku,
        sweep: Table,
        stages: int,
        microbatches: int,
        *,
        time_scale: float = 1.0,
        noise: Noise | None = None,
        seed: int = 1,
    ) -> None:
        """`stages` are the last ones of the sweep. Raises BadInput where it has fewer."""
        swept = 1 + max(stage for stage, _ in sweep)
        if stages > swept:
            raise BadInput("replay", f"{stages} stages", f"1 to {swept}")
        super().__init__(
            [sku] * stages, microbatches, time_scale=time_scale, noise=noise, seed=seed
        )
        self._curves = {
            (stage, kind): ReplayedCurve(rows, _cap_mhz(rows))
            for stage in range(stages)
            for kind in INSTRUCTIONS
            for rows in (sweep[swept - stages + stage, kind],)
        }

    def curve(self, stage: int, instruction: Instruction) -> ReplayedCurve:
        return self._curves[stage, instruction]


def read(path: Path) -> Table:
    """A sweep as the product reads a profile. Raises BadInput."""
    return {
        (stage, INSTRUCTIONS[kind == "backward"]): {
            option.clock_mhz: (option.time_s, option.energy_j) for option in options
        }
        for (stage, kind), options in profile.read(path).options.items()
    }


def _cap_mhz(rows: dict[int, tuple[float, float]]) -> float:
    """The clock that a driver would show at default: above it nothing gets faster."""
    fastest_s = min(time_s for time_s, _ in rows.values())
    return float(min(clock for clock, (t, _) in rows.items() if t <= FULL_SPEED_RATIO * fastest_s))
