"""Plants without the fitted curves of `gpt3`: a replayed sweep, and a card of another form.

The replay keeps the jumps of a measurement: on the public A40 sweep time jumps by up to a tenth
between neighbouring clocks. The odd card fits no predictor's formula: its voltage goes in steps,
leakage grows with power, and work is bound by memory above a plateau. Its numbers are assumed.
"""

from dataclasses import dataclass
from pathlib import Path

from joulecut_controller.sources import profile
from joulecut_sim.gpt3 import INSTRUCTIONS, Instruction
from joulecut_sim.plant import Noise, Plant
from joulecut_sim.skus import A100_SXM, Sku
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


VOLT_STEP_MHZ = 75.0  # assumed: one voltage for five clocks of the table
VOLT_FLOOR_MHZ = 900.0
VOLT_PER_STEP = 0.035  # relative to the floor
POWER_EXPONENT = 1.25  # power grows faster than f V^2
LEAK_RATIO = 0.12  # of the dynamic power squared over the limit
STATIC_W = 62.0
SWING_W = 118.0  # at 1 GHz and the floor voltage
PLATEAU_MHZ = {"forward": 1290.0, "backward": 1200.0}  # above: bound by memory
PLATEAU_TILT = 0.06  # remaining effect of the clock there
FULL_S = {"forward": 0.05, "backward": 0.1}  # one operation of a stage at the highest clock
LAST_STAGE_RATIO = 1.06


@dataclass(frozen=True, slots=True)
class OddCurve:
    """Time and power of one kind of operation; same questions as `gpt3.Curve` answers."""

    instruction: Instruction
    full_s: float
    cap_mhz: float

    def time_s(self, clock_mhz: float) -> float:
        plateau = PLATEAU_MHZ[self.instruction]
        above: float = self.cap_mhz / max(clock_mhz, plateau) - 1.0
        below: float = max(0.0, plateau / clock_mhz - 1.0)
        return float(self.full_s * (1.0 + PLATEAU_TILT * above) * (1.0 + 0.9 * below))

    def power_w(self, clock_mhz: float) -> float:
        steps = max(0.0, (clock_mhz - VOLT_FLOOR_MHZ) // VOLT_STEP_MHZ)
        volts = 1.0 + VOLT_PER_STEP * steps
        swing: float = SWING_W * (clock_mhz / 1000.0) ** POWER_EXPONENT * volts**2
        return STATIC_W + swing + LEAK_RATIO * swing**2 / A100_SXM.power_limit_w


class OddPlant(Plant):
    """A pipeline of such cards, with the clock table of an A100."""

    def __init__(
        self,
        stages: int,
        microbatches: int,
        *,
        time_scale: float = 1.0,
        noise: Noise | None = None,
        seed: int = 1,
    ) -> None:
        card: Sku = A100_SXM
        super().__init__(
            [card] * stages, microbatches, time_scale=time_scale, noise=noise, seed=seed
        )

    def curve(self, stage: int, instruction: Instruction) -> OddCurve:
        ratio = LAST_STAGE_RATIO if stage == self.stages - 1 else 1.0
        cap = float(self.skus[stage].clock_max_mhz)
        return OddCurve(instruction, FULL_S[instruction] * ratio, cap)
