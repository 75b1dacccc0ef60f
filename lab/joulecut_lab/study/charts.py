"""The charts of a study: a panel states one question to the table."""

from collections.abc import Mapping, Sequence

import numpy as np

from joulecut_cli import figures
from joulecut_engine.panel import LINES, PARTS, Area, Bars, Item, Limit, Line, Mark, Panel, Point
from joulecut_lab.study.evaluate import OURS, PLAIN_FEATURES, PlainForest, Result
from joulecut_lab.study.row import Row, curves, frontier, saving
from joulecut_sim.layer import Dtype

CAUSES = ("memory and uncore", "leakage", "clock and overhead", "useful switching")
SEQUENCES_NAMED_MAX = 6  # on an axis: more run into each other
RESIDUAL_MAX = 1.0  # a prediction more than twice off is drawn at the edge


def usual_dtype(rows: Sequence[Row]) -> str:
    """The one to look at where only one is drawn: 16 bits where swept, as training uses it."""
    swept = {row.dtype for row in rows}
    return next(d for d in ("fp16", "bf16", "tf32", "fp32", "fp8") if d in swept)


def at_longest(rows: Sequence[Row], dtype: str) -> dict[str, tuple[Row, ...]]:
    """By model, the curve at its longest sequence."""
    found: dict[str, tuple[Row, ...]] = {}
    for setting, curve in sorted(curves(rows).items(), key=lambda one: one[0][2]):
        if setting[4] == dtype and len(curve) > 1:
            found[setting[1]] = curve
    return found


def over_clock(curve: Sequence[Row]) -> list[Panel]:
    """Runtime, power and energy of one layer; the clock from which a limit holds the card, and that
    of least energy, are marked.
    """
    best, panels = saving(curve).frugal, []
    throttled = next((row.nominal_mhz for row in curve if row.capped), None)
    for key, unit, scale in (("time_s", "runtime, ms", 1e3), ("power_w", "power, W", 1.0),
                             ("energy_j", "energy, J", 1.0)):  # fmt: skip
        points = tuple((row.nominal_mhz, scale * getattr(row, key)) for row in curve)
        items: list[Item] = [Line("", "ours", points)]
        if throttled:
            items.append(Limit("throttled", "due", x=throttled))
        if key == "energy_j":
            spot = (best.nominal_mhz, best.energy_j)
            items.append(Mark("", "ours", spot, "ring", f"{spot[0]:.0f} MHz"))
        title = f"{best.model}, {best.sequence:,} tokens: {unit}"
        panels.append(Panel(title, "clock, MHz", "", tuple(items)))
    return panels


def front(title: str, by_dtype: Mapping[Dtype, Sequence[Row]]) -> Panel:
    """Every clock of a layer as a dot and its Pareto front, by data type: energy over the least
    against time over the fastest point's.
    """
    items: list[Item] = []
    for (dtype, curve), colour in zip(by_dtype.items(), LINES, strict=False):
        if not curve:
            continue
        points = frontier(curve)
        time_s, energy_j = points[0].time_s, points[-1].energy_j

        def shown(some: Sequence[Row], t: float = time_s, e: float = energy_j) -> tuple[Point, ...]:
            return tuple((100 * (one.time_s / t - 1), one.energy_j / e) for one in some)

        items += [Line("", colour, shown(curve), "dots"), Line(dtype, colour, shown(points))]
    return Panel(title, "slower than the fastest, %", "energy over the least", tuple(items))


def parts(rows: Sequence[Row]) -> list[Panel]:
    """Energy over clock, stacked by cause, as the simulated card spends it, without noise; none of
    a measured card, whose sensors do not tell causes apart.
    """
    dtype = usual_dtype(rows)
    panels = []
    for model, curve in at_longest(rows, dtype).items():
        if any(row.memory_j is None for row in curve):
            return []
        areas, floor_j = [], [0.0] * len(curve)
        for place, name in enumerate(CAUSES):
            top_j = []
            for low, row in zip(floor_j, curve, strict=True):
                each = (row.memory_j, row.leakage_j, row.clock_j, row.switching_j)
                joules = [value or 0.0 for value in each]
                top_j.append(low + joules[place] / sum(joules) * row.energy_j)
            points = tuple(zip((row.nominal_mhz for row in curve), floor_j, top_j, strict=True))
            areas.append(Area(name, PARTS[name], points))
            floor_j = top_j
        title = f"{model} s={curve[0].sequence} {dtype}"
        panels.append(
            Panel(title, "clock asked, MHz", "energy of one pass, J", tuple(areas), zero=True)
        )
    return panels


def best_clocks(rows: Sequence[Row]) -> list[Panel]:
    """How the clock of least energy moves with the sequence length.

    One at an end of the sweep is marked: the best may lie beyond.
    """
    dtype = usual_dtype(rows)
    lines, marks = list[Line](), list[Mark]()
    order = list(dict.fromkeys(row.model for row in rows))
    for model in order:
        found = [
            (float(setting[2]), saving(curve).frugal.nominal_mhz, curve)
            for setting, curve in curves(rows).items()
            if setting[1] == model and setting[4] == dtype and len(curve) > 1
        ]
        points = tuple(sorted((sequence, best) for sequence, best, _ in found))
        if len(points) > 1:
            colour = LINES[order.index(model)]
            lines.append(Line(model, colour, points))
            marks += [
                Mark("", colour, (sequence, best), "ring")
                for sequence, best, curve in found
                if best in {curve[0].nominal_mhz, curve[-1].nominal_mhz}
            ]
    title = f"Clock of least energy over sequence length, {dtype}"
    ticks = tuple(sorted({x for line in lines for x, _ in line.points}))
    if not lines:
        return []
    named = ticks if len(ticks) <= SEQUENCES_NAMED_MAX else ()
    return [Panel(title, "sequence, tokens", "clock, MHz", (*lines, *marks), x_ticks=named)]


def residuals(rows: Sequence[Row], results: Sequence[Result]) -> list[Panel]:
    """Errors over clock of our predictor, in the easy split and in an honest one."""
    panels = []
    for result in results:
        shown = result.split.name in {"random rows", "held-out clocks"}
        if result.predictor != OURS or not shown or not result.judged:
            continue
        lines = []
        for place, (name, said, truth) in enumerate(
            (
                ("power", result.power_w, [row.power_w for row in rows]),
                ("time", result.time_s, [row.time_s for row in rows]),
                ("energy", result.power_w * result.time_s, [row.energy_j for row in rows]),
            )
        ):
            points = tuple(
                (row.nominal_mhz, max(-RESIDUAL_MAX, min(RESIDUAL_MAX, value / real - 1.0)) * 100.0)
                for row, value, real in zip(rows, said, truth, strict=True)
                if np.isfinite(value)  # else it was not judged
            )
            mape = figures.percent(result.scores[name].mape)
            lines.append(Line(f"{name} ({mape})", LINES[place], points, "dots"))
        title = f"Residuals, {result.split.name}"
        panels.append(Panel(title, "clock asked, MHz", "predicted over true, %", tuple(lines)))
    return panels


def importances(rows: Sequence[Row]) -> list[Panel]:
    """What a plain forest looks at for each target."""
    bars = tuple(
        Bars(target, colour, tuple(shares.values()))
        for (target, shares), colour in zip(PlainForest().importances(rows).items(), LINES,
                                            strict=False)
    )  # fmt: skip
    return [Panel("A plain forest depends on", "", "share", bars, PLAIN_FEATURES)]
