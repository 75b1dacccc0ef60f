"""Physics of many kinds of work, with the numbers of one card shared between them.

Voltage curve, static power and power cap belong to the card. Work with few clocks cannot determine
them, and takes them from work that was swept on the same card, else from the data sheet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from joulecut_engine.estimate.card import Card, prior_of
from joulecut_engine.estimate.evidence import Evidence
from joulecut_engine.estimate.fitting import fit
from joulecut_engine.estimate.physics import Physics, Prior
from joulecut_engine.estimate.power_cap import load

SWEPT_CLOCKS_MIN = 4  # fewer do not separate a knee from a cap
SWEPT_MAX = 16  # more change only the time it takes
TOGETHER_MAX = 16  # curves fitted together
# Standard deviations of sparse work around swept work: as far as forward and backward of one card
# differ on the public sweeps. The knee is a row of the card's voltage table, within a clock step.
KNEE_SD_MHZ, SLOPE_SD = 10.0, 0.05
STATIC_SD = 0.07  # relative
CAP_SD = 0.02
CAP_SD_MHZ = 30.0  # two steps of the clock table
LEAD_SD = 0.01  # a logarithm; forward and backward of one card differ by 0.00-0.03
CLOCKED_SD = 0.15
CLOCKED_SD_OTHER_CARD = 0.3  # the same work follows the clock less on the A40 (0.3-0.6, 0.9)


def fit_cards(evidence: Sequence[Evidence]) -> tuple[Physics, ...]:
    """One curve per piece of evidence, in order; work on one card shares the card's numbers."""
    cards: dict[tuple[str, float], list[int]] = {}
    for i, one in enumerate(evidence):
        cards.setdefault(_card_key(one), []).append(i)
    found: dict[int, Physics] = {}
    sparse: dict[tuple[str, float], tuple[list[int], Prior]] = {}
    for key, members in sorted(cards.items()):
        swept = _swept(evidence, members)
        rest = [i for i in members if i not in set(swept)]
        prior = _base(evidence, members)
        curves = _fit(evidence, swept, prior)
        found |= curves
        sparse[key] = (rest, _card_prior(prior, tuple(curves.values())))
    clocked = [curve.clock_share for _, curve in sorted(found.items())]
    for rest, card_prior in sparse.values():
        prior = card_prior
        if prior.clocked is None and clocked:
            share = float(np.median(clocked))
            prior = replace(prior, clocked=share, clocked_sd=CLOCKED_SD_OTHER_CARD)
        for group in _groups(evidence, rest):
            found |= _fit(evidence, group, prior)
    return tuple(found[i] for i in range(len(evidence)))


def _card_key(one: Evidence) -> tuple[str, float]:
    return ("", one.top_mhz) if one.card is None else (one.card.name, 0.0)


def _base(evidence: Sequence[Evidence], members: Sequence[int]) -> Prior:
    card: Card | None = evidence[members[0]].card
    return prior_of(card, max(float(evidence[i].sweep.power_w.max()) for i in members))


def _swept(evidence: Sequence[Evidence], members: Sequence[int]) -> list[int]:
    """The best measured work of a card: at least half as many clocks as the best one."""
    counts = {i: evidence[i].sweep.clocks_mhz.size for i in members}
    enough = max(SWEPT_CLOCKS_MIN, max(counts.values()) / 2)
    able = [i for i in members if counts[i] >= enough]
    return sorted(able, key=lambda i: (-counts[i], i))[:SWEPT_MAX]


def _groups(evidence: Sequence[Evidence], members: Sequence[int]) -> list[list[int]]:
    """Sparse work by workload: a fit does not depend on other workloads."""
    by_workload: dict[str, list[int]] = {}
    for i in members:
        by_workload.setdefault(evidence[i].work.workload, []).append(i)
    return [
        group[start : start + TOGETHER_MAX]
        for group in by_workload.values()
        for start in range(0, len(group), TOGETHER_MAX)
    ]


def _fit(evidence: Sequence[Evidence], members: Sequence[int], prior: Prior) -> dict[int, Physics]:
    """Fit each distinct sweep once: stages with equal rows share a curve."""
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


def _card_prior(prior: Prior, curves: Sequence[Physics]) -> Prior:
    """The card's prior updated by curves of swept work; unchanged without any."""
    if not curves:
        return prior
    static_w = float(np.median([curve.power_static_w for curve in curves]))
    capped = [curve for curve in curves if np.isfinite(curve.clock_cap_mhz)]
    updated = replace(
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
        return updated
    at_top = [float(curve.power_w(np.array([curve.clock_max_mhz]))[0]) for curve in capped]
    limited_w = [
        power_w
        for power_w, curve in zip(at_top, capped, strict=True)
        if curve.power_cap_mhz < curve.clock_max_mhz
    ]
    if limited_w:
        updated = replace(updated, cap_w=float(np.median(limited_w)), cap_sd=CAP_SD)
    leads = [np.log(min(c.power_cap_mhz, c.clock_max_mhz) / c.clock_cap_mhz) for c in capped]
    knee_mhz = curves[0].clock_knee_mhz
    at_knee = [float(curve.power_w(np.array([knee_mhz]))[0]) for curve in capped]
    return replace(
        updated,
        cap_load_w_per_ghz=load(float(np.median(at_knee)), knee_mhz, updated),
        cap_mhz=float(np.median([curve.clock_cap_mhz for curve in capped])),
        cap_sd_mhz=CAP_SD_MHZ,
        lead=float(np.median(leads)),
        lead_sd=LEAD_SD,
    )
