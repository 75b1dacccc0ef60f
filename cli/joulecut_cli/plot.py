"""Files of --plot: an HTML page, where the legend is a table, or a PNG."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from joulecut_cli import figures, outfile
from joulecut_engine.chart import (
    PAGE,
    Chart,
    frontier_figure,
    palette,
    png,
    svg,
    swatch_svg,
)
from joulecut_wire.errors import BadInput, not_installed

SUFFIXES = (".html", ".png")
BASELINE = "baseline, every operation at its fastest"
POINTS = 40  # of a frontier behind one plan: smooth to the eye

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


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a legend, with a swatch where it has a style; the last cells are numbers."""

    style: str
    shape: str
    cells: Sequence[str]


def target(word: str | None) -> Path | None:
    """Checks a --plot before anything is computed. Raises BadInput, Unavailable."""
    if word is None:
        return None
    path = Path(word)
    if path.suffix not in SUFFIXES:
        raise BadInput("--plot", f'"{word}" ends in none of them', " or ".join(SUFFIXES))
    outfile.checked("--plot", path)
    require()
    return path


def require() -> None:
    """Raises Unavailable where matplotlib is not installed."""
    try:
        importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise not_installed("charts need matplotlib, which is not installed", "plot") from None


def write(
    path: Path,
    title: str,
    drawn: Sequence[Any],
    table: tuple[Sequence[str], Sequence[Row]],
    notes: Sequence[str],
) -> None:
    """The first figure as PNG; or a page of all, the table (head and rows) below the first. Raises
    BadInput where the file cannot be written.
    """
    if path.suffix == ".png":
        drawn[0].suptitle(title, color=PAGE["ink"][0])
        outfile.write("--plot", path, png(drawn[0]))
        return
    first, *others = (svg(one, title) for one in drawn)
    body = [f"<section>{first}", *(_table(*table) if table[0] else ()), "</section>"]
    body += [f"<section>{one}</section>" for one in others]
    outfile.write("--plot", path, document(title, body, notes))


def _table(head: Sequence[str], rows: Sequence[Row]) -> list[str]:
    lines = ["<table><thead><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head)]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        swatch = f"{swatch_svg(row.style, row.shape)} " if row.style else ""
        cells = "</td><td>".join(map(escape, row.cells))
        lines.append(f'<tr class="{row.style}"><td>{swatch}{cells}</td></tr>')
    return [*lines, "</tbody></table>"]


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


def frontier(path: Path, chart: Chart, notes: Sequence[str]) -> None:
    """Writes a chart with its plans and curves as a table. Raises BadInput."""
    rows = []
    for mark in chart.marks:
        name = BASELINE if mark.style == "base" else mark.name
        cells = (name, figures.seconds(mark.time_s), figures.joules(mark.energy_j))
        rows.append(Row(mark.style, mark.shape, cells))
    rows += [Row(curve.style, "line", (curve.name, "", "")) for curve in chart.curves]
    rows.append(Row("bound", "line", ("lower bound: nothing lies below", "", "")))
    drawn = [frontier_figure(chart, legend=path.suffix == ".png")]
    write(path, chart.title, drawn, (("", "iteration", "energy"), rows), notes)
