"""Files of --plot: an HTML page, where the legend is a table, or a PNG."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from joulecut_cli import figures
from joulecut_cli.chart import (
    Bar,
    Chart,
    Curve,
    Mark,
    bars_figure,
    frontier_figure,
    palette,
    png,
    require,
    svg,
    swatch_svg,
)
from joulecut_cli.outfile import checked, replacing
from joulecut_engine.graph.pipeline import GRANULARITIES, Granularity
from joulecut_engine.optimize.problem import Solution
from joulecut_wire.errors import BadInput

SUFFIXES = (".html", ".png")
POINTS = 40  # of a frontier behind one plan: smooth to the eye

_STYLES: dict[Granularity, str] = {
    "computation": "ours",
    "changes": "changes",
    "edge": "edge",
    "gpu": "gpu",
}
_RULES = """
body{margin:28px auto;max-width:920px;padding:0 20px;background:var(--paper);color:var(--ink);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif;
font-variant-numeric:tabular-nums}
h1{font-size:19px;font-weight:650;letter-spacing:-.01em;margin:0 0 2px}
p{margin:0;color:var(--muted)}p.note{margin-top:10px;font-size:12.5px}
section{margin-top:16px;padding:16px 18px;background:var(--card);border:1px solid var(--line);
border-radius:12px}
.chart{display:block;width:100%;height:auto}.swatch{width:22px;height:16px;vertical-align:-3px}
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
    require()
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
                spare.write_bytes(png(frontier_figure(chart, legend=True)))
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
        f"<section>{svg(frontier_figure(chart), chart.title)}",
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
        lines.append(f"<section>{svg(bars_figure(*bars), bars[0])}</section>")
    return document(chart.title, lines, notes)


def document(title: str, body: Sequence[str], notes: Sequence[str]) -> str:
    """A page around sections: the first note above them, the others below."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{palette()}{_RULES}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *(f"<p>{escape(note)}</p>" for note in notes[:1]),
            *body,
            *(f'<p class="note">{escape(note)}</p>' for note in notes[1:]),
            "</body></html>",
            "",
        ]
    )


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
    return Mark(name, solution.iteration_time_s, solution.energy_j, style, shape)


def _curve(found: Sequence[Solution], style: str) -> Curve:
    points = tuple((s.iteration_time_s, s.energy_j) for s in found)
    return Curve(f"frontier, granularity {found[0].granularity}", points, style)
