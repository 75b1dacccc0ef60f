"""Pictures of estimates, scalings and sweeps: a PNG, or a page with a table below the figure."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from joulecut_cli.chart import PAGE, SERIES, figure, png, style, svg
from joulecut_cli.outfile import replacing
from joulecut_cli.plot import document
from joulecut_controller.sources.run_file import RunFile
from joulecut_engine.model.estimate import MEMORIES, Estimate
from joulecut_engine.model.graph_level import Timeline
from joulecut_engine.model.sweep import Rows
from joulecut_wire.errors import BadInput

GB = 1e9
WIDTH = 880  # CSS pixels
BAR_HEIGHT, TIMELINE_HEIGHT = 120, 300
FAR = 3.0  # end of the shown range, over the best
DOTS_MAX = 4000  # of a sweep: more hide each other and make a page slow
STAGES_MAX = 32  # rows of a timeline that can be told apart
_COLOURS = tuple(SERIES)


def write(path: Path, title: str, drawn: Sequence[Any], table: Sequence[str], note: str) -> None:
    """One file: the first figure as PNG, or all figures in a page. Raises BadInput."""
    try:
        with replacing(path) as spare:
            if path.suffix == ".png":
                drawn[0].suptitle(title, color=PAGE["ink"][0])
                spare.write_bytes(png(drawn[0]))
                return
            body = [f"<section>{svg(one, title)}</section>" for one in drawn]
            if table:
                body.append(f"<section>{''.join(table)}</section>")
            spare.write_text(document(title, body, [note]), encoding="utf-8")
    except OSError as error:
        raise BadInput("--plot", f"{path}: {error.strerror}", "a writable file") from None


def estimate(path: Path, file: RunFile, found: Estimate, timeline: Timeline | None) -> None:
    """Time, energy and memory as bars, and the pipeline over time where there is one."""
    from joulecut_cli.model.shown import title

    name = title(file)
    with style():
        drawn, _ = figure(WIDTH, 3 * BAR_HEIGHT + 40 + _stages_height(found))
        drawn.clear()
        heights = [BAR_HEIGHT, BAR_HEIGHT, _stages_height(found)]
        rows = drawn.subplots(3, 1, height_ratios=heights)
        _bar(rows[0], "seconds of one iteration", found.breakdown_s)
        joules = {key: part / 1e3 for key, part in found.energy_breakdown_j.items()}
        _bar(rows[1], "kJ of one iteration", joules)
        _memory(rows[2], found, file.system.hbm_bytes)
        drawings = [drawn]
        if timeline is not None:
            drawings.append(_timeline(timeline))
    note = f"predicted at level {found.level}, not measured"
    write(path, name, drawings, [], note)


def curve(path: Path, title: str, note: str, points: Sequence[tuple[float, float, float]]) -> None:
    """Time and energy, relative to today, against a component's clock."""
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
    write(path, title, [drawn], [], note)


def front(
    path: Path, heading: tuple[str, str], rows: Rows, best: Rows, table: Sequence[Sequence[str]]
) -> None:
    """All layouts as dots, time against energy, and the Pareto front among them. `heading` is a
    title and what the figures rest on.
    """
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
    head, *body = table
    cells = ["<table><thead><tr>", *(f"<th>{escape(cell)}</th>" for cell in head), "</tr></thead>"]
    for row in body:
        cells += ["<tr>", *(f"<td>{escape(cell)}</td>" for cell in row), "</tr>"]
    write(path, heading[0], [drawn], [*cells, "</table>"], heading[1])


def _stages_height(found: Estimate) -> int:
    return 60 + 14 * min(STAGES_MAX, len(found.memory))


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


def _timeline(timeline: Timeline) -> Any:
    """Operations of every stage over time."""
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
