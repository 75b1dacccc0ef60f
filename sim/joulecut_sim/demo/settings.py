"""Settings of the demo and the phases that follow from them."""

from dataclasses import dataclass
from pathlib import Path

from joulecut_sim.plant import Noise, Plant
from joulecut_sim.skus import Sku

NODES = ("node-a", "node-b")
CARDS_PER_NODE = 4
STAGES = len(NODES) * CARDS_PER_NODE
MICROBATCHES = 48
JOB = "gpt3-175b"

# The true iteration takes 8 s on A100 and 19 s on A40. A clock stays for 0.1 s at least, so shorter
# iterations leave less to clocks that change within one: 5.4 % at 0.6 s, 8.0 % at 1.5 s, no more
# at 2 s. Longer ones leave fewer to measure in a minute, and the baseline alone takes 30.
ITERATION_S = 1.2  # at default clocks, without noise
DURATION_S_MIN = 30.0  # the baseline alone takes 30 iterations and three looks
DURATION_S_MAX = 86_400.0
HOLDOUTS_S = 600.0  # three hold-outs whose neighbours have one plan: eight minutes were measured
SLOWDOWN = 0.02  # allowed while enforced, after a phase that allows none


@dataclass(frozen=True, slots=True)
class Settings:
    """One demo. `duration_s` None: until Ctrl-C; `port` 0: a free one."""

    sku: Sku
    duration_s: float | None = None
    summary: Path | None = None
    port: int = 0
    seed: int = 1

    def plant(self, noise: Noise | None = None) -> Plant:
        """The job's true costs on the GPUs of this seed, scaled to the demo's pace."""
        skus = (self.sku,) * STAGES
        still = Plant(skus, MICROBATCHES, noise=Noise(0.0, 0.0, 0.0), seed=self.seed)
        true_s = still.iterate([sku.clock_max_mhz for sku in skus]).duration_s
        return Plant(
            skus, MICROBATCHES, time_scale=ITERATION_S / true_s, noise=noise, seed=self.seed
        )


@dataclass(frozen=True, slots=True)
class Phases:
    """How long each part of the script lasts, in seconds."""

    recommend_s: float
    zero_s: float  # no slowdown allowed
    enforce_s: float
    settle_s: float  # the part of enforce (and of a recovery) that is not judged
    straggle_s: float
    recover_s: float
    holdouts_s: float = 0.0  # at most; they end with a first interval

    @classmethod
    def within(cls, duration_s: float | None) -> "Phases":
        """The phases of a minute, stretched; the rest is start-up and the reset."""
        if duration_s is None:
            return cls(20.0, 30.0, 45.0, 8.0, 20.0, 40.0, HOLDOUTS_S)
        # The reset takes a lease at most, whatever the duration.
        left_s = duration_s - 4.0
        holdouts_s = HOLDOUTS_S if left_s >= 2.0 * HOLDOUTS_S else 0.0
        left_s -= holdouts_s
        return cls(
            recommend_s=0.18 * left_s,  # it lasts until there is a baseline
            zero_s=0.30 * left_s,
            enforce_s=0.30 * left_s,
            settle_s=0.08 * left_s,
            straggle_s=0.12 * left_s,
            recover_s=0.10 * left_s,
            holdouts_s=holdouts_s,
        )
