"""Data sheets of GPUs, and how to recognise a card from its clock and power.

The forest sees ratios of data-sheet numbers, never names: a model that knows cards by name is
off by 100 % on the next one. Voltage curves fitted to public sweeps are priors, which
measurements overrule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, geometric_mean

import numpy as np

from joulecut_engine.datasheets import SHEETS
from joulecut_engine.estimate.physics import NO_PRIOR, Floats, Prior

# Power above this share of a card's limit belongs to another card or to a raised limit.
LIMIT_RATIO_MAX = 1.25  # A100 SXM with a 500 W limit exist beside those with 400 W
LIMIT_HELD = 1.03  # up to here power at the limit is the limit; above it, it was raised
LIMIT_MET = 0.95  # held at the limit; work that pauses is at 3-4 % below it on average
LIMIT_USED_MIN = 0.5  # training draws more than half the limit
SEEN_MIN = 0.9  # of the highest clock; power falls by a fifth down to there
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


def candidates(clock_max_mhz: float, power_max_w: float) -> tuple[Card, ...]:
    """Cards with this highest clock and a limit that fits the power, smallest limit first."""
    found = [
        card
        for card in CARDS
        if card.clock_max_mhz == clock_max_mhz
        and LIMIT_USED_MIN <= power_max_w / card.power_limit_w <= LIMIT_RATIO_MAX
    ]
    return tuple(sorted(found, key=lambda card: card.power_limit_w))


def recognise(clock_max_mhz: float, power_max_w: float, seen_mhz: float) -> Card | None:
    """The card that a sweep was measured on, or None if that would be a guess.

    `clock_max_mhz` is the highest clock listed, `seen_mhz` the highest measured, and `power_max_w`
    the highest power. Of several candidates: the smallest whose limit was kept, and only if the
    limit was met, because light work on a large card draws as much as heavy work on a small one
    and a wrong limit misleads further than none. Power far below the highest clock is no
    evidence. Two cards with the same clock and limit give one card with their means.
    """
    found = candidates(clock_max_mhz, power_max_w)
    larger = [card for card in found if power_max_w <= LIMIT_HELD * card.power_limit_w]
    found = tuple(larger) or found
    if len(found) > 1 and seen_mhz < SEEN_MIN * clock_max_mhz:
        return None
    met = bool(found) and power_max_w >= LIMIT_MET * found[0].power_limit_w
    if not met and _larger(found, clock_max_mhz):
        return None
    alike = [card for card in found if card.power_limit_w == found[0].power_limit_w]
    return _mean_card(alike) if found else None


def _larger(found: Sequence[Card], clock_max_mhz: float) -> bool:
    """Whether a card with that clock has a larger limit than the first candidate."""
    return any(
        card.clock_max_mhz == clock_max_mhz and card.power_limit_w > found[0].power_limit_w
        for card in CARDS
        if found
    )


def _mean_card(cards: Sequence[Card]) -> Card:
    """One card for several with the same highest clock and limit; at least one.

    Data-sheet numbers are geometric means. The voltage curve is the mean of the swept cards:
    equal clock and limit mean one chip with different memory.
    """
    if len(cards) == 1:
        return cards[0]
    known = [card for card in cards if card.knee_mhz is not None]
    return replace(
        cards[0],
        name=" or ".join(card.name for card in cards),
        memory_gb_s=geometric_mean([card.memory_gb_s for card in cards]),
        half_tflops=geometric_mean([card.half_tflops for card in cards]),
        single_tflops=geometric_mean([card.single_tflops for card in cards]),
        knee_mhz=_mean([card.knee_mhz for card in known]),
        slope_per_ghz=_mean([card.slope_per_ghz for card in known]),
        static_w=_mean([card.static_w for card in known]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def prior_of(card: Card | None, power_max_w: float) -> Prior:
    return NO_PRIOR if card is None else card.prior(power_max_w)
