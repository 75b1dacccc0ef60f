"""What one lower clock would save of an audited job, predicted from its counters by physics and
public sweeps. Pure.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from joulecut_engine.estimate.card import find_card
from joulecut_engine.estimate.estimator import NOMINAL
from joulecut_engine.estimate.other_jobs import (
    FORM_HALF,
    LOWEST_RATIO,
    Counters,
    OtherJobs,
)
from joulecut_engine.estimate.physics import Floats
from joulecut_lab.audit.auditor import OwnerTotals
from joulecut_lab.audit.finding import FirstSaving

CLOCK_STEP_MHZ = 15  # of NVIDIA's clock tables
BUDGETS = (0.02, 0.05)  # slowdowns


MODEL = OtherJobs(())


def first_savings(facts: OwnerTotals, models: Mapping[str, str]) -> tuple[FirstSaving, ...]:
    """At each of `BUDGETS`; empty for a job on several models of cards. `models` by UUID."""
    cards = {models[uuid] for uuid in facts.uuids if uuid in models}
    if len(cards) != 1:
        return ()
    [card] = cards
    made = (predicted_saving(facts, card, budget) for budget in BUDGETS)
    return tuple(one for one in made if one is not None)


def predicted_saving(facts: OwnerTotals, card: str, budget: float) -> FirstSaving | None:
    """The clock of least predicted energy whose predicted slowdown keeps `budget` (a ratio); None
    where a counter is missing, or no clock below that of its work saves.

    `card` is the driver's model name.
    """
    known = find_card(card)
    mean = facts.counters.mean
    power_w, clock_mhz = mean("power_w"), mean("clock_mhz")
    limit_w = mean("power_limit_w") or (known.power_limit_w if known else None)
    highest_mhz = max(known.clock_max_mhz if known else 0.0, clock_mhz or 0.0)
    if not power_w or not clock_mhz or not limit_w:
        return None
    names = ("memory_ratio", "sm_ratio", "tensor_ratio", "dram_ratio")
    seen: dict[str, Any] = {name: mean(name) for name in names}
    counters = Counters(
        card, clock_mhz / highest_mhz, power_w / limit_w, gpu_ratio=mean("busy_ratio"),
        **seen,
    )  # fmt: skip
    clocks = np.arange(int(highest_mhz), 0, -CLOCK_STEP_MHZ)[::-1].astype(np.float64)
    clocks = clocks[(clocks >= LOWEST_RATIO * clock_mhz) & (clocks < clock_mhz)]
    if not clocks.size:
        return None
    possible = MODEL.possible(counters)
    time = 1.0 + possible[:, :1] * (clock_mhz / clocks - 1.0)
    moved = MODEL.voltage(card, highest_mhz).dynamic(clocks, clock_mhz)
    energy = time * (possible[:, 1:] + (1.0 - possible[:, 1:]) * moved)
    best = int(np.where(time[0] <= 1.0 + budget, energy[0], np.inf).argmin())
    if time[0, best] > 1.0 + budget or energy[0, best] >= 1.0:
        return None
    low, saved, high = _band(1.0 - energy[:, best], FORM_HALF)
    least, slower, most = _band(time[:, best] - 1.0, 0.0)
    return FirstSaving(
        ratio=saved,
        joules=saved * facts.work_j,
        text=(
            f"from counters, before any probe: {clocks[best]:.0f} MHz, "
            f"{100 * slower:.1f} % slower ({100 * least:.1f} to {100 * most:.1f})"
        ),
        low=low,
        high=high,
        slowdown=slower,
    )


def _band(values: Floats, half: float) -> tuple[float, float, float]:
    """Low, mean and high of a prediction (first) and what else is possible, `half` of it unseen by
    the shares: the band that NOMINAL of the known jobs kept.
    """
    outside = (1.0 - NOMINAL) / 2.0
    mean = float(values[0])
    values = np.concatenate([values - half, values, values + half])
    low, high = np.quantile(values, [outside, 1.0 - outside])
    return min(mean, float(low)), mean, max(mean, float(high))
