"""What was fitted, as a table for people and as rows for programs."""

from typing import Any

import numpy as np

from joulecut_cli import figures
from joulecut_cli.fit.doubts import doubts
from joulecut_cli.fit.fitted import BUDGETS, Result
from joulecut_cli.fit.next_probe import choose, next_probe
from joulecut_engine.graph.pipeline import Kind


def as_json(fitted: Result) -> dict[str, Any]:
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
        "rows": rows,
    }


def as_text(fitted: Result, name: str) -> list[str]:
    """One line per stage and instruction: what it costs, and the clocks it would be given."""
    head = ["stage", "instruction", "MHz", "time", "band", "power"]
    head += [f"within {budget * 100:.0f} %" for budget in BUDGETS]
    rows = [_row(fitted, key) for key in fitted.clocks]
    probes = sorted(fitted.probes)
    measured = f"one probed clock, {probes[0]} MHz"
    if len(probes) > 1:
        measured = f"{len(probes)} probed clocks, {probes[0]} to {probes[-1]} MHz"
    card = f"card: {fitted.card.name}" if fitted.card else "card not recognised: no data sheet used"
    others = "" if not fitted.others else ", one other sweep"
    if fitted.others > 1:
        others = f", {fitted.others} other sweeps"
    probe = next_probe(fitted)
    told = (
        [f"one more probe would tell most at {probe.clock_mhz} MHz: {probe.reason}"]
        if probe
        else []
    )
    return [
        f"{name}: predicted from {measured}{others}; {card}",
        *doubts(fitted),
        "",
        *figures.table(head, rows, frozenset(head) - {"instruction"}),
        "",
        "time and power at the highest clock; band: how much longer one in twenty times may be;",
        "within: clock of least predicted energy at that slowdown, and what it saves;",
        "none below the lowest probed clock. Every clock: --json",
        *told,
    ]


def _row(fitted: Result, key: tuple[int, Kind]) -> list[str]:
    stage, kind = key
    predicted = fitted.predicted[key]
    own = tuple(clock for clock in predicted.clocks_mhz if clock in fitted.probes)
    inside = np.array([clock >= own[0] for clock in predicted.clocks_mhz])
    band = float(np.max((predicted.time_high_s / predicted.time_s)[inside])) - 1.0
    cells = []
    for budget in BUDGETS:
        found = choose(predicted, budget, known_mhz=own)
        cells.append(f"{found.clock_mhz}: {figures.percent(found.saved_ratio)}")
    return [
        str(stage),
        kind,
        str(predicted.clocks_mhz[-1]),
        figures.seconds(float(predicted.time_s[-1])),
        f"+{figures.percent(band)}",
        figures.watts(float(predicted.power_w[-1])),
        *cells,
    ]
