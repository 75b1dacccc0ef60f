"""Figures of estimates, of scalings and of sweeps."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from joulecut_engine.graph.pipeline import SENDS
from joulecut_engine.panel import (
    LINES,
    PARTS,
    Item,
    Limit,
    Line,
    Mark,
    Panel,
    Point,
    Spans,
    figure,
    shown,
    stacked,
)
from joulecut_lab.model import technology
from joulecut_lab.model.estimate import MEMORIES, Estimate
from joulecut_lab.model.graph_level import Timeline
from joulecut_lab.model.serving import PHASES, Phase, Served, best_clock
from joulecut_lab.model.sweep import JOULES, TIMES, Layouts, Rows

GB = 1e9
FEW = 500  # layouts whose dots do not hide each other
FAR = 3.0  # end of the shown range, over the best
# By objective: its unit and its axis.
OBJECTIVES = {
    "iteration_time_s": (1.0, "iteration time, s"),
    "energy_j": (1e6, "energy of an iteration with hosts, MJ"),
    "memory_bytes": (GB, "memory of the fullest GPU, GB"),
    "money": (1.0, "money of an iteration, currency of the prices"),
}
PAIRS = (
    ("iteration_time_s", "energy_j"), ("iteration_time_s", "money"),
    ("iteration_time_s", "memory_bytes"), ("memory_bytes", "energy_j"),
)  # fmt: skip
STAGES_MAX = 32  # rows of a timeline that can be told apart


def estimate_panels(found: Estimate, limit_bytes: float) -> list[Panel]:
    """Time, energy and memory as bars; `limit_bytes` is the memory of one GPU."""
    time_s, joules = found.iteration_time_s, sum(found.energy_breakdown_j.values())
    memory = {
        f"stage {stage.stage}": {kind: getattr(stage, kind) for kind in MEMORIES}
        for stage in found.memory[:STAGES_MAX]
    }
    held = stacked("memory of a GPU by stage, and the limit", "GB", memory, unit=GB)
    items: tuple[Item, ...] = (*held.items, Limit("", "due", x=limit_bytes / GB))
    return [
        stacked("time", "s", {"slowest stage": found.breakdown_s, **(
            {"mean GPU": found.mean_breakdown_s} if found.mean_breakdown_s else {})},
            texts={"slowest stage": f"{time_s:.4g} s"}),
        stacked("time of the slowest stage by component", "s",
                {f"{time_s:.4g} s": found.component_time_s}),
        stacked("energy of all GPUs and hosts", "kJ",
                {f"{joules / 1e3:.4g} kJ": found.energy_breakdown_j}, unit=1e3),
        Panel(held.title, held.x_label, "", items, held.groups, stacked=True,
              sideways=True),
    ]  # fmt: skip


def estimate_figure(found: Estimate, limit_bytes: float) -> Any:
    return figure(estimate_panels(found, limit_bytes))


def scale_figure(points: Sequence[tuple[float, float, float]]) -> Any:
    """Time and energy, relative to today, against a component's clock: rows of (clock, time,
    energy), each over today's.
    """
    lines = tuple(
        Line(name, colour, tuple((one[0], (one[column] - 1.0) * 100) for one in points))
        for name, column, colour in (("iteration time", 1, "edge"), ("energy", 2, "ours"))
    )
    panel = Panel("", "clock of the component, relative", "change, %", lines)
    return figure([panel])


def package_panel(until: int = technology.OUTLOOK) -> Panel:
    """Power per package by generation, and its growth carried on to a year."""
    years = range(2017, until + 1)
    grown = tuple((float(year), technology.package_w(year)) for year in years)
    known = (
        Mark("generations", "ours", (float(one.year), one.limit_w), label=one.system)
        for one in technology.generations()
    )
    items: tuple[Item, ...] = (Line("least squares", "edge", grown, "dashed"), *known)
    return Panel("power per package", "year", "W", items, x_range=(2016.0, 2031.0))


def front_figure(found: Layouts) -> Any:
    """All layouts as dots in pairs of objectives, and their front. Counts are of combinations that
    have no dot.
    """
    lines = (
        f"{len(found.front)} of {len(found)} layouts that fit are on the front of all objectives.",
        (
            f"Not drawn: {found.too_large} that need more memory than a GPU has, "
            f"{found.impossible} that cannot be divided so (GPUs, heads, layers or batch)."
        ),
        "Predicted at level formula. Money is in the currency of the prices given.",
    )
    panels = [_pair(found.columns, found.front.columns, across, up) for across, up in PAIRS]
    return figure(panels, columns=2, height=370, note="\n".join(lines))


def layouts_panels(rows: Rows, names: Mapping[int, str]) -> list[Panel]:
    """Time of the slowest stage and energy by part of the named rows, fastest first."""
    order = sorted(names, key=lambda i: float(rows["iteration_time_s"][i]))
    times = {names[i]: {part: float(rows[name][i]) for name, part in TIMES.items()} for i in order}
    joules = {names[i]: {p: float(rows[name][i]) for name, p in JOULES.items()} for i in order}
    texts = {names[i]: f"{rows['iteration_time_s'][i]:.4g} s" for i in order}
    return [
        stacked("time of the slowest stage", "s", times, texts=texts),
        stacked("energy of all GPUs and hosts", "MJ", joules, unit=1e6),
    ]


def _pair(rows: Rows, best: Rows, across: str, up: str) -> Panel:
    (unit_x, label_x), (unit_y, label_y) = OBJECTIVES[across], OBJECTIVES[up]

    def points(some: Rows) -> tuple[Point, ...]:
        pairs = zip(some[across] / unit_x, some[up] / unit_y, strict=True)
        return tuple((float(x), float(y)) for x, y in pairs)

    order = np.lexsort((best[up], best[across]))
    low = np.minimum.accumulate(best[up][order]) / unit_y
    steps = zip(best[across][order] / unit_x, low, strict=True)
    ranges: list[Point] = []
    # The worst layouts take a hundred times the best; the picture leaves them out.
    for name, unit in ((across, unit_x), (up, unit_y)):
        least, every = float(rows[name].min()), 1.1 * float(rows[name].max())
        most = max(float(best[name][best[key].argmin()]) for key in OBJECTIVES)
        ranges.append((0.9 * least / unit, min(every, max(FAR * least, 1.1 * most)) / unit))
    items: tuple[Item, ...] = (
        Line("layouts that fit", "base", points(rows), "dots" if len(rows[up]) > FEW else "marks"),
        Line("front of all four objectives", "edge", points(best), "marks"),
        Line("front of these two", "ours", tuple((float(x), float(y)) for x, y in steps), "step"),
    )
    return Panel("", label_x, label_y, items, x_range=ranges[0], y_range=ranges[1])


def timeline_panel(
    timeline: Timeline, *, title: str = "stages over time", numbered: bool = False, unit: str = "s"
) -> Panel:
    """Operations of every stage over time, with their microbatch's number where asked."""
    operations = timeline.graph.operations
    spans: dict[str, list[tuple[int, float, float]]] = {}
    texts: dict[str, list[str]] = {}
    for operation, start_s, time_s in zip(
        operations, timeline.start_s, timeline.time_s, strict=True
    ):
        if operation.stage < STAGES_MAX:
            spans.setdefault(operation.kind, []).append((operation.stage, start_s, time_s))
            texts.setdefault(operation.kind, []).append(str(operation.microbatch))
    items = tuple(
        Spans(shown(kind), colour, tuple(spans[kind]), tuple(texts[kind]) if numbered else (),
              thin=kind in SENDS)
        for kind, colour in PARTS.items()
        if kind in spans
    )  # fmt: skip
    stages = min(STAGES_MAX, 1 + max(operation.stage for operation in operations))
    names = tuple(f"stage {stage}" for stage in range(stages))
    end = math.nextafter(timeline.end_s, math.inf)
    return Panel(title, unit, "", items, names, x_range=(0.0, end))


def serving_panels(swept: Mapping[str, Sequence[Served]]) -> list[Panel]:
    """Of decoding and of prefill: joules of a token against its time and against the clock, and
    the cheapest clock by limit on the time: curves by name, each of one setting over clocks.
    """
    panels = []
    for title in PHASES:
        phase, joules = title, f"{title}_j_per_token"
        over_time: list[Item] = []
        over_clock: list[Item] = []
        within: list[Item] = []
        for (name, many), colour in zip(swept.items(), LINES, strict=False):
            label = name or title
            within.append(Line(label, colour, _within(many, title), "step"))
            times = tuple((getattr(one, phase).time_s * 1e3, getattr(one, joules)) for one in many)
            clocks = tuple((one.serving.clock_mhz, getattr(one, joules)) for one in many)
            best = min(range(len(many)), key=lambda i, found=clocks: found[i][1])  # type: ignore[misc]
            over_time += [Line(label, colour, times), Mark("", colour, times[best], "ring")]
            over_clock += [
                Line(label, colour, clocks),
                Mark("", colour, clocks[best], "ring", f"{clocks[best][0]:.0f} MHz"),
            ]
        limit = "time between two tokens, ms" if phase == "decode" else "time of the prompts, ms"
        panels += [
            Panel(f"{title}: J per token", limit, "", tuple(over_time), log="xy"),
            Panel(f"{title}: J per token by clock", "clock, MHz", "", tuple(over_clock), log="y"),
            Panel(
                f"{title}: cheapest clock within a limit",
                "limit on time over the fastest, %",
                "MHz",
                tuple(within),
            ),
        ]
    return panels


LIMITS = [1.0 + 0.02 * k for k in range(26)]  # times the fastest: to half as slow again


def _within(swept: Sequence[Served], phase: Phase) -> tuple[Point, ...]:
    """By limit, in per cent over the fastest time: the cheapest clock that keeps it."""
    fastest_s = min(getattr(one, phase).time_s for one in swept)
    choices = ((limit, best_clock(swept, phase, limit * fastest_s)) for limit in LIMITS)
    return tuple((100.0 * (limit - 1.0), choice.best.serving.clock_mhz)
                 for limit, choice in choices if choice is not None)  # fmt: skip


def timeline_figure(timeline: Timeline) -> Any:
    return figure([timeline_panel(timeline)])
