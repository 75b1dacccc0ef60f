"""A pipeline of any simulated card, each job another one: what nobody tuned the prober on.

Cards without measured stages get stages made from the card's own power physics; how much of
the work follows the clock, how the stages differ and how hard they load the card is drawn
from a seed. Assumed throughout: it stands for clusters other than those in this repository.
"""

import random

from joulecut_sim.gpt3 import Curve, Instruction
from joulecut_sim.plant import Noise, Plant
from joulecut_sim.skus import CARDS

ITERATION_S = 0.19  # as long as those of the cards with measured stages
FORWARD_SHARE = 0.36
CLOCK_SHARES = (0.45, 0.93)  # measured stages have 0.25-0.93
LOADS = (0.7, 1.0)  # of a dense kernel's power
STAGE_SD = 0.04
LAST_STAGE = (1.0, 1.1)  # a head makes it longer


class CardPlant(Plant):
    """`stages` of the card of that name; other seeds are other jobs."""

    def __init__(
        self,
        card: str,
        stages: int,
        microbatches: int,
        *,
        noise: Noise | None = None,
        seed: int = 1,
    ) -> None:
        super().__init__([CARDS[card]] * stages, microbatches, noise=noise, seed=seed)
        dice = random.Random(f"job {card} {seed}")
        self._clock_share = dice.uniform(*CLOCK_SHARES)
        self._load = dice.uniform(*LOADS)
        self._work = [dice.gauss(1.0, STAGE_SD) for _ in range(stages)]
        self._work[-1] *= dice.uniform(*LAST_STAGE)
        self._unit_s = ITERATION_S / (max(self._work) * (microbatches + stages - 1))
        self._curves: dict[tuple[int, Instruction], Curve] = {}

    def curve(self, stage: int, instruction: Instruction) -> Curve:
        if (stage, instruction) not in self._curves:
            self._curves[stage, instruction] = self._made(stage, instruction)
        return self._curves[stage, instruction]

    def _made(self, stage: int, instruction: Instruction) -> Curve:
        sku = self.skus[stage]
        forward = instruction == "forward"
        share = FORWARD_SHARE if forward else 1.0 - FORWARD_SHARE
        # A forward waits for memory a little less than a backward on the measured cards.
        bound = min(0.95, self._clock_share + (0.03 if forward else -0.02))
        return Curve(
            time_fmax_s=self._unit_s * self._work[stage] * share,
            clock_bound=bound,
            clock_max_mhz=sku.clock_max_mhz,
            cap_mhz=float(sku.cap_clock_mhz(self._load, sku.power_limit_w)),
            static_power_w=sku.static_power_w,
            load_w_per_ghz=sku.load_w_per_ghz * self._load,
            knee_mhz=sku.knee_mhz,
            volt_slope=sku.volt_slope,
        )
