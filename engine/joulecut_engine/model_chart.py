"""Figures of estimates, of scalings and of sweeps, drawn by matplotlib."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from joulecut_engine.chart import PAGE, SERIES, figure, style
from joulecut_engine.model import technology
from joulecut_engine.model.estimate import MEMORIES, Estimate
from joulecut_engine.model.graph_level import Timeline
from joulecut_engine.model.run import Run
from joulecut_engine.model.sweep import Rows, run_of

GB = 1e9
WIDTH = 880  # CSS pixels
BAR_HEIGHT, TIMELINE_HEIGHT = 120, 300
FAR = 3.0  # end of the shown range, over the best
# By objective: its letter in the figure, its best direction, its unit and its axis.
OBJECTIVES = {
    "iteration_time_s": ("A", "fastest", 1.0, "iteration time, s"),
    "energy_j": ("B", "least energy", 1e6, "energy of an iteration with hosts, MJ"),
    "memory_bytes": ("C", "least memory", GB, "memory of the fullest GPU, GB"),
    "money": ("D", "cheapest", 1.0, "money of an iteration, currency of the prices"),
}
PAIRS = (
    ("iteration_time_s", "energy_j"), ("iteration_time_s", "money"),
    ("iteration_time_s", "memory_bytes"), ("memory_bytes", "energy_j"),
)  # fmt: skip
DOTS_MAX = 4000  # of a sweep: more hide each other and make a page slow
STAGES_MAX = 32  # rows of a timeline that can be told apart
_COLOURS = tuple(SERIES)


def estimate_figure(found: Estimate, limit_bytes: float) -> Any:
    """Time, energy and memory as bars; `limit_bytes` is the memory of one GPU."""
    heights = [BAR_HEIGHT, BAR_HEIGHT, 60 + 14 * min(STAGES_MAX, len(found.memory))]
    with style():
        drawn, _ = figure(WIDTH, sum(heights) + BAR_HEIGHT + 40)
        drawn.clear()
        rows = drawn.subplots(3, 1, height_ratios=heights)
        _bar(rows[0], "seconds of one iteration", found.breakdown_s)
        joules = {key: part / 1e3 for key, part in found.energy_breakdown_j.items()}
        _bar(rows[1], "kJ of one iteration", joules)
        _memory(rows[2], found, limit_bytes)
    return drawn


def scale_figure(points: Sequence[tuple[float, float, float]]) -> Any:
    """Time and energy, relative to today, against a component's clock: rows of (clock, time,
    energy), each over today's.
    """
    with style():
        drawn, axes = figure(WIDTH, 340)
        factors = [factor for factor, _, _ in points]
        for label, column, colour in (("iteration time", 1, "edge"), ("energy", 2, "ours")):
            values = [(point[column] - 1.0) * 100 for point in points]
            axes.plot(factors, values, color=SERIES[colour][0], lw=2.2, label=label)
        axes.axhline(0, color=PAGE["muted"][0], lw=0.8)
        axes.axvline(1, color=PAGE["muted"][0], lw=0.8, ls=":")
        axes.set_title("change, %", loc="left")
        axes.set_xlabel("clock of the component, relative", loc="right")
        axes.legend()
    return drawn


def package_figure() -> Any:
    """Power per package by generation, and its growth carried on."""
    with style():
        drawn, axes = figure(WIDTH, 340)
        years = range(2017, technology.OUTLOOK + 1)
        axes.plot(years, [technology.package_w(year) for year in years], "--", c=SERIES["edge"][0])
        for one in technology.generations():
            axes.scatter(one.year, one.limit_w, color=SERIES["ours"][0])
            axes.annotate(one.system, (one.year, one.limit_w), (6, -12), textcoords="offset points")
        axes.set_title("power per package, W; dashed: least squares", loc="left")
    return drawn


def front_figure(rows: Rows, best: Rows, impossible: int, too_large: int) -> Any:
    """All layouts as dots in pairs of objectives, the Pareto front `best` among them, and on it
    the best of each objective by its layout. Counts are of combinations that have no dot.
    """
    with style():
        drawn, _ = figure(WIDTH, 860)
        drawn.clear()
        every = max(1, math.ceil(len(rows["energy_j"]) / DOTS_MAX))
        dots = {name: rows[name][::every] for name in OBJECTIVES}
        for axes, (across, up) in zip(drawn.subplots(2, 2).flat, PAIRS, strict=True):
            _pair(axes, dots, best, across, up)
        keys = [f.name for f in fields(Run) if len(np.unique(best[f.name])) > 1]
        keys = keys or ["tensor", "pipeline", "data"]
        lines = [
            f"{name} {title}: {_layout(best, int(best[key].argmin()), keys)}"
            for key, (name, title, *_) in OBJECTIVES.items()
        ]
        front, fit = len(best["money"]), len(rows["money"])
        lines += [
            f"{front} layouts on the front of all four objectives, of {fit} that fit.",
            (
                f"Not drawn: {too_large} that need more memory than a GPU has, {impossible} that "
                "cannot be divided so (GPUs, heads, layers or batch)."
            ),
            "Predicted at level formula. Money is in the currency of the prices given.",
        ]
        drawn.axes[1].legend(loc="upper left")
        drawn.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=10.5)
    return drawn


def _pair(axes: Any, dots: Rows, best: Rows, across: str, up: str) -> None:
    (_, _, unit_x, label_x), (_, _, unit_y, label_y) = OBJECTIVES[across], OBJECTIVES[up]
    axes.scatter(dots[across] / unit_x, dots[up] / unit_y, s=6, color=SERIES["base"][0],
                 alpha=0.25, lw=0, label="layouts that fit", rasterized=True)  # fmt: skip
    axes.scatter(best[across] / unit_x, best[up] / unit_y, s=16, lw=0,
                 color=SERIES["edge"][0], label="front of all four objectives")  # fmt: skip
    order = np.lexsort((best[up], best[across]))
    low = np.minimum.accumulate(best[up][order]) / unit_y
    axes.step(best[across][order] / unit_x, low, where="post", color=SERIES["ours"][0], lw=2,
              label="front of these two")  # fmt: skip
    # The worst layouts take a hundred times the best; the picture leaves them out.
    for axis, name, unit in ((axes.set_xlim, across, unit_x), (axes.set_ylim, up, unit_y)):
        least = dots[name].min()
        most = max(best[name][best[key].argmin()] for key in OBJECTIVES)
        axis(0.9 * least / unit, min(1.1 * dots[name].max(), max(FAR * least, 1.1 * most)) / unit)
    for at, name in _named(best).items():
        axes.annotate(name, (best[across][at] / unit_x, best[up][at] / unit_y), (5, 5),
                      color=PAGE["ink"][0], weight="bold", textcoords="offset points")  # fmt: skip
    axes.set_xlabel(label_x, loc="right")
    axes.set_title(label_y, loc="left")


def _named(best: Rows) -> dict[int, str]:
    """By row of the front: the letters of the objectives that it is best in."""
    named: dict[int, str] = {}
    for key, (name, *_) in OBJECTIVES.items():
        at = int(best[key].argmin())
        named[at] = named.get(at, "") + name
    return named


def _layout(best: Rows, i: int, keys: Sequence[str]) -> str:
    run = run_of(best, i)
    values = ((key, getattr(run, key)) for key in keys)
    return ", ".join(f"{key} {f'{v:g}' if isinstance(v, float) else v}" for key, v in values)


def _bar(axes: Any, title: str, parts: Mapping[str, float]) -> None:
    """One bar of all parts, the small ones without a name."""
    total, left = sum(parts.values()), 0.0
    for place, (name, value) in enumerate(parts.items()):
        if value <= 0.0:
            continue
        colour = SERIES[_COLOURS[place % len(_COLOURS)]][0]
        axes.barh([0], [value], left=left, color=colour, label=name.replace("_", " "))
        left += value
    axes.set_title(f"{title}: {total:.4g}", loc="left")
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.legend(ncols=6, fontsize=9, loc="upper left", bbox_to_anchor=(0, -0.15))


def _memory(axes: Any, found: Estimate, limit_bytes: float) -> None:
    stages = found.memory[:STAGES_MAX]
    left = np.zeros(len(stages))
    for place, kind in enumerate(MEMORIES):
        values = np.array([getattr(stage, kind) for stage in stages]) / GB
        colour = SERIES[_COLOURS[place]][0]
        axes.barh([stage.stage for stage in stages], values, left=left, color=colour,
                  label=kind.removesuffix("_bytes"))  # fmt: skip
        left += values
    axes.axvline(limit_bytes / GB, color=PAGE["due"][0], ls=(0, (5, 3)), lw=1.5)
    axes.invert_yaxis()
    axes.set_title("memory by stage, GB, and the limit", loc="left")
    axes.legend(ncols=5, fontsize=9, loc="upper left", bbox_to_anchor=(0, -0.15))


def timeline_figure(timeline: Timeline) -> Any:
    """Operations of every stage over time, in seconds."""
    with style():
        return _timeline(timeline)


def _timeline(timeline: Timeline) -> Any:
    operations = timeline.graph.operations
    kinds = sorted({operation.kind for operation in operations})
    colours = {kind: SERIES[_COLOURS[i % len(_COLOURS)]][0] for i, kind in enumerate(kinds)}
    drawn, axes = figure(WIDTH, TIMELINE_HEIGHT)
    for kind in kinds:
        spans: dict[int, list[tuple[float, float]]] = {}
        for operation, start_s, time_s in zip(
            operations, timeline.start_s, timeline.time_s, strict=True
        ):
            if operation.kind == kind:
                spans.setdefault(operation.stage, []).append((start_s, time_s))
        for stage, pairs in spans.items():
            axes.broken_barh(pairs, (stage - 0.4, 0.8), color=colours[kind], lw=0)
        axes.plot([], [], color=colours[kind], lw=6, label=kind)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_title("stages over time, s", loc="left")
    axes.legend(ncols=5, fontsize=9, loc="upper left", bbox_to_anchor=(0, -0.12))
    return drawn
