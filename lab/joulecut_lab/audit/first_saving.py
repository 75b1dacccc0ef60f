"""What one lower clock would save of an audited job, predicted from its counters by physics and
public sweeps. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecut_engine.estimate.card import find_card
from joulecut_engine.estimate.estimator import NOMINAL
from joulecut_engine.estimate.other_jobs import (
    FORM_HALF,
    LOWEST_RATIO,
    Counters,
    OtherJobs,
    Voltage,
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


@dataclass(frozen=True, slots=True)
class Predicted:
    """A ratio with the band that NOMINAL of the known jobs kept."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True)
class LowerClock:
    """What one clock for the whole job would do, against default clocks. Predicted."""

    clock_mhz: int
    saved: Predicted  # of the energy
    slowdown: Predicted


def first_saving(
    possible: Floats, voltage: Voltage, default_mhz: float, clocks_mhz: Sequence[int], budget: float
) -> LowerClock | None:
    """The clock of least predicted energy whose predicted slowdown keeps `budget` (a ratio).

    `possible` are shares as `OtherJobs.possible` gives them, `clocks_mhz` the card's. None without
    one below `default_mhz` that saves.
    """
    lower = [mhz for mhz in clocks_mhz if LOWEST_RATIO * default_mhz <= mhz < default_mhz]
    if not lower:
        return None
    clocks = np.array(lower, dtype=np.float64)
    time = 1.0 + possible[:, :1] * (default_mhz / clocks - 1.0)
    moved = voltage.dynamic(clocks, default_mhz)
    energy = time * (possible[:, 1:] + (1.0 - possible[:, 1:]) * moved)
    best = int(np.where(time[0] <= 1.0 + budget, energy[0], np.inf).argmin())
    if time[0, best] > 1.0 + budget or energy[0, best] >= 1.0:
        return None
    return LowerClock(
        lower[best], _band(1.0 - energy[:, best], FORM_HALF), _band(time[:, best] - 1.0, 0.0)
    )


def _band(values: Floats, half: float) -> Predicted:
    """Of a prediction (first) and what else is possible, `half` of it unseen by the shares."""
    outside = (1.0 - NOMINAL) / 2.0
    mean = float(values[0])
    values = np.concatenate([values - half, values, values + half])
    low, high = np.quantile(values, [outside, 1.0 - outside])
    return Predicted(min(mean, float(low)), mean, max(mean, float(high)))


def predicted_saving(facts: OwnerTotals, card: str, budget: float) -> FirstSaving | None:
    """Of the energy that was used at work; None where a counter is missing or nothing is saved.

    `card` is the driver's model name, `budget` the slowdown (a ratio).
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
    steps = int(highest_mhz / CLOCK_STEP_MHZ)
    clocks = [int(highest_mhz) - CLOCK_STEP_MHZ * i for i in range(steps - 1, -1, -1)]
    voltage = MODEL.voltage(card, highest_mhz)
    found = first_saving(MODEL.possible(counters), voltage, clock_mhz, clocks, budget)
    if found is None:
        return None
    saved, slower = found.saved, found.slowdown
    return FirstSaving(
        ratio=saved.mean,
        joules=saved.mean * facts.work_j,
        text=(
            f"from counters, before any probe: {found.clock_mhz} MHz, "
            f"{100 * slower.mean:.1f} % slower ({100 * slower.low:.1f} to {100 * slower.high:.1f})"
        ),
        low=saved.low,
        high=saved.high,
        slowdown=slower.mean,
    )
