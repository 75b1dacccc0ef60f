"""Files of --plot: an HTML page, where the legend is a table, or a PNG."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from joulecut_cli import figures, outfile
from joulecut_cli.page import document
from joulecut_engine.chart import Chart, frontier_figure, swatch_svg
from joulecut_engine.panel import PAGE, Panel, figure, png, svg
from joulecut_wire.errors import BadInput, not_installed

SUFFIXES = (".html", ".png")
BASELINE = "baseline, every operation at its fastest"
POINTS = 40  # of a frontier behind one plan: smooth to the eye

_RULES = """
.swatch{width:22px;height:16px;vertical-align:-3px}tr.ours td{font-weight:600}
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
    first, *more = (svg(one, title) for one in drawn)
    body = [f"<section>{first}", *(_table(*table) if table[0] else ()), "</section>"]
    body += [f"<section>{one}</section>" for one in more]
    about, *others = (f'<p class="note">{escape(note)}</p>' for note in notes)
    outfile.write("--plot", path, document(title, [about, *body, *others], rules=_RULES))


def _table(head: Sequence[str], rows: Sequence[Row]) -> list[str]:
    lines = ["<table><thead><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head)]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        swatch = f"{swatch_svg(row.style, row.shape)} " if row.style else ""
        cells = "</td><td>".join(map(escape, row.cells))
        lines.append(f'<tr class="{row.style}"><td>{swatch}{cells}</td></tr>')
    return [*lines, "</tbody></table>"]


def frontier(path: Path, chart: Chart, notes: Sequence[str], below: Sequence[Panel] = ()) -> None:
    """Writes a chart with its plans and curves as a table, and panels below it in a page. Raises
    BadInput.
    """
    rows = []
    for mark in chart.marks:
        name = BASELINE if mark.style == "base" else mark.name
        cells = (name, figures.seconds(mark.at[0]), figures.joules(mark.at[1]))
        rows.append(Row(mark.style, mark.shape, cells))
    rows += [Row(curve.style, "line", (curve.name, "", "")) for curve in chart.curves]
    rows.append(Row("bound", "line", ("lower bound: nothing lies below", "", "")))
    drawn = [frontier_figure(chart, legend=path.suffix == ".png")]
    drawn += [figure(below)] if below and path.suffix == ".html" else []
    write(path, chart.title, drawn, (("", "iteration", "energy"), rows), notes)
