"""Draws a page from real answers, so that the docs show what a panel is for without a Grafana.

It is no screenshot and says so in the picture: layout and numbers are real, the looks are ours.
"""

import math
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from joulecut_dashboards.asked import Series, ask, filled
from joulecut_dashboards.grafana_json import document
from joulecut_dashboards.panels import WIDTH, Dashboard, Panel

COLUMN_PX, LINE_PX, GAP_PX, TOP_PX = 50, 28, 4, 48
RANGE_S, STEP_S = 60.0, 1.0  # a demo's life; a scrape a second
RATE_INTERVAL = "5s"  # four scrapes and a bit, as Grafana would choose
COLORS = ("#3274d9", "#e0752d", "#37872d", "#a352cc", "#c4162a", "#0a8f8f", "#8a6d00", "#666666")
LETTER_PX = 6  # of the legend's font, roughly
CAPTION = "preview drawn from the queries on a simulated cluster, not a Grafana screenshot"


def draw(server: str, dashboards: tuple[Dashboard, ...], folder: Path) -> Iterator[Path]:
    """One SVG a dashboard, named grafana-*.svg. Raises Unavailable."""
    now_s = time.time()
    for dashboard in dashboards:
        path = folder / f"grafana-{dashboard.uid.removeprefix('joulecut-')}.svg"
        path.write_text(_page(server, dashboard, now_s))
        yield path


def _page(server: str, dashboard: Dashboard, now_s: float) -> str:
    panels = iter(dashboard.panels)
    body: list[str] = []
    bottom = 0
    for placed in document(dashboard)["panels"]:
        box = placed["gridPos"]
        bottom = max(bottom, box["y"] + box["h"])
        x, y = box["x"] * COLUMN_PX, TOP_PX + box["y"] * LINE_PX
        if placed["type"] == "row":
            body.append(_text(x + 8, y + 19, placed["title"], size=14, bold=True))
            continue
        width, height = box["w"] * COLUMN_PX - GAP_PX, box["h"] * LINE_PX - GAP_PX
        inside = _panel(server, dashboard, next(panels), (width, height), now_s)
        body.append(
            f'<svg x="{x}" y="{y}" width="{width}" height="{height}">'
            f'<rect width="{width}" height="{height}" fill="#fff" stroke="#d8d8d8"/>{inside}</svg>'
        )
    size = f'width="{WIDTH * COLUMN_PX}" height="{TOP_PX + bottom * LINE_PX + 8}"'
    head = _text(8, 22, dashboard.title, size=17, bold=True) + _text(8, 40, CAPTION, size=11)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#f4f5f5"/>{head}\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _panel(
    server: str, dashboard: Dashboard, panel: Panel, size: tuple[int, int], now_s: float
) -> str:
    width, height = size
    exprs = [
        filled(q.expr, dashboard, rate_interval=RATE_INTERVAL, over=f"{RANGE_S:g}s")
        for q in panel.queries
    ]
    title = _text(8, 17, panel.title, size=12, bold=True)
    if panel.kind == "timeseries":
        times = {"start": f"{now_s - RANGE_S}", "end": f"{now_s}", "step": f"{STEP_S:g}"}
        lines = [
            (_legend(query.legend, series["metric"]), _points(series["values"]))
            for query, expr in zip(panel.queries, exprs, strict=True)
            for series in ask(server, "query_range", query=expr, **times)["result"]
        ]
        return title + _lines(panel, lines, size, now_s)
    found = [ask(server, "query", query=e, time=f"{now_s}")["result"] for e in exprs]
    if panel.kind == "table":
        return title + _table(panel, found, width, height)
    shown = found[0][0] if found[0] else None
    if shown is None:
        return title + _text(12, height - 24, "no data", size=13)
    word = _legend(panel.queries[0].legend, shown["metric"]) if panel.show_name else ""
    told = word or _number(float(shown["value"][1]), panel.unit)
    return title + _text(12, height - 24, told, size=28, color="#37872d")


def _points(values: list[list[Any]]) -> list[tuple[float, float]]:
    pairs = [(float(at), float(value)) for at, value in values]
    return [(at, value) for at, value in pairs if math.isfinite(value)]


def _lines(
    panel: Panel,
    lines: list[tuple[str, list[tuple[float, float]]]],
    size: tuple[int, int],
    now_s: float,
) -> str:
    width, height = size
    lines = [line for line in lines if line[1]]
    if not lines:
        return _text(width // 2 - 24, height // 2, "no data", size=12)
    if panel.stacked:
        lines = _stacked(lines)
    values = [value for _, points in lines for _, value in points]
    low, high = min(*values, 0.0) if panel.stacked else min(values), max(values)
    if high == low:
        low, high = low - (abs(low) or 1.0) * 0.1, high + (abs(high) or 1.0) * 0.1
    left, right, top, bottom = 62, width - 10, 28, height - 36
    drawn = [
        f'<line x1="{left}" x2="{right}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e4e4e4"/>'
        + _text(6, int(y) + 4, _number(value, panel.unit), size=10)
        for value in (low, (low + high) / 2, high)
        for y in [bottom - (value - low) / (high - low) * (bottom - top)]
    ]
    for n, (_, points) in enumerate(lines):
        spots = " ".join(
            f"{left + (1 - (now_s - at) / RANGE_S) * (right - left):.1f},"
            f"{bottom - (value - low) / (high - low) * (bottom - top):.1f}"
            for at, value in points
        )
        color = COLORS[n % len(COLORS)]
        drawn.append(
            f'<polyline points="{spots}" fill="none" stroke="{color}" stroke-width="1.5"/>'
        )
    names = [name for name, _ in lines]
    return "".join(drawn) + _names(names, left, right, height - 12)


def _names(names: list[str], x: int, right: int, y: int) -> str:
    """The legend, as far as the panel is wide."""
    drawn = []
    for n, name in enumerate(names):
        width = LETTER_PX * len(name) + 14
        more = f"and {len(names) - n} more"
        last = n == len(names) - 1
        if x + width + (0 if last else LETTER_PX * len(more)) > right:
            drawn.append(_text(x, y, more, size=10))
            break
        drawn.append(_text(x, y, name, size=10, color=COLORS[n % len(COLORS)]))
        x += width
    return "".join(drawn)


def _stacked(
    lines: list[tuple[str, list[tuple[float, float]]]],
) -> list[tuple[str, list[tuple[float, float]]]]:
    below: dict[float, float] = {}
    stacked = []
    for name, points in lines:
        for at, value in points:
            below[at] = below.get(at, 0.0) + value
        stacked.append((name, [(at, below[at]) for at, _ in points]))
    return stacked


def _table(panel: Panel, found: list[Series], width: int, height: int) -> str:
    """Rows of the query with most labels; the others join where their labels agree."""
    first = max(found, key=lambda rows: (bool(rows), len(rows[0]["metric"]) if rows else 0))
    heads = [*panel.by, *(title for title, _ in panel.columns if title)]
    step = (width - 16) // len(heads)
    drawn = [_text(8 + n * step, 40, h, size=11, bold=True) for n, h in enumerate(heads)]
    for line, row in enumerate(first[: (height - 48) // 18]):
        cells = [row["metric"].get(label, "") for label in panel.by]
        for (title, unit), rows in zip(panel.columns, found, strict=True):
            if title:
                match = next(
                    (r for r in rows if _agree(r["metric"], row["metric"], panel.by)), None
                )
                cells.append(_number(float(match["value"][1]), unit) if match else "")
        drawn += [
            _text(8 + n * step, 60 + 18 * line, cell[: step // 6], size=11)
            for n, cell in enumerate(cells)
        ]
    return "".join(drawn) if first else _text(width // 2 - 24, height // 2, "no data", size=12)


def _agree(one: dict[str, str], other: dict[str, str], by: tuple[str, ...]) -> bool:
    return all(one[label] == other.get(label) for label in by if label in one)


def _legend(pattern: str, labels: dict[str, str]) -> str:
    for label, value in labels.items():
        pattern = pattern.replace("{{" + label + "}}", value)
    return pattern or ", ".join(v for k, v in labels.items() if k != "__name__") or "value"


def _number(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value * 100:.2f} %"
    if unit == "hertz":
        return f"{value / 1e9:.3f} GHz"
    if unit == "bytes":
        return f"{value / 2**30:.1f} GiB"
    if unit in {"watt", "joule"} and abs(value) >= 1000:
        return f"{value / 1000:.2f} k{unit[0].upper()}"
    if unit == "s" and abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    sign = {"watt": "W", "joule": "J", "s": "s", "celsius": "°C", "kwatth": "kWh", "reqps": "/s"}
    return f"{value:.4g} {sign.get(unit, '')}".strip()


def _text(x: int, y: int, words: str, *, size: int, bold: bool = False, color: str = "#333") -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}"{weight} fill="{color}">{escape(words)}</text>'
