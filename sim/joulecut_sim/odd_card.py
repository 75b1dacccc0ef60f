"""A card that no predictor's formula describes, so that a plan is not judged by its own model.

Voltage goes in steps, as firmware tables do; leakage grows with power, as hot silicon does;
part of the work is bound by memory up to a plateau and by the core below it. None of it is
fitted to a card on sale: assumed, and meant to be awkward.
"""

from dataclasses import dataclass

from joulecut_sim.gpt3 import Instruction
from joulecut_sim.plant import Noise, Plant
from joulecut_sim.skus import A100_SXM, Sku

VOLT_STEP_MHZ = 75.0  # assumed: one voltage for five clocks of the table
VOLT_FLOOR_MHZ = 900.0
VOLT_PER_STEP = 0.035  # relative to the floor
POWER_EXPONENT = 1.25  # power grows faster than f V^2
LEAK_RATIO = 0.12  # of the dynamic power squared over the limit
STATIC_W = 62.0
SWING_W = 118.0  # at 1 GHz and the floor voltage
PLATEAU_MHZ = {"forward": 1290.0, "backward": 1200.0}  # above: bound by memory
PLATEAU_TILT = 0.06  # what is left of the clock's effect there
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

    def curve(self, stage: int, instruction: Instruction) -> OddCurve:  # type: ignore[override]
        ratio = LAST_STAGE_RATIO if stage == self.stages - 1 else 1.0
        cap = float(self.skus[stage].clock_max_mhz)
        return OddCurve(instruction, FULL_S[instruction] * ratio, cap)
