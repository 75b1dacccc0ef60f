"""Data sheets of GPUs.

The forest sees ratios of data-sheet numbers, never names: a model that knows cards by name is
off by 100 % on the next one. Voltage curves fitted to public sweeps are priors, which
measurements overrule.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from joulecut_engine.datasheets import SHEETS
from joulecut_engine.estimate.physics import NO_PRIOR, Floats, Prior

LIMIT_HELD = 1.03  # up to here power at the limit is the limit; above it, it was raised
KNEE_SD_MHZ = 40.0  # three independent A100 sweeps: 1073, 1098, 1107
SLOPE_SD = 0.15  # the same three: 1.12, 1.00, 0.76
STATIC_SD = 0.15  # relative: the work moves it (fits of one A40: 91 and 95 W)
CAP_SD = 0.03  # capped cards are held within 1-4 % of their limit


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of GPU. Peaks are dense, in TFLOP/s; zero if the data sheet has none.

    `knee_mhz`, `slope_per_ghz` and `static_w` come from public sweeps (see docs/predictors.md);
    None without one.
    """

    name: str
    clock_max_mhz: int
    power_limit_w: float
    memory_gb_s: float
    half_tflops: float
    single_tflops: float
    processors: int  # streaming multiprocessors, or compute units
    knee_mhz: float | None = None
    slope_per_ghz: float | None = None
    static_w: float | None = None

    def prior(self, power_max_w: float = 0.0) -> Prior:
        """Belief before measuring; `power_max_w` is the highest power seen on the card.

        A card seen above its data-sheet limit has a raised one, which is unknown.
        """
        raised = power_max_w > LIMIT_HELD * self.power_limit_w
        cap_w = float("inf") if raised else self.power_limit_w
        if self.knee_mhz is None or self.slope_per_ghz is None or self.static_w is None:
            return Prior(cap_w=cap_w, cap_sd=CAP_SD)
        return Prior(
            knee_mhz=self.knee_mhz,
            knee_sd_mhz=KNEE_SD_MHZ,
            slope_per_ghz=self.slope_per_ghz,
            slope_sd=SLOPE_SD,
            static_w=self.static_w,
            static_sd_w=STATIC_SD * self.static_w,
            cap_w=cap_w,
            cap_sd=CAP_SD,
        )

    def ratios(self) -> Floats:
        """Logarithms of data-sheet ratios to an A100 SXM, of shape (5,)."""
        base = _BASE
        return np.log(
            [
                self.clock_max_mhz / base.clock_max_mhz,
                self.power_limit_w / base.power_limit_w,
                self.memory_gb_s / base.memory_gb_s,
                self.half_tflops / base.half_tflops,
                self.single_tflops / base.single_tflops,
            ]
        )


def _of(name: str, sheet: str, *curve: float) -> Card:
    """A board of `datasheets`; `curve` is knee (MHz), slope (per GHz) and static power (W)."""
    facts = SHEETS[sheet]
    return Card(
        name, facts.clocks_mhz[-1], facts.limit_w, facts.memory_gb_s, facts.bf16_tflops,
        facts.fp32_tflops, facts.processors, *curve,
    )  # fmt: skip


# Boards without a sheet of their own: NVIDIA's data sheets (highest SM clock as drivers list it)
# and architecture white papers. A GH200 is left out: with a limit of 900 W and the clocks of an
# H100, a sweep of either could be the other's.
# Knee, slope and static power: fits of public sweeps, for A100 SXM and A40 of the Perseus artifact
# (SOSP'24), A100 PCIe of Kernel Tuner (Schoonhoven et al., PMBS'22), H100 NVL and H200 of arXiv
# 2607.00819.
_BASE = _of("A100-SXM", "a100-sxm", 1107.0, 0.76, 52.0)
CARDS: tuple[Card, ...] = (
    _BASE,
    Card("A100-PCIe", 1410, 250.0, 1555.0, 312.0, 19.5, 108, 1073.0, 1.12, 32.0),
    _of("A30", "a30"),
    _of("A40", "a40", 1131.0, 0.45, 95.0),
    Card("A10", 1695, 150.0, 600.0, 125.0, 31.2, 72),
    Card("V100-SXM", 1530, 300.0, 900.0, 125.0, 15.7, 80),
    _of("V100-PCIe", "v100-pcie"),
    Card("L4", 2040, 72.0, 300.0, 121.0, 30.3, 58),
    Card("L40S", 2520, 350.0, 864.0, 362.0, 91.6, 142),
    Card("H100-NVL", 1785, 400.0, 3900.0, 835.0, 60.0, 132, 1000.0, 0.54, 58.0),
    Card("H100-PCIe", 1755, 350.0, 2000.0, 756.0, 51.2, 114),
    _of("H100-SXM", "h100-sxm"),
    _of("H200", "h200", 1000.0, 0.41, 56.0),
    _of("B200", "b200"),
    _of("B300", "b300"),
    _of("GB200", "gb200"),
    _of("MI300X", "mi300x"),
)


# Drivers do not name the form of one card: an H100 with 80 GB of HBM3 is the SXM board (PCIe
# cards have HBM2e, the NVL 94 GB). A capture of one shows 1,980 MHz and 700 W.
_UNMARKED = {"H100-80GB-HBM3": "H100-SXM"}


@lru_cache(maxsize=256)  # called for every sample
def find_card(model: str) -> Card | None:
    """The card of a driver's model name, as in "NVIDIA A100-SXM4-80GB"; None if unknown."""
    words = model.upper().replace("NVIDIA", "").replace("TESLA", "").replace("_", "-").split()
    text = "-".join(words)
    text = _UNMARKED.get(text, text)
    for card in sorted(CARDS, key=lambda one: -len(one.name)):
        family, _, form = card.name.upper().partition("-")
        parts = text.split("-")
        if family in parts and (not form or any(part.startswith(form) for part in parts)):
            return card
    return None


def prior_of(card: Card | None, power_max_w: float) -> Prior:
    return NO_PRIOR if card is None else card.prior(power_max_w)
