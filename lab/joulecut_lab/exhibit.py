"""One figure or table of a page as plain data, and pages of a talk with their numbers as CSV."""

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from joulecut_cli import outfile
from joulecut_cli.page import document
from joulecut_engine.panel import WIDTH, Line, Mark, Panel, html
from joulecut_wire.errors import BadInput

GAP = 10  # CSS pixels: half the space between two figures
SMALL = 240  # height of a third of the page
SIMULATED, PREDICTED, PUBLISHED = "simulated", "predicted", "published"
COMPARED = ("", "ours", "published", "difference")


@dataclass(frozen=True, slots=True)
class Compared:
    """A number of ours beside the talk's, which is None where its digits are lost. The difference
    of per cents is in points, of other units in per cent.
    """

    what: str
    ours: float
    published: float | None = None
    unit: str = ""
    note: str = ""

    @property
    def difference(self) -> str:
        if self.published is None:
            return ""
        if self.unit == "%":
            return f"{self.ours - self.published:+.1f} points"
        return f"{(self.ours / self.published - 1.0) * 100:+.1f} %" if self.published else ""

    def cells(self) -> tuple[str, str, str, str, str]:
        text = "" if self.published is None else f"{self.published:,.4g} {self.unit}".strip()
        return self.what, f"{self.ours:,.4g} {self.unit}".strip(), text, self.difference, self.note


@dataclass(frozen=True, slots=True)
class Exhibit:
    """`basis` says where our numbers come from; `source` where the published ones do. Panels stand
    in rows of `columns`; `rows` has a head first.
    """

    title: str
    basis: str
    text: str = ""
    source: str = ""
    panels: Sequence[Panel] = ()
    columns: int = 2
    compared: Sequence[Compared] = ()
    rows: Sequence[Sequence[str]] = field(default=())

    def html(self) -> str:
        badge = f'<span class="badge">{escape(self.basis)}</span>'
        parts = [f"<section><h2>{escape(self.title)} {badge}</h2>"]
        parts += [f"<p>{escape(line)}</p>" for line in self.text.splitlines()]
        width = WIDTH // self.columns - (GAP if self.columns > 1 else 0)
        height = SMALL if self.columns > 2 else None
        drawn = "".join(html(one, width=width, height=height) for one in self.panels)
        if drawn:
            grid = f"grid-template-columns:repeat({self.columns},1fr)"
            parts.append(f'<div class="charts" style="{grid}">{drawn}</div>')
        if self.compared:
            cells = [one.cells() for one in self.compared]
            noted = any(row[-1] for row in cells)
            head = (*COMPARED, "")[: 5 if noted else 4]
            parts.append(_table(head, [row[: len(head)] for row in cells], texts={4}))
        if self.rows:
            parts.append(_table(self.rows[0], self.rows[1:]))
        if self.source:
            parts.append(f'<p class="note">Published: {escape(self.source)}</p>')
        return "".join([*parts, "</section>"])

    def numbers(self) -> Iterator[tuple[object, ...]]:
        """Lines of the CSV: kind, panel, name, x, y, published."""
        for one in self.compared:
            yield "compared", "", one.what, one.unit, one.ours, one.published
        for panel in self.panels:
            for item in panel.items:
                if isinstance(item, Line):
                    for x, y in item.points:
                        yield "line", panel.title, item.name, x, y, ""
                elif isinstance(item, Mark):
                    yield "mark", panel.title, item.label or item.name, *item.at, ""
                elif hasattr(item, "values"):
                    for group, value in zip(panel.groups, item.values, strict=True):
                        yield "bar", panel.title, item.name, group, value, ""
        for row in self.rows[1:]:
            yield "row", "", *row[:1], " | ".join(row[1:]), "", ""


def talk(out: Path, name: str, title: str, exhibits: Sequence[Exhibit]) -> Path:
    """The page `name` of a talk, its numbers as CSV beside it. Raises BadInput."""
    about = (
        "Published numbers are those of the talk; ours are computed here, nothing is traced "
        "from a slide. Simulated: by the simulated card. Predicted: by the model."
    )
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("exhibit", "kind", "panel", "name", "x", "y", "published"))
    for one in exhibits:
        lines.writerows((one.title, *line) for line in one.numbers())
    kept(out, f"{name}.csv", text.getvalue())
    body = [f"<p>{escape(about)}</p>", *(one.html() for one in exhibits)]
    return kept(out, f"{name}.html", document(title, body))


def kept(out: Path, name: str, content: str) -> Path:
    """A file in the folder of `--out`, which is made where it is missing. Raises BadInput."""
    try:
        out.mkdir(exist_ok=True)
    except OSError as error:
        raise BadInput("--out", f"{out}: {error.strerror}", "a folder that can be made") from None
    outfile.write("--out", out / name, content)
    return out / name


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: Collection[int] = ()) -> str:
    """Numbers to the right; columns of `texts`, and the first, to the left."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=text' if place in texts else ''}>{escape(cell)}</{tag}>"
            for place, cell in enumerate(row)
        )

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{lines}</tbody></table>"
