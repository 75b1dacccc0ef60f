"""Curves of every stage and instruction of a sweep, with bands that include probing noise.

A few probes cannot separate noise from misfit. The residuals of all curves together, and dense
other sweeps, estimate the noise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from joulecut_engine.estimate.card import CARDS, Card
from joulecut_engine.estimate.estimator import Prediction
from joulecut_engine.estimate.evidence import Evidence, Work, of_profile, sweep_of
from joulecut_engine.estimate.physics import Floats
from joulecut_engine.estimate.power_cap import POINTS_FOR_CAP
from joulecut_engine.estimate.smooth import DENSE_MIN
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile
from joulecut_lab.fit.recognise import candidates, recognise
from joulecut_lab.sweep_fit import JudgedCurve, fit_judged

NO_CARD = "none"
BUDGETS = (0.02, 0.05, 0.10)  # slowdowns that are shown and weighed
OWN = ""  # workload name of PROFILE.csv; those of the others are their places
TIME_NUMBERS = 2  # of a time curve; and the cap, where one was looked for
CAP_NUMBERS = 1.5  # the best of many caps fits more noise than one number
# Prior of the residuals: two of a clean sweep (0.1 %).
NOISE_PRIOR, NOISE_PRIOR_COUNT = 0.001, 2
NOISE_MAX = 0.03  # of a sweep's times
UPPER = 0.95  # a band of nine in ten has one in twenty above it
NORMAL_UPPER = 1.645  # where a normal distribution has it, in standard deviations


@dataclass(frozen=True, slots=True)
class Banded(Prediction):
    """With a band: `time_low_s <= time_s <= time_high_s`."""

    time_low_s: Floats
    time_high_s: Floats


@dataclass(frozen=True, slots=True)
class Result:
    """Fitted predictions at the clocks of a sweep."""

    clocks: dict[tuple[int, Kind], tuple[int, ...]]  # of the sweep, ascending
    probes: frozenset[int]
    probed: Profile  # the sweep at these
    predicted: dict[tuple[int, Kind], Banded]
    card: Card | None
    others: int  # further sweeps that went in


def fit(sweep: Profile, others: list[Profile], probes: frozenset[int], named: str | None) -> Result:
    """`others` are used whole; `named` is a known card, `NO_CARD`, or None to recognise it."""
    probed = Profile(
        {
            key: tuple(o for o in options if o.clock_mhz in probes)
            for key, options in sweep.options.items()
        },
        source=sweep.source,
    )
    clocks = {
        key: tuple(sorted(o.clock_mhz for o in options)) for key, options in sweep.options.items()
    }
    top_mhz = max(max(own) for own in clocks.values())
    blind = named == NO_CARD
    training: list[Evidence] = []
    cards: list[Card | None] = []
    for place, other in enumerate(others, start=1):
        other_top_mhz = max(o.clock_mhz for options in other.options.values() for o in options)
        card = None if blind else _card(other, other_top_mhz, [])
        cards.append(card)
        training += of_profile(str(place), other, card, other_top_mhz)
    card = None if blind else _card(probed, top_mhz, cards)
    if named is not None and not blind:
        card = next(one for one in CARDS if one.name == named)
    found = fit_judged([*of_profile(OWN, probed, card, top_mhz), *training])
    curves = {key: found[Work(OWN, *key)] for key in clocks}
    scatter = max(_scatter(probed, curves), _scatter_of_others(found))
    predicted = {key: _predicted(curves[key], own, scatter) for key, own in clocks.items()}
    return Result(clocks, probes, probed, predicted, card, len(others))


def _predicted(curve: JudgedCurve, clocks: tuple[int, ...], scatter: float) -> Banded:
    """`scatter` is the half width (a logarithm) that noise of the probes adds to bands."""
    at_mhz = np.asarray(clocks, dtype=np.float64)
    band_s = curve.band_s(at_mhz, scatter)
    return Banded(clocks, curve.time_s(at_mhz), curve.power_w(at_mhz), *band_s)


def _scatter_of_others(curves: Mapping[Work, JudgedCurve]) -> float:
    """Half width that noise adds, by the noise of dense other sweeps; 0 without any.

    Two or three probes cannot show their noise; other sweeps were measured the same way.
    """
    noises = [
        curve.time_left.noise
        for work, curve in curves.items()
        if work.workload != OWN and curve.clocks_mhz.size >= DENSE_MIN
    ]
    return (
        NORMAL_UPPER * min(NOISE_MAX, float(np.median(noises))) * math.sqrt(2.0) if noises else 0.0
    )


def _scatter(probed: Profile, curves: Mapping[tuple[int, Kind], JudgedCurve]) -> float:
    """Half width that noise of the probed times adds.

    Noise is estimated from the residuals of all curves together. It is in the measured times and
    in the fitted numbers, hence sqrt(2); few residuals may be small by chance, hence Student's
    distribution and `NOISE_PRIOR`.
    """
    squares, spare = NOISE_PRIOR_COUNT * NOISE_PRIOR**2, float(NOISE_PRIOR_COUNT)
    for options, key in {options: key for key, options in probed.options.items()}.items():
        physics, sweep = curves[key].physics, sweep_of(options)
        sought = sweep.clocks_mhz.size >= POINTS_FOR_CAP or math.isfinite(physics.clock_cap_mhz)
        numbers = TIME_NUMBERS + CAP_NUMBERS * sought
        if sweep.clocks_mhz.size <= numbers:
            continue
        left = np.log(sweep.time_s / physics.time_s(sweep.clocks_mhz))
        squares += float(left @ left)
        spare += left.size - numbers
    noise = min(NOISE_MAX, math.sqrt(squares / spare))
    return float(stdtrit(spare, UPPER)) * noise * math.sqrt(2.0)


def _card(sweep: Profile, top_mhz: int, others: list[Card | None]) -> Card | None:
    """The card of a sweep; of several candidates, the one of the other sweeps."""
    rows: list[ClockOption] = [o for options in sweep.options.values() for o in options]
    power_w = max(row.power_w for row in rows)
    for card in candidates(top_mhz, power_w):
        if card in others:
            return card
    return recognise(top_mhz, power_w, max(row.clock_mhz for row in rows))
