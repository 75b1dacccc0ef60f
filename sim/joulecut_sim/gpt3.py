"""What the GPT-3 175B stages of a public measurement cost at every clock, as parameters.

Source: Perseus (SOSP'24) artefact, github.com/ml-energy/zeus branch `kronos`, commit
38cb3f9, `sosp24_data/`: time and energy of one forward and backward per stage (8 stages,
a tenth of a real stage's layers) per locked SM clock on A100-80G SXM and A40. The files
are not carried; `python benchmarks/simulator/fit.py CSV` redoes these numbers from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from joulecut_engine.datasheets import SHEETS
from joulecut_sim.skus import CARDS

Instruction = Literal["forward", "backward"]
StageKind = Literal["inner", "last"]
INSTRUCTIONS: tuple[Instruction, ...] = ("forward", "backward")
CLOCK_SWEPT_MIN_MHZ = 855  # the sweeps' lowest clock: below it nothing was measured
CAP_STEP_MHZ = 0.01  # how well the clock that a power limit leaves is found


@dataclass(frozen=True, slots=True)
class Curve:
    """Time and power of one operation over the SM clock.

    t = t_fmax * ((1-k) + k * f_max / f_eff),  f_eff = min(f, f_cap)
    P = P0 + c * f_eff * V(f_eff)^2,  V = 1 + s * max(0, f_eff - f_knee)

    Seconds, watts, MHz; `load_w_per_ghz` is c, `volt_slope` s per GHz. `time_fmax_s` is
    where f_max would lead without a cap; with one it is never reached.
    """

    time_fmax_s: float
    clock_bound: float
    clock_max_mhz: int
    cap_mhz: float
    static_power_w: float
    load_w_per_ghz: float
    knee_mhz: float
    volt_slope: float

    def time_s(self, clock_mhz: float) -> float:
        k = self.clock_bound
        return self.time_fmax_s * ((1.0 - k) + k * self.clock_max_mhz / self._running(clock_mhz))

    def power_w(self, clock_mhz: float) -> float:
        f = self._running(clock_mhz)
        volts = 1.0 + self.volt_slope * max(0.0, (f - self.knee_mhz) / 1000.0)
        return self.static_power_w + self.load_w_per_ghz * f / 1000.0 * volts**2

    def energy_j(self, clock_mhz: float) -> float:
        return self.time_s(clock_mhz) * self.power_w(clock_mhz)

    def _running(self, clock_mhz: float) -> float:
        return min(clock_mhz, self.cap_mhz)


# Mean errors against the sweeps: A100 time 0.2-0.3 %, power 0.8-0.9 %; A40 time 0.4-1.3 %,
# power 0.8-1.4 % (its backward jumps by up to 8 % between neighbouring clocks, which no
# smooth curve follows). The cap is where the sweeps stop getting faster.
Operation = tuple[StageKind, Instruction]


def _card(
    clock_max_mhz: int, static_power_w: float, knee_mhz: float, volt_slope: float,
    fitted: Mapping[Operation, tuple[float, float, float, float]],
) -> Mapping[Operation, Curve]:  # fmt: skip
    """`fitted` has time_fmax_s, clock_bound, cap_mhz and load_w_per_ghz of each operation."""
    return {
        operation: Curve(
            time_fmax_s, clock_bound, clock_max_mhz, cap_mhz,
            static_power_w, load_w_per_ghz, knee_mhz, volt_slope,
        )
        for operation, (time_fmax_s, clock_bound, cap_mhz, load_w_per_ghz) in fitted.items()
    }  # fmt: skip


MEASURED: Mapping[str, Mapping[Operation, Curve]] = {
    "a100-sxm": _card(1410, 41.6737, 1115.53, 0.730704, {
        ("inner", "forward"): (0.0483707, 0.928516, 1357.8, 225.094),
        ("inner", "backward"): (0.0897078, 0.862812, 1355.04, 228.567),
        ("last", "forward"): (0.0522487, 0.921828, 1359.65, 216.591),
        ("last", "backward"): (0.095614, 0.858801, 1356.89, 222.214),
    }),
    "a40": _card(1740, 98.1135, 1132.59, 0.65421, {
        ("inner", "forward"): (0.101054, 0.588121, 1434.67, 95.6886),
        ("inner", "backward"): (0.26631, 0.254054, 1442.78, 91.5366),
        ("last", "forward"): (0.10529, 0.598024, 1442.4, 94.2881),
        ("last", "backward"): (0.273227, 0.265817, 1446.96, 90.9336),
    }),
}  # fmt: skip


def stage_kind(stage: int, stages: int) -> StageKind:
    """The last stage carries the language-model head and is heavier; the others are alike."""
    return "last" if stage == stages - 1 else "inner"


def curve(card: str, stage: int, stages: int, instruction: Instruction) -> Curve:
    """The curve of one operation of a stage on a card named in `joulecut_sim.skus`."""
    kind = stage_kind(stage, stages)
    if card in MEASURED:
        return MEASURED[card][kind, instruction]
    return _carried(card, kind, instruction)


@lru_cache
def _carried(card: str, kind: StageKind, instruction: Instruction) -> Curve:
    """The A100's operation on a card without measured stages: shaped by public data. Its part that
    follows the clock goes with the peak of 16 bits, the rest with the bandwidth of the memory; its
    power is the card's own, with as much load as on the A100 beside the heaviest operation.
    """
    sku, seen = CARDS[card], MEASURED["a100-sxm"][kind, instruction]
    here, there = sku.sheet, SHEETS["a100-sxm"]
    share = seen.clock_bound
    compute_s = seen.time_fmax_s * share * there.bf16_tflops / here.bf16_tflops
    memory_s = seen.time_fmax_s * (1.0 - share) * there.memory_gb_s / here.memory_gb_s
    heaviest = max(curve.load_w_per_ghz for curve in MEASURED["a100-sxm"].values())
    load = seen.load_w_per_ghz / heaviest
    low_mhz, high_mhz = 0.0, float(sku.clock_max_mhz)
    while high_mhz - low_mhz > CAP_STEP_MHZ:
        middle = 0.5 * (low_mhz + high_mhz)
        fits = sku.load_power_w(middle, load) <= sku.power_limit_w
        low_mhz, high_mhz = (middle, high_mhz) if fits else (low_mhz, middle)
    return Curve(
        time_fmax_s=compute_s + memory_s,
        clock_bound=compute_s / (compute_s + memory_s),
        clock_max_mhz=sku.clock_max_mhz,
        cap_mhz=low_mhz,
        static_power_w=sku.static_power_w,
        load_w_per_ghz=sku.load_w_per_ghz * load,
        knee_mhz=sku.knee_mhz,
        volt_slope=sku.volt_slope,
    )
