"""DOC card_fit"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from joulecut_engine.estimate.card import Card, prior_of
from joulecut_engine.estimate.evidence import Evidence
from joulecut_engine.estimate.fitting import fit
from joulecut_engine.estimate.physics import Physics, Prior
from joulecut_engine.estimate.power_cap import load

TEACHER_CLOCKS_MIN = 4  # fewer do not tell a knee from a cap
TEACHERS_MAX = 16  # more change nothing but the time it takes
TOGETHER_MAX = 16  # curves fitted together
# How far a pupil may stand from its teachers, as far as forward and backward of one card
# stand from each other on the public sweeps. The knee is a row of the card's voltage table:
# within a step of its clocks (15 MHz).
KNEE_SD_MHZ, SLOPE_SD = 10.0, 0.05
STATIC_SD = 0.07  # relative
CAP_SD = 0.02
CAP_SD_MHZ = 30.0  # two steps of the clock table
LEAD_SD = 0.01  # a logarithm; forward and backward of one card differ by 0.00-0.03
CLOCKED_SD = 0.15
CLOCKED_SD_OTHER_CARD = 0.3  # the same work follows the clock less on the A40 (0.3-0.6, 0.9)


def fit_all(evidence: Sequence[Evidence]) -> tuple[Physics, ...]:
    """One curve per piece of evidence, in its order; cards share what is theirs."""
    cards: dict[tuple[str, float], list[int]] = {}
    for i, one in enumerate(evidence):
        cards.setdefault(_card_key(one), []).append(i)
    found: dict[int, Physics] = {}
    pupils: dict[tuple[str, float], tuple[list[int], Prior]] = {}
    for key, members in sorted(cards.items()):
        teachers = _teachers(evidence, members)
        pupil = [i for i in members if i not in set(teachers)]
        prior = _base(evidence, members)
        curves = _fit(evidence, teachers, prior)
        found |= curves
        pupils[key] = (pupil, _taught(prior, tuple(curves.values())))
    clocked = [curve.clock_share for _, curve in sorted(found.items())]
    for pupil, taught in pupils.values():
        prior = taught
        if taught.clocked is None and clocked:
            share = float(np.median(clocked))
            prior = replace(taught, clocked=share, clocked_sd=CLOCKED_SD_OTHER_CARD)
        for group in _groups(evidence, pupil):
            found |= _fit(evidence, group, prior)
    return tuple(found[i] for i in range(len(evidence)))


def _card_key(one: Evidence) -> tuple[str, float]:
    return ("", one.top_mhz) if one.card is None else (one.card.name, 0.0)


def _base(evidence: Sequence[Evidence], members: Sequence[int]) -> Prior:
    card: Card | None = evidence[members[0]].card
    return prior_of(card, max(float(evidence[i].sweep.power_w.max()) for i in members))


def _teachers(evidence: Sequence[Evidence], members: Sequence[int]) -> list[int]:
    """The best measured of a card: at least half as many clocks as the best one has."""
    counts = {i: evidence[i].sweep.clocks_mhz.size for i in members}
    enough = max(TEACHER_CLOCKS_MIN, max(counts.values()) / 2)
    able = [i for i in members if counts[i] >= enough]
    return sorted(able, key=lambda i: (-counts[i], i))[:TEACHERS_MAX]


def _groups(evidence: Sequence[Evidence], pupils: Sequence[int]) -> list[list[int]]:
    """Pupils by workload, so that what is fitted together does not depend on strangers."""
    by_workload: dict[str, list[int]] = {}
    for i in pupils:
        by_workload.setdefault(evidence[i].work.workload, []).append(i)
    return [
        members[start : start + TOGETHER_MAX]
        for members in by_workload.values()
        for start in range(0, len(members), TOGETHER_MAX)
    ]


def _fit(evidence: Sequence[Evidence], members: Sequence[int], prior: Prior) -> dict[int, Physics]:
    """Same measurements, same curve: stages with equal rows are fitted once."""
    first: dict[bytes, int] = {}
    stands_for: dict[int, int] = {}
    for i in members:
        sweep = evidence[i].sweep
        content = b"".join(a.tobytes() for a in (sweep.clocks_mhz, sweep.time_s, sweep.power_w))
        stands_for[i] = first.setdefault(content, i)
    distinct = list(first.values())
    top_mhz = max((evidence[i].top_mhz for i in members), default=0.0)
    curves = fit([evidence[i].sweep for i in distinct], prior, top_mhz)
    by_index: Mapping[int, Physics] = dict(zip(distinct, curves, strict=True))
    return {i: by_index[stands_for[i]] for i in members}


def _taught(prior: Prior, curves: Sequence[Physics]) -> Prior:
    """The card as its teachers show it; as before where there are none."""
    if not curves:
        return prior
    static_w = float(np.median([curve.power_static_w for curve in curves]))
    capped = [curve for curve in curves if np.isfinite(curve.clock_cap_mhz)]
    taught = replace(
        prior,
        knee_mhz=curves[0].clock_knee_mhz,
        knee_sd_mhz=KNEE_SD_MHZ,
        slope_per_ghz=curves[0].voltage_slope_per_ghz,
        slope_sd=SLOPE_SD,
        static_w=static_w,
        static_sd_w=max(1.0, STATIC_SD * static_w),
        clocked=float(np.median([curve.clock_share for curve in curves])),
        clocked_sd=CLOCKED_SD,
    )
    if not capped:
        return taught
    at_top = [float(curve.power_w(np.array([curve.clock_max_mhz]))[0]) for curve in capped]
    limited_w = [
        power_w
        for power_w, curve in zip(at_top, capped, strict=True)
        if curve.power_cap_mhz < curve.clock_max_mhz
    ]
    if limited_w:
        taught = replace(taught, cap_w=float(np.median(limited_w)), cap_sd=CAP_SD)
    leads = [np.log(min(c.power_cap_mhz, c.clock_max_mhz) / c.clock_cap_mhz) for c in capped]
    knee_mhz = curves[0].clock_knee_mhz
    at_knee = [float(curve.power_w(np.array([knee_mhz]))[0]) for curve in capped]
    return replace(
        taught,
        cap_load_w_per_ghz=load(float(np.median(at_knee)), knee_mhz, taught),
        cap_mhz=float(np.median([curve.clock_cap_mhz for curve in capped])),
        cap_sd_mhz=CAP_SD_MHZ,
        lead=float(np.median(leads)),
        lead_sd=LEAD_SD,
    )
