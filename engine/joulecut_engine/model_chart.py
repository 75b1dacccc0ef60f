"""Figures of estimates, of scalings and of sweeps, drawn by matplotlib."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from joulecut_engine.chart import PAGE, SERIES, figure, style
from joulecut_engine.model.estimate import MEMORIES, Estimate
from joulecut_engine.model.graph_level import Timeline
from joulecut_engine.model.sweep import Rows

GB = 1e9
WIDTH = 880  # CSS pixels
BAR_HEIGHT, TIMELINE_HEIGHT = 120, 300
FAR = 3.0  # end of the shown range, over the best
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


def front_figure(rows: Rows, best: Rows) -> Any:
    """All layouts as dots, time against energy, and the Pareto front `best` among them."""
    with style():
        drawn, axes = figure(WIDTH, 460)
        every = max(1, math.ceil(len(rows["energy_j"]) / DOTS_MAX))
        time_s, energy = rows["iteration_time_s"][::every], rows["energy_j"][::every] / 1e6
        axes.scatter(time_s, energy, s=6, color=SERIES["base"][0], alpha=0.25, lw=0,
                     label="layouts that fit", rasterized=True)  # fmt: skip
        axes.scatter(best["iteration_time_s"], best["energy_j"] / 1e6, s=18, lw=0,
                     color=SERIES["edge"][0], label="Pareto front")  # fmt: skip
        low = np.minimum.accumulate(best["energy_j"]) / 1e6
        axes.step(best["iteration_time_s"], low, where="post", color=SERIES["ours"][0], lw=2,
                  label="least energy within a time")  # fmt: skip
        # The slowest layouts take a hundred times the fastest; the picture leaves them out.
        axes.set_xlim(0.95 * time_s.min(), FAR * time_s.min())
        axes.set_ylim(0.9 * energy.min(), FAR * energy.min())
        axes.set_xlabel("iteration time, s", loc="right")
        axes.set_title("energy of an iteration with hosts, MJ", loc="left")
        axes.legend()
    return drawn


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
