"""Small charts of a study as SVG text: lines, points and stacked areas on one pair of axes.

As the other charts of ours: no library, no script, and it prints. Colours are classes that
the page defines, so that a dark screen gets its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from joulecut_cli.chart import ticks

WIDTH, HEIGHT = 430, 300
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 20, 40
ROOM = 0.05  # of the span, left free around what is drawn
HEADROOM = 0.04  # of the span, above stacked areas
DOTS_MAX = 1500  # of a scatter: more only make the page heavy
POINTS_MAX = 64  # of a curve whose points are shown: more run together

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """A curve, or dots where `dots` is set; `colour` counts the page's colours from 0."""

    name: str
    colour: int
    points: tuple[Point, ...]
    dots: bool = False
    marks: tuple[tuple[Point, Literal["circle", "ring"], str], ...] = ()


@dataclass(frozen=True, slots=True)
class Area:
    """A band between two curves over the same x: (x, from, to)."""

    name: str
    colour: int
    points: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart. `log` draws both axes in logarithms; `zero` keeps 0 on the vertical one.

    `x_ticks`, where given, are the only values named on the horizontal axis.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...] = ()
    areas: tuple[Area, ...] = ()
    log: bool = False
    zero: bool = False
    x_ticks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        at = math.log10(value) if self.log else value
        return self.start + (at - self.low) / (self.high - self.low) * (self.end - self.start)

    def marks(self, about: int) -> list[tuple[float, str]]:
        """Where ticks are, and what they say."""
        if self.log:
            first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            step = max(1, (last - first) // about + 1)
            decades = [(k, 1) for k in range(first, last + 1, step)]
            if len(decades) < 3:  # then also at 2 and 5 of each
                decades = [(k, m) for k in range(first - 1, last + 1) for m in (1, 2, 5)]
            named = [(m * math.pow(10.0, k), _power(k, m)) for k, m in decades]
            low, high = math.pow(10.0, self.low), math.pow(10.0, self.high)
            return [(value, text) for value, text in named if low <= value <= high]
        found = ticks(self.low, self.high, about)
        size = found[1] - found[0] if len(found) > 1 else 1.0
        decimals = next(d for d in range(10) if abs(size * 10**d - round(size * 10**d)) < 1e-6)
        return [(value, f"{value + 0.0:.{decimals}f}") for value in found]


def panel_svg(panel: Panel) -> str:
    """The chart, with its legend below the title."""
    x, y = _axes(panel)
    body = [_area(area, x, y) for area in panel.areas]
    for line in panel.lines:
        body += _dots(line, x, y) if line.dots else [_curve(line, x, y)]
    for line in panel.lines:
        body += [
            _mark(line.colour, x(px), y(py), shape, text) for (px, py), shape, text in line.marks
        ]
    return "\n".join(
        [
            f"<figure><figcaption>{escape(panel.title)}</figcaption>{_legend(panel)}",
            (
                f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
                f'aria-label="{escape(panel.title, quote=True)}" '
                'xmlns="http://www.w3.org/2000/svg">'
            ),
            *_frame(panel, x, y),
            *body,
            "</svg></figure>",
        ]
    )


def _axes(panel: Panel) -> tuple[_Axis, _Axis]:
    xs = [px for line in panel.lines for px, _ in line.points]
    xs += [px for area in panel.areas for px, _, _ in area.points]
    ys = [py for line in panel.lines for _, py in line.points]
    ys += [to for area in panel.areas for _, _, to in area.points]
    if panel.zero:
        ys.append(0.0)
    return (
        _axis(xs, LEFT, WIDTH - RIGHT, log=panel.log, room=ROOM),
        _axis(ys, HEIGHT - BOTTOM, TOP, log=panel.log, room=0.0 if panel.areas else ROOM),
    )


def _axis(values: Sequence[float], start: float, end: float, *, log: bool, room: float) -> _Axis:
    low, high = min(values), max(values)
    if log:
        low, high = math.log10(low), math.log10(high)
    span = (high - low) or max(abs(high), 1e-9)  # one value alone still needs an axis
    pad = span * (room or 0.0)
    if high == low:
        pad = span * 0.5
    return _Axis(low - pad, high + pad + (HEADROOM * span if not room else 0.0), start, end, log)


def _frame(panel: Panel, x: _Axis, y: _Axis) -> list[str]:
    bottom = HEIGHT - BOTTOM
    parts = []
    for value, text in y.marks(5):
        at = y(value)
        kind = "axis" if float(value) == 0.0 else "grid"
        parts.append(
            f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>'
        )
    for value, text in [(float(v), str(v)) for v in panel.x_ticks] or x.marks(6):
        at = x(value)
        parts.append(
            f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
            f'<text class="tick" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>'
        )
    return [
        *parts,
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>',
        (
            f'<text class="label" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">'
            f"{escape(panel.x_label)}</text>"
        ),
        f'<text class="label" x="4" y="12">{escape(panel.y_label)}</text>',
    ]


def _legend(panel: Panel) -> str:
    drawn: tuple[Line | Area, ...] = (*panel.lines, *panel.areas)
    names = [(one.name, one.colour) for one in drawn if one.name]
    if not names:
        return ""
    words = (f'<span class="c{colour}">{escape(name)}</span>' for name, colour in names)
    return f'<p class="legend">{"".join(words)}</p>'


def _curve(line: Line, x: _Axis, y: _Axis) -> str:
    """The line, and a point for everything it was drawn through."""
    places = [(x(px), y(py)) for px, py in line.points]
    path = "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in places)
    named = f"<title>{escape(line.name)}</title>"
    points = places if len(places) <= POINTS_MAX else []
    return f'<path class="line c{line.colour}" d="{path}">{named}</path>' + "".join(
        f'<circle class="point c{line.colour}" cx="{px:.1f}" cy="{py:.1f}" r="1.9"/>'
        for px, py in points
    )


def _dots(line: Line, x: _Axis, y: _Axis) -> list[str]:
    step = max(1, -(-len(line.points) // DOTS_MAX))
    return [
        f'<circle class="dot c{line.colour}" cx="{x(px):.1f}" cy="{y(py):.1f}" r="1.6"/>'
        for px, py in line.points[::step]
    ]


def _area(area: Area, x: _Axis, y: _Axis) -> str:
    upper = [f"{x(px):.1f} {y(to):.1f}" for px, _, to in area.points]
    lower = [f"{x(px):.1f} {y(start):.1f}" for px, start, _ in reversed(area.points)]
    path = "M" + "L".join(upper + lower) + "Z"
    return f'<path class="area c{area.colour}" d="{path}"><title>{escape(area.name)}</title></path>'


def _mark(colour: int, x: float, y: float, shape: str, text: str) -> str:
    ring = " ring" if shape == "ring" else ""
    return (
        f'<circle class="mark{ring} c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
        f"<title>{escape(text)}</title></circle>"
    )


def _power(exponent: int, times: int = 1) -> str:
    """So many times a power of ten, as an engineer writes it."""
    for size, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k"), (0, ""), (-3, "m"), (-6, "u")):
        if exponent >= size:
            return f"{times * 10 ** (exponent - size)}{prefix}"
    return f"{times}e{exponent}"
