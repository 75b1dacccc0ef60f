"""A pipeline on a card that nobody sells: power, cap, leakage and stages drawn from a seed.

What is tuned on two cards may fail on the next one. So each seed is another cluster, drawn
widely around the measured cards: what it shares with them is the form of the simulator, which
is not the predictors'. Assumed throughout.
"""

import random
from dataclasses import dataclass

from joulecut_engine.datasheets import DataSheet
from joulecut_sim.gpt3 import Curve, Instruction
from joulecut_sim.plant import Noise, Plant
from joulecut_sim.skus import Sku

STEP_MHZ = 15
CLOCKS_MAX_MHZ = (1290, 1980)
LIMITS_W = (180.0, 700.0)
KNEES = (0.5, 0.85)  # of the highest clock: 0.79 and 0.65 on A100 and A40
VOLT_SLOPES = (0.5, 1.6)  # over the whole table: 1.03 and 1.14 there
STATICS = (0.06, 0.4)  # of the power at the highest clock: 0.09 and 0.34 there
BLOCKINGS = (0.12, 0.4)  # of the limit
LOADS = (0.75, 1.35)  # of what just meets the limit: above 1 the cap binds
CLOCK_SHARES = (0.35, 0.97)
SHARE_SD = 0.03  # between stages
FORWARD_SHARES = (0.28, 0.42)
STAGE_SD = 0.07
LAST_STAGES = (0.9, 1.2)
ITERATIONS_S = (0.12, 0.4)
# (stages, microbatches) and jitter of operations of a drawn cluster.
SHAPES = ((2, 8), (4, 12), (4, 24), (6, 24), (8, 16))
JITTERS_PERCENT = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Case:
    """The shape and the jitter under which a cluster is learnt."""

    stages: int
    microbatches: int
    jitter_percent: float


def case(seed: int) -> Case:
    """That of a seed: drawn apart from the cluster, or its numbers would tell which it is."""
    dice = random.Random(f"case {seed}")
    shape = dice.choice(SHAPES)
    return Case(*shape, dice.choice(JITTERS_PERCENT))


class DrawnPlant(Plant):
    """`stages` GPUs of one drawn kind; other seeds are other clusters."""

    def __init__(
        self, stages: int, microbatches: int, *, noise: Noise | None = None, seed: int = 1
    ) -> None:
        dice = random.Random(f"cluster {seed}")
        top = STEP_MHZ * round(dice.uniform(*CLOCKS_MAX_MHZ) / STEP_MHZ)
        limit_w = dice.uniform(*LIMITS_W)
        knee_mhz = top * dice.uniform(*KNEES)
        slope = 1000.0 * dice.uniform(*VOLT_SLOPES) / top  # per GHz
        load = dice.uniform(*LOADS)
        full_w = limit_w * load
        static_w = full_w * dice.uniform(*STATICS)
        volts = 1.0 + slope * (top - knee_mhz) / 1000.0
        sku = Sku(
            sheet=DataSheet(
                f"drawn-{seed}",
                f"drawn {seed}",
                (600, top, STEP_MHZ),
                1593,
                (0.3 * limit_w, limit_w, limit_w),
                80.0,
                2000.0,
                100,
                300.0,
                20.0,
            ),
            name=f"drawn-{seed}",
            model=f"drawn {seed}",
            clocks_mhz=tuple(range(600, top + 1, STEP_MHZ)),
            clock_memory_mhz=1593,
            power_limit_min_w=0.3 * limit_w,
            power_limit_w=limit_w,
            power_limit_max_w=limit_w,
            heating_celsius_per_w=40.0 / limit_w,
            idle_power_w=0.5 * static_w,
            blocking_power_w=limit_w * dice.uniform(*BLOCKINGS),
            static_power_w=static_w,
            load_w_per_ghz=(full_w - static_w) / (top / 1000.0 * volts**2),
            knee_mhz=knee_mhz,
            volt_slope=slope,
        )
        noise = noise or Noise()
        wide = Noise(operation=noise.operation, gpu_time=0.01, gpu_power=0.03)
        super().__init__([sku] * stages, microbatches, noise=wide, seed=seed)
        share, self._forward = dice.uniform(*CLOCK_SHARES), dice.uniform(*FORWARD_SHARES)
        self._shares = [min(0.98, max(0.2, dice.gauss(share, SHARE_SD))) for _ in range(stages)]
        self._work = [max(0.7, dice.gauss(1.0, STAGE_SD)) for _ in range(stages)]
        self._work[-1] *= dice.uniform(*LAST_STAGES)
        iteration_s = dice.uniform(*ITERATIONS_S)
        self._unit_s = iteration_s / (max(self._work) * (microbatches + stages - 1))
        self._curves: dict[tuple[int, Instruction], Curve] = {}

    def curve(self, stage: int, instruction: Instruction) -> Curve:
        if (stage, instruction) not in self._curves:
            self._curves[stage, instruction] = self._made(stage, instruction)
        return self._curves[stage, instruction]

    def _made(self, stage: int, instruction: Instruction) -> Curve:
        sku, forward = self.skus[stage], instruction == "forward"
        share = self._forward if forward else 1.0 - self._forward
        return Curve(
            time_fmax_s=self._unit_s * self._work[stage] * share,
            clock_bound=min(0.99, self._shares[stage] + (0.03 if forward else -0.02)),
            clock_max_mhz=sku.clock_max_mhz,
            cap_mhz=float(sku.cap_clock_mhz(1.0, sku.power_limit_w)),
            static_power_w=sku.static_power_w,
            load_w_per_ghz=sku.load_w_per_ghz,
            knee_mhz=sku.knee_mhz,
            volt_slope=sku.volt_slope,
        )
