"""A fit as a table for people and as rows for programs, with warnings about the sweep."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np

from joulecut_cli import figures
from joulecut_cli.money import prices_text
from joulecut_engine.estimate.admission import NEAREST_RATIO_MAX, follows_the_clock
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind
from joulecut_engine.money import Iteration, Prices, Worth, least_cost, worth
from joulecut_lab.fit.fitted import BUDGETS, Result
from joulecut_lab.fit.next_probe import choose, next_probe

POWER_MIN_W, POWER_MAX_W = 1.0, 10_000.0  # no GPU idles below or draws more; 1.4 kW is the most


def as_json(fitted: Result, prices: Prices) -> dict[str, Any]:
    """Every clock of the sweep; units are in the names."""
    rows = []
    for (stage, kind), clocks in fitted.clocks.items():
        predicted = fitted.predicted[stage, kind]
        rows += [
            {
                "stage": stage,
                "instruction": kind,
                "clock_mhz": clock,
                "time_s": float(predicted.time_s[i]),
                "power_w": float(predicted.power_w[i]),
                "time_low_s": float(predicted.time_low_s[i]),
                "time_high_s": float(predicted.time_high_s[i]),
                "probed": clock in fitted.probes,
            }
            for i, clock in enumerate(clocks)
        ]
    probe = next_probe(fitted)
    return {
        "card": fitted.card.name if fitted.card else None,
        "doubts": list(doubts(fitted)),
        "next_probe": probe and {"clock_mhz": probe.clock_mhz, "reason": probe.reason},
        "money": {
            "prices": asdict(prices),
            "rows": [
                {"stage": stage, "instruction": kind, "clock_mhz": clock} | found.as_json()
                for (stage, kind) in fitted.clocks
                for clock, found in [_least_cost(fitted, (stage, kind), prices)]
            ],
        },
        "rows": rows,
    }


def as_text(fitted: Result, name: str, prices: Prices) -> list[str]:
    """One line per stage and instruction: what it costs, and the clocks it would be given."""
    head = ["stage", "instruction", "MHz", "time", "band", "power"]
    head += [f"within {budget * 100:.0f} %" for budget in BUDGETS]
    head += ["least cost", "breaks even"]
    rows = [_row(fitted, key, prices) for key in fitted.clocks]
    probes = sorted(fitted.probes)
    measured = f"one probed clock, {probes[0]} MHz"
    if len(probes) > 1:
        measured = f"{len(probes)} probed clocks, {probes[0]} to {probes[-1]} MHz"
    card = f"card: {fitted.card.name}" if fitted.card else "card not recognised: no data sheet used"
    others = "" if not fitted.others else ", one other sweep"
    if fitted.others > 1:
        others = f", {fitted.others} other sweeps"
    probe = next_probe(fitted)
    advice = [f"most useful next probe: {probe.clock_mhz} MHz: {probe.reason}"] if probe else []
    return [
        f"{name}: predicted from {measured}{others}; {card}",
        *doubts(fitted),
        "",
        *figures.table(head, rows, frozenset(head) - {"instruction"}),
        "",
        "time and power at the highest clock; band: how much longer one in twenty times may be;",
        "within: clock of least predicted energy at that slowdown, and what it saves;",
        f"least cost: of energy and time together, {prices_text(prices)};",
        "none below the lowest probed clock. Every clock: --json",
        *advice,
    ]


def _row(fitted: Result, key: tuple[int, Kind], prices: Prices) -> list[str]:
    stage, kind = key
    predicted = fitted.predicted[key]
    own = tuple(clock for clock in predicted.clocks_mhz if clock in fitted.probes)
    inside = np.array([clock >= own[0] for clock in predicted.clocks_mhz])
    band = float(np.max((predicted.time_high_s / predicted.time_s)[inside])) - 1.0
    cells = []
    for budget in BUDGETS:
        found = choose(predicted, budget, known_mhz=own)
        cells.append(f"{found.clock_mhz}: {figures.percent(found.saved_ratio)}")
    clock, least = _least_cost(fitted, key, prices)
    cells += [f"{clock}: {figures.percent(least.saved_ratio)}", least.break_even_text]
    return [
        str(stage),
        kind,
        str(predicted.clocks_mhz[-1]),
        figures.seconds(float(predicted.time_s[-1])),
        f"+{figures.percent(band)}",
        figures.watts(float(predicted.power_w[-1])),
        *cells,
    ]


def _least_cost(fitted: Result, key: tuple[int, Kind], prices: Prices) -> tuple[int, Worth]:
    """The clock at which energy and GPU time cost least, beside the highest; of one GPU."""
    predicted = fitted.predicted[key]
    lowest = min(clock for clock in predicted.clocks_mhz if clock in fitted.probes)
    points = {
        Iteration(float(time_s), float(time_s * power_w)): clock
        for clock, time_s, power_w in zip(
            predicted.clocks_mhz, predicted.time_s, predicted.power_w, strict=True
        )
        if clock >= lowest
    }
    best, highest = least_cost(points, 1, prices), max(points, key=lambda one: points[one])
    return points[best], worth(highest, best, 1, prices)


def doubts(fitted: Result) -> tuple[str, ...]:
    """Warnings about likely mistakes: one line per kind, for the first operation that shows it.

    A wrong unit, a swapped column or another job on the card gives curves that mean nothing.
    """
    found = (_powers(fitted), _against_each_other(fitted))
    return tuple(line for lines in found for line in [next(lines, None)] if line is not None)


def _powers(fitted: Result) -> Iterator[str]:
    for (stage, kind), predicted in fitted.predicted.items():
        power_w = float(predicted.power_w[-1])
        if not POWER_MIN_W <= power_w <= POWER_MAX_W:
            what = f"{figures.watts(power_w)} at stage {stage} {kind} is no GPU's power"
            yield f"{what}: is time in seconds, and energy in joules?"


def _against_each_other(fitted: Result) -> Iterator[str]:
    for key, options in fitted.probed.options.items():
        rows = sorted(options)
        for low, high in (*pairwise(rows), *((row, rows[-1]) for row in rows[:-2])):
            yield from _pair(key, low, high)


def _pair(key: tuple[int, Kind], low: ClockOption, high: ClockOption) -> Iterator[str]:
    """Two options of one operation, by clock."""
    time, power = low.time_s / high.time_s, high.power_w / low.power_w
    stretch = high.clock_mhz / low.clock_mhz
    same = "no clock explains that: was it the same work, and nothing else on the card?"
    if not 1.0 / NEAREST_RATIO_MAX <= time <= stretch * NEAREST_RATIO_MAX:
        took = f"{figures.seconds(low.time_s)} at {low.clock_mhz} MHz"
        took += f" and {figures.seconds(high.time_s)} at {high.clock_mhz} MHz"
        yield f"stage {key[0]} {key[1]} took {took}; {same}"
    if not follows_the_clock(power, stretch):
        drew = f"{figures.watts(low.power_w)} at {low.clock_mhz} MHz"
        drew += f" and {figures.watts(high.power_w)} at {high.clock_mhz} MHz"
        yield f"stage {key[0]} {key[1]} drew {drew}; {same}"
