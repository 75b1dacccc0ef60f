"""How predictions are judged: errors, and what choosing a clock by them costs.

Errors alone hide failure: those of time and power cancel in the energy, and a clock chosen
by them still breaks the budget. So regret and overshoot come first. A choice is the clock of
least predicted energy whose predicted time is within the budget, not below the lowest clock
probed; the budget is relative to the measured time at the highest clock, which is probed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_engine.estimate.evidence import Evidence
from joulecut_engine.estimate.physics import Floats

BUDGETS = (0.02, 0.05, 0.1)
PERCENT = 100.0


@dataclass(frozen=True, slots=True)
class Predicted:
    """At every clock of the truth; the band is None where the learner has none."""

    time_s: Floats
    power_w: Floats
    band_s: tuple[Floats, Floats] | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """Means over curves, in percent or percentage points.

    `error` and `r2` are of time, power and energy at clocks not probed; R2 within each
    curve. `regret` and `overshoot` are per budget. `covered` is the share of times not
    probed that lie in the band, None without one.
    """

    error: tuple[float, float, float]
    r2: tuple[float, float, float]
    regret: tuple[float, ...]
    overshoot: tuple[float, ...]
    covered: float | None


def score(
    truth: Sequence[Evidence],
    probed: Sequence[Evidence],
    said: Sequence[Predicted],
    *,
    sure: bool = False,
) -> Score:
    """One predictor on some curves, each with the probes it was given.

    `sure` asks the upper edge of its band to keep the budget, as the controller does.
    """
    errors, fits, covered, chosen = [], [], [], []
    for full, known, one in zip(truth, probed, said, strict=True):
        sweep = full.sweep
        unseen = ~np.isin(sweep.clocks_mhz, known.sweep.clocks_mhz)
        pairs = (
            (one.time_s, sweep.time_s),
            (one.power_w, sweep.power_w),
            (one.time_s * one.power_w, sweep.time_s * sweep.power_w),
        )
        errors.append([percent_off(guess[unseen], real[unseen]) for guess, real in pairs])
        fits.append([r2(guess[unseen], real[unseen]) for guess, real in pairs])
        if one.band_s is not None:
            low_s, high_s = one.band_s
            inside = (low_s <= sweep.time_s) & (sweep.time_s <= high_s)
            covered.append(PERCENT * float(inside[unseen].mean()))
        lowest_mhz = float(known.sweep.clocks_mhz.min())
        chosen.append([choice(full, one, lowest_mhz, budget, sure=sure) for budget in BUDGETS])
    regret, overshoot = np.moveaxis(np.array(chosen), 2, 0).mean(axis=1)
    time, power, energy = np.mean(errors, axis=0)
    r2_time, r2_power, r2_energy = np.mean(fits, axis=0)
    return Score(
        error=(float(time), float(power), float(energy)),
        r2=(float(r2_time), float(r2_power), float(r2_energy)),
        regret=tuple(float(value) for value in regret),
        overshoot=tuple(float(value) for value in overshoot),
        covered=float(np.mean(covered)) if covered else None,
    )


def mean(scores: Sequence[Score]) -> Score:
    """The mean of several protocols of the same kind."""

    def across(name: str) -> tuple[float, ...]:
        return tuple(float(v) for v in np.mean([getattr(one, name) for one in scores], axis=0))

    covered = [one.covered for one in scores if one.covered is not None]
    time, power, energy = across("error")
    r2_time, r2_power, r2_energy = across("r2")
    return Score(
        error=(time, power, energy),
        r2=(r2_time, r2_power, r2_energy),
        regret=across("regret"),
        overshoot=across("overshoot"),
        covered=float(np.mean(covered)) if covered else None,
    )


def percent_off(guess: Floats, real: Floats) -> float:
    """Mean absolute error relative to the truth, in percent."""
    return PERCENT * float(np.mean(np.abs(guess / real - 1.0)))


def r2(guess: Floats, real: Floats) -> float:
    spread = float(((real - real.mean()) ** 2).sum())
    return 1.0 - float(((guess - real) ** 2).sum()) / spread


def choice(
    full: Evidence, said: Predicted, lowest_mhz: float, budget: float, *, sure: bool
) -> tuple[float, float]:
    """Regret and overshoot in percent, neither below 0: too slow a clock is no merit."""
    sweep = full.sweep
    deadline_s = (1.0 + budget) * float(sweep.time_s[-1])
    energy_j = sweep.time_s * sweep.power_w
    allowed = sweep.clocks_mhz >= lowest_mhz
    judged_s = said.band_s[1] if sure and said.band_s is not None else said.time_s
    hopeful = allowed & (judged_s <= deadline_s)
    hopeful[-1] = True  # the highest clock keeps every budget
    picked = int(np.where(hopeful, said.time_s * said.power_w, np.inf).argmin())
    best_j = float(energy_j[allowed & (sweep.time_s <= deadline_s)].min())
    regret = max(0.0, float(energy_j[picked]) / best_j - 1.0)
    overshoot = max(0.0, float(sweep.time_s[picked]) / deadline_s - 1.0)
    return PERCENT * regret, PERCENT * overshoot
