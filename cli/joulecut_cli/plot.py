"""Writes a chart to a file: a page that needs nothing else, or a picture.

`.html` is our own SVG with its legend as a table. `.png` is drawn by matplotlib where that is
installed; nothing here needs it otherwise.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from joulecut_cli import figures
from joulecut_cli.chart import (
    Bar,
    Chart,
    Curve,
    Mark,
    bars_svg,
    frontier_svg,
    swatch_svg,
    view,
)
from joulecut_cli.outfile import checked, replacing
from joulecut_engine.graph.pipeline import GRANULARITIES, Granularity
from joulecut_engine.optimize.problem import Solution
from joulecut_wire.errors import BadInput, Unavailable

SUFFIXES = (".html", ".png")
POINTS = 40  # of a frontier behind one plan: smooth to the eye

_COLOURS = {
    "ours": ("#4a55c4", "#98a2ff"),
    "edge": ("#8a63d2", "#bb9bf5"),
    "gpu": ("#0b7a68", "#46c9ae"),
    "perseus": ("#d2691e", "#f0a35e"),
    "envpipe": ("#c2417c", "#f08bb8"),
    "stage": ("#2f7fb8", "#74b8e6"),
    "cap": ("#a08310", "#dcc04a"),
    "one": ("#7a5c46", "#c4a184"),
    "base": ("#6c7480", "#98a1ac"),
}
_STYLES: dict[Granularity, str] = {"computation": "ours", "edge": "edge", "gpu": "gpu"}
_RULES = """
body{margin:28px auto;max-width:920px;padding:0 20px;background:var(--paper);color:var(--ink);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif;
font-variant-numeric:tabular-nums}
h1{font-size:19px;font-weight:650;letter-spacing:-.01em;margin:0 0 2px}
p{margin:0;color:var(--muted)}p.note{margin-top:10px;font-size:12.5px}
section{margin-top:16px;padding:16px 18px;background:var(--card);border:1px solid var(--line);
border-radius:12px}
.chart{display:block;width:100%;height:auto}.swatch{width:22px;height:16px;vertical-align:-3px}
text{font-family:inherit}.tick,.label{fill:var(--muted);font-size:11.5px}
.value{fill:var(--muted);font-size:9.5px}
.grid{stroke:var(--line)}.axis{stroke:var(--muted);opacity:.55}
.curve{fill:none;stroke:var(--c);stroke-width:2.2;stroke-linejoin:round}
.curve.bound{stroke:var(--muted);stroke-width:1.3;stroke-dasharray:2 3}
.impossible{fill:var(--muted);opacity:.07}.late{fill:var(--due);opacity:.06}
.deadline{stroke:var(--due);stroke-width:1.5;stroke-dasharray:5 3}
.deadline-name{fill:var(--due);font-size:12px;font-weight:550}
.mark *{fill:var(--c);stroke:var(--card);stroke-width:1.6}
.mark .ring{fill:none;stroke:var(--c);stroke-width:2.4}.bar{fill:var(--c)}
table{border-collapse:collapse;width:100%;margin-top:10px;font-size:13px}
th{font-weight:500;color:var(--muted);text-align:right;font-size:12px}
td{text-align:right;border-top:1px solid var(--line)}th,td{padding:4px 0 4px 14px}
th:first-child,td:first-child{text-align:left;padding-left:0}
tr.ours td{font-weight:600}
"""


Bars = tuple[str, tuple[str, ...], tuple[Bar, ...]]  # title, groups, one bar per method


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the legend; the last cells are numbers as text."""

    style: str
    shape: str
    cells: tuple[str, ...]


def target(word: str | None) -> Path | None:
    """Checks a --plot before anything is computed. Raises BadInput, Unavailable."""
    if word is None:
        return None
    path = Path(word)
    if path.suffix not in SUFFIXES:
        raise BadInput("--plot", f'"{word}" ends in none of them', " or ".join(SUFFIXES))
    checked("--plot", path)
    if path.suffix == ".png":
        _pyplot()
    return path


def write(
    path: Path,
    chart: Chart,
    head: Sequence[str],
    rows: Sequence[Row],
    notes: Sequence[str],
    *,
    bars: Bars | None = None,
) -> None:
    """Raises BadInput where the file cannot be written, Unavailable without matplotlib."""
    try:
        with replacing(path) as spare:
            if path.suffix == ".png":
                _draw(spare, chart)
            else:
                spare.write_text(page(chart, head, rows, notes, bars=bars), encoding="utf-8")
    except OSError as error:
        raise BadInput("--plot", f"{path}: {error.strerror}", "a writable file") from None


def page(
    chart: Chart,
    head: Sequence[str],
    rows: Sequence[Row],
    notes: Sequence[str],
    *,
    bars: Bars | None = None,
) -> str:
    """One self-contained HTML page."""
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(chart.title)}</title><style>{_style()}</style></head><body>",
        f"<h1>{escape(chart.title)}</h1>",
        *(f"<p>{escape(note)}</p>" for note in notes[:1]),
        f"<section>{frontier_svg(chart)}",
        "<table><thead><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head),
        "</tr></thead><tbody>",
    ]
    for row in rows:
        first, *rest = row.cells
        lines.append(
            f'<tr class="{row.style}"><td>{swatch_svg(row.style, row.shape)} {escape(first)}</td>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
            + "</tr>"
        )
    lines.append("</tbody></table></section>")
    if bars is not None:
        lines.append(f"<section>{bars_svg(*bars)}</section>")
    lines += [f'<p class="note">{escape(note)}</p>' for note in notes[1:]]
    return "\n".join([*lines, "</body></html>", ""])


def of_frontier(
    title: str,
    fastest: Solution,
    frontiers: Sequence[Sequence[Solution]],
    plan: Solution | None = None,
    deadline_s: float | None = None,
) -> tuple[Chart, list[Row]]:
    """The chart of one or more granularities' frontiers, with a plan on them or without.

    The bound shown is that of the finest: nothing of any granularity lies below it.
    """
    marks = [_marked("baseline", fastest, "base", "circle")]
    rows = [Row("base", "circle", ("baseline, every operation at its fastest", *_cells(fastest)))]
    if plan is not None:
        marks.append(_marked("plan", plan, _STYLES[plan.granularity], "ring"))
        rows.append(Row(_STYLES[plan.granularity], "ring", ("plan", *_cells(plan))))
    for found in frontiers:
        name = f"frontier, granularity {found[0].granularity}"
        rows.append(Row(_STYLES[found[0].granularity], "line", (name, "", "")))
    rows.append(Row("bound", "line", ("lower bound: nothing lies below", "", "")))
    finest = max(frontiers, key=lambda found: GRANULARITIES.index(found[0].granularity))
    chart = Chart(
        title=title,
        curves=tuple(_curve(found, _STYLES[found[0].granularity]) for found in frontiers),
        marks=tuple(marks),
        baseline_s=fastest.iteration_time_s,
        bound=tuple((s.iteration_time_s, s.lower_bound_j) for s in finest),
        deadline_s=deadline_s,
    )
    return chart, rows


def _cells(solution: Solution) -> tuple[str, str]:
    return figures.seconds(solution.iteration_time_s), figures.joules(solution.energy_j)


def _marked(name: str, solution: Solution, style: str, shape: str) -> Mark:
    time, energy = _cells(solution)
    text = f"{name}: {time}, {energy}"
    return Mark(name, solution.iteration_time_s, solution.energy_j, style, shape, text)


def _curve(found: Sequence[Solution], style: str) -> Curve:
    points = tuple((s.iteration_time_s, s.energy_j) for s in found)
    return Curve(f"frontier, granularity {found[0].granularity}", points, style)


def _style() -> str:
    light = {"paper": "#f6f6f3", "card": "#fff", "ink": "#1b1f23", "muted": "#5d656e"}
    light |= {"line": "#e3e3dd", "due": "#b4530b"}
    dark = {"paper": "#131518", "card": "#1b1e22", "ink": "#e8eaed", "muted": "#9aa3ad"}
    dark |= {"line": "#2d3238", "due": "#f0a35e"}

    def scheme(words: dict[str, str], which: int) -> str:
        names = "".join(f"--{name}:{value};" for name, value in words.items())
        classes = "".join(f".{name}{{--c:{pair[which]}}}" for name, pair in _COLOURS.items())
        return f":root{{color-scheme:light dark;{names}}}{classes}"

    return (
        scheme(light, 0)
        + f"@media (prefers-color-scheme:dark){{{scheme(dark, 1)}}}"
        + _RULES.replace("\n", "")
    )


def _pyplot() -> Any:
    """matplotlib, without a display. Raises Unavailable where it is not installed."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError:
        raise Unavailable(
            "a .png needs matplotlib, which is not installed: pip install 'joulecut[plot]', "
            "or name an .html file, which needs nothing"
        ) from None


def _draw(path: Path, chart: Chart) -> None:
    """The same chart by matplotlib."""
    pyplot = _pyplot()
    shapes = {"circle": "o", "ring": "o", "square": "s", "diamond": "D", "triangle": "^"}
    figure, axes = pyplot.subplots(figsize=(9, 5.2), dpi=160, layout="constrained")
    if chart.bound:
        times, bound = zip(*chart.bound, strict=True)
        axes.plot(times, bound, ls=":", color="#5d656e", lw=1.2, label="lower bound")
    for curve in chart.curves:
        times, energies = zip(*curve.points, strict=True)
        axes.plot(times, energies, color=_COLOURS[curve.style][0], lw=2, label=curve.name)
    for mark in chart.marks:
        colour = _COLOURS[mark.style][0]
        face = "none" if mark.shape == "ring" else colour
        axes.plot(
            [mark.time_s],
            [mark.energy_j],
            shapes[mark.shape],
            mec=colour,
            mfc=face,
            ms=8,
            mew=1.8,
            ls="",
            label=mark.name,
        )
    if chart.deadline_s is not None:
        axes.axvline(chart.deadline_s, color="#b4530b", ls="--", lw=1.2, label="deadline")
    (left, right), (low, high) = view(chart)
    axes.set(xlim=(left, right), ylim=(low, high), title=chart.title)
    axes.set(xlabel="iteration time, s", ylabel="energy per iteration, J")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)
    pyplot.close(figure)
