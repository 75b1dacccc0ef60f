"""Draws a dashboard from real answers, so that the docs show its panels without a Grafana.

Layout and numbers are real, the looks are ours; the caption in each picture says so.
"""

import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Any

from joulecut_wire.errors import Unavailable

WIDTH = 24  # Grafana's grid
COLUMN_PX, LINE_PX, GAP_PX, TOP_PX = 50, 28, 4, 48
RANGE_S, STEP_S = 60.0, 1.0  # a demo's life; a scrape a second
RATE_INTERVAL = "5s"  # four scrapes and a bit, as Grafana would choose
ANSWER_WAIT_S = 20.0
COLORS = ("#3274d9", "#e0752d", "#37872d", "#a352cc", "#c4162a", "#0a8f8f", "#8a6d00", "#666666")
LETTER_PX = 6  # of the legend's font, roughly
CAPTION = "preview drawn from the queries on a simulated cluster, not a Grafana screenshot"

Json = dict[str, Any]  # a dashboard, or one of its panels
Series = list[dict[str, Any]]


def ask(server: str, path: str, **fields: str) -> Any:
    """The `data` of one answer of a Prometheus. Raises Unavailable with the server's error."""
    url = f"{server}/api/v1/{path}?" + urllib.parse.urlencode(fields)
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_WAIT_S) as answer:  # noqa: S310 -- a URL from the command line
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        with error:
            reason = _reason(error)
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # plain text while it starts
            raise Unavailable(f"{server} does not answer: {error}") from None
        raise Unavailable(f"{server}: {reason}: {fields.get('query', path)}") from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"{server} does not answer: {error}") from None


def filled(expr: str, dashboard: Json, *, rate_interval: str, over: str) -> str:
    """`expr` as Grafana would send it: choices at All, text boxes at their default."""
    values = {"__rate_interval": rate_interval, "__range": over}
    for variable in dashboard["templating"]["list"]:
        values[variable["name"]] = variable.get("allValue", variable["query"])
    for name in sorted(values, key=len, reverse=True):
        expr = expr.replace(f"${name}", str(values[name]))
    return expr


def draw(server: str, dashboards: Iterable[Json], folder: Path) -> Iterator[Path]:
    """One SVG per dashboard, named grafana-*.svg. Raises Unavailable."""
    now_s = time.time()
    for dashboard in dashboards:
        path = folder / f"grafana-{dashboard['uid'].removeprefix('joulecut-')}.svg"
        path.write_text(_page(server, dashboard, now_s))
        yield path


def _reason(error: urllib.error.HTTPError) -> str:
    """The error of a Prometheus where it sends one, else the status's text."""
    try:
        return str(json.loads(error.read())["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return error.reason


def _page(server: str, dashboard: Json, now_s: float) -> str:
    body: list[str] = []
    bottom = 0
    for placed in dashboard["panels"]:
        box = placed["gridPos"]
        bottom = max(bottom, box["y"] + box["h"])
        x, y = box["x"] * COLUMN_PX, TOP_PX + box["y"] * LINE_PX
        if placed["type"] == "row":
            body.append(_text(x + 8, y + 19, placed["title"], size=14, bold=True))
            continue
        width, height = box["w"] * COLUMN_PX - GAP_PX, box["h"] * LINE_PX - GAP_PX
        inside = _panel(server, dashboard, placed, (width, height), now_s)
        body.append(
            f'<svg x="{x}" y="{y}" width="{width}" height="{height}">'
            f'<rect width="{width}" height="{height}" fill="#fff" stroke="#d8d8d8"/>{inside}</svg>'
        )
    size = f'width="{WIDTH * COLUMN_PX}" height="{TOP_PX + bottom * LINE_PX + 8}"'
    head = _text(8, 22, dashboard["title"], size=17, bold=True) + _text(8, 40, CAPTION, size=11)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#f4f5f5"/>{head}\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _panel(server: str, dashboard: Json, panel: Json, size: tuple[int, int], now_s: float) -> str:
    width, height = size
    exprs = [
        filled(q["expr"], dashboard, rate_interval=RATE_INTERVAL, over=f"{RANGE_S:g}s")
        for q in panel["targets"]
    ]
    title = _text(8, 17, panel["title"], size=12, bold=True)
    if panel["type"] == "timeseries":
        times = {"start": f"{now_s - RANGE_S}", "end": f"{now_s}", "step": f"{STEP_S:g}"}
        lines = [
            (_legend(query["legendFormat"], series["metric"]), _points(series["values"]))
            for query, expr in zip(panel["targets"], exprs, strict=True)
            for series in ask(server, "query_range", query=expr, **times)["result"]
        ]
        return title + _lines(panel, lines, size, now_s)
    found = [ask(server, "query", query=e, time=f"{now_s}")["result"] for e in exprs]
    if panel["type"] == "table":
        return title + _table(panel, found, width, height)
    shown = found[0][0] if found[0] else None
    if shown is None:
        return title + _text(12, height - 24, "no data", size=13)
    word = ""
    if panel["options"]["textMode"] == "name":
        word = _legend(panel["targets"][0]["legendFormat"], shown["metric"])
    text = word or _number(float(shown["value"][1]), _unit(panel))
    return title + _text(12, height - 24, text, size=28, color="#37872d")


def _points(values: list[list[Any]]) -> list[tuple[float, float]]:
    pairs = [(float(at), float(value)) for at, value in values]
    return [(at, value) for at, value in pairs if math.isfinite(value)]


def _lines(
    panel: Json,
    lines: list[tuple[str, list[tuple[float, float]]]],
    size: tuple[int, int],
    now_s: float,
) -> str:
    width, height = size
    lines = [line for line in lines if line[1]]
    if not lines:
        return _text(width // 2 - 24, height // 2, "no data", size=12)
    custom = panel["fieldConfig"]["defaults"]["custom"]
    stacked = custom["stacking"]["mode"] == "normal"
    if stacked:
        lines = _stacked(lines)
    values = [value for _, points in lines for _, value in points]
    low, high = min(*values, 0.0) if stacked else min(values), max(values)
    if high == low:
        low, high = low - (abs(low) or 1.0) * 0.1, high + (abs(high) or 1.0) * 0.1
    left, right, top, bottom = 62, width - 10, 28, height - 36
    drawn = [
        f'<line x1="{left}" x2="{right}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e4e4e4"/>'
        + _text(6, int(y) + 4, _number(value, _unit(panel)), size=10)
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


def _table(panel: Json, found: list[Series], width: int, height: int) -> str:
    """Rows of the query with most labels; the others join where their labels agree."""
    by, columns = _columns(panel)
    first = max(found, key=lambda rows: (bool(rows), len(rows[0]["metric"]) if rows else 0))
    heads = [*by, *(title for title, _ in columns if title)]
    step = (width - 16) // len(heads)
    drawn = [_text(8 + n * step, 40, h, size=11, bold=True) for n, h in enumerate(heads)]
    for line, row in enumerate(first[: (height - 48) // 18]):
        cells = [row["metric"].get(label, "") for label in by]
        for (title, unit), rows in zip(columns, found, strict=True):
            if title:
                match = next((r for r in rows if _agree(r["metric"], row["metric"], by)), None)
                cells.append(_number(float(match["value"][1]), unit) if match else "")
        drawn += [
            _text(8 + n * step, 60 + 18 * line, cell[: step // 6], size=11)
            for n, cell in enumerate(cells)
        ]
    return "".join(drawn) if first else _text(width // 2 - 24, height // 2, "no data", size=12)


def _agree(one: dict[str, str], other: dict[str, str], by: list[str]) -> bool:
    return all(one[label] == other.get(label) for label in by if label in one)


def _columns(panel: Json) -> tuple[list[str], list[tuple[str, str]]]:
    """Label columns of a table, and (title, unit) of the value column of each query."""
    organize = next(t["options"] for t in panel["transformations"] if t["id"] == "organize")
    titles: dict[str, str] = organize["renameByName"]
    by = [name for name in organize["indexByName"] if not name.startswith("Value")]
    units = {
        override["matcher"]["options"]: override["properties"][0]["value"]
        for override in panel["fieldConfig"]["overrides"]
    }
    values = [f"Value #{query['refId']}" for query in panel["targets"]]
    if len(values) == 1:
        values = ["Value"]  # Grafana numbers the columns only where there are several
    return by, [(titles.get(v, ""), units.get(titles.get(v, ""), "none")) for v in values]


def _unit(panel: Json) -> str:
    return str(panel["fieldConfig"]["defaults"]["unit"])


def _legend(pattern: str, labels: dict[str, str]) -> str:
    pattern = "" if pattern == "__auto" else pattern
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
    sign = {"watt": "W", "joule": "J", "s": "s", "celsius": "°C", "kwatth": "kWh", "ops": "/s"}
    return f"{value:.4g} {sign.get(unit, '')}".strip()


def _text(x: int, y: int, words: str, *, size: int, bold: bool = False, color: str = "#333") -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}"{weight} fill="{color}">{escape(words)}</text>'
