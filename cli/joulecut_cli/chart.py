"""Charts as SVG text: no library, no script, opens everywhere and prints well.

Energy against iteration time with everything that can be held against it, and bars for
savings. Colours follow the controller's page; a dark screen gets its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 880, 460
LEFT, RIGHT, TOP, BOTTOM = 66, 22, 46, 48
ROOM = 0.06  # of the span, left free around what is drawn


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through (seconds, joules); `style` is a CSS class of `page.STYLE`."""

    name: str
    points: tuple[tuple[float, float], ...]
    style: str


@dataclass(frozen=True, slots=True)
class Mark:
    """One plan. `shape` and `style` set it apart, `text` is shown on hovering."""

    name: str
    time_s: float
    energy_j: float
    style: str
    shape: str = "circle"  # circle | square | diamond | triangle | ring
    text: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """What to draw; `baseline_s` is where the scale of slowdowns starts."""

    title: str
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...]
    baseline_s: float
    bound: tuple[tuple[float, float], ...] = ()
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of each group: fractions, drawn in per cent; starred ones have a footnote."""

    name: str
    style: str
    values: tuple[float, ...]
    starred: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def frontier_svg(chart: Chart) -> str:
    """Energy against iteration time."""
    times, energies = view(chart)
    x = _Scale(*times, LEFT, WIDTH - RIGHT)
    y = _Scale(*energies, HEIGHT - BOTTOM, TOP)
    parts = [
        (
            f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{escape(chart.title, quote=True)}" xmlns="http://www.w3.org/2000/svg">'
        ),
        (
            f'<defs><clipPath id="inside"><rect x="{LEFT}" y="{TOP - 6}" '
            f'width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM + 6}"/>'
            "</clipPath></defs>"
        ),
        *_axes(chart, x, y),
        '<g clip-path="url(#inside)">',
        *_bound(chart, x, y),
        *(
            f'<path class="curve {curve.style}" d="{_path(curve.points, x, y)}">'
            f"<title>{escape(curve.name)}</title></path>"
            for curve in reversed(chart.curves)
        ),
        "</g>",
        *_deadline(chart, x),
        *(_mark(mark, x(mark.time_s), y(mark.energy_j)) for mark in chart.marks),
        "</svg>",
    ]
    return "\n".join(parts)


def view(chart: Chart) -> tuple[tuple[float, float], tuple[float, float]]:
    """What is shown, in seconds and joules: all marks, and the curves where they matter.

    The far end of a frontier is long and flat; with a deadline what matters is around it.
    """
    first = min([mark.time_s for mark in chart.marks] + [c.points[0][0] for c in chart.curves])
    last = max(mark.time_s for mark in chart.marks)
    if chart.deadline_s is not None:
        last = max(last, chart.deadline_s)
    end = max((c.points[-1][0] for c in chart.curves), default=last)
    near = end if chart.deadline_s is None else max(last + 0.4 * (last - first), 1.06 * first)
    right = max(last, min(end, near))
    room = max(ROOM * (right - first), 1e-3 * first)
    energies = [mark.energy_j for mark in chart.marks]
    for points in (*(curve.points for curve in chart.curves), chart.bound):
        energies += [energy for time, energy in points if time <= right + room]
    low, high = min(energies), max(energies)
    pad = max(ROOM * 1.5 * (high - low), 2e-3 * high)
    return (first - room, right + room), (low - pad, high + pad)


def bars_svg(title: str, groups: Sequence[str], bars: Sequence[Bar]) -> str:
    """Groups of bars side by side, one bar of each method in every group."""
    height, bottom = 300, 40
    high = max(0.01, *(value for bar in bars for value in bar.values))
    low = min(0.0, *(value for bar in bars for value in bar.values))
    rows = ticks(low, high * 1.12, 5)
    y = _Scale(low, high * 1.12, height - bottom, 34)
    parts = [
        (
            f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="{escape(title, quote=True)}" xmlns="http://www.w3.org/2000/svg">'
        ),
        f'<text class="label" x="6" y="14">{escape(title)}</text>',
    ]
    decimals = _decimals(rows, 100)
    parts += [_grid(y(value), f"{value * 100:.{decimals}f} %") for value in rows]
    span = (WIDTH - LEFT - RIGHT) / len(groups)
    wide = span * 0.9 / len(bars)
    for number, group in enumerate(groups):
        left = LEFT + span * (number + 0.05)
        for place, bar in enumerate(bars):
            value = bar.values[number]
            star = "*" if bar.starred and bar.starred[number] else ""
            top, foot = sorted((y(value), y(0.0)))
            at = left + place * wide
            parts.append(
                f'<rect class="bar {bar.style}" x="{at + 1.5:.1f}" y="{top:.1f}" '
                f'width="{wide - 3:.1f}" height="{max(0.8, foot - top):.1f}" rx="2.5">'
                f"<title>{escape(bar.name)}, {escape(group)}: {value * 100:.1f} %</title></rect>"
                f'<text class="value" x="{at + wide / 2:.1f}" y="{top - 5:.1f}" '
                f'text-anchor="middle">{value * 100:.1f}{star}</text>'
            )
        parts.append(
            f'<text class="tick" x="{left + span * 0.45:.1f}" y="{height - bottom + 20}" '
            f'text-anchor="middle">{escape(group)}</text>'
        )
    parts.append(
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(0):.1f}" y2="{y(0):.1f}"/>'
    )
    return "\n".join([*parts, "</svg>"])


def swatch_svg(style: str, shape: str) -> str:
    """The mark or line of a legend's row."""
    inside = (
        f'<path class="curve {style}" d="M1 8H21"/>'
        if shape == "line"
        else _mark(Mark("", 0, 0, style, shape), 11, 8)
    )
    return f'<svg class="swatch" viewBox="0 0 22 16" aria-hidden="true">{inside}</svg>'


def ticks(low: float, high: float, about: float) -> list[float]:
    """Round numbers within [low, high], roughly `about` of them."""
    raw = (high - low) / max(1.0, about)
    size = 10.0 ** math.floor(math.log10(raw))
    step = size * next(s for s in (1, 2, 2.5, 5, 10) if s * size >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _decimals(values: Sequence[float], scale: float = 1.0) -> int:
    step = (values[1] - values[0]) * scale if len(values) > 1 else 1.0
    return next(d for d in range(10) if abs(step * 10**d - round(step * 10**d)) < 1e-6 or d == 9)


def _axes(chart: Chart, x: _Scale, y: _Scale) -> list[str]:
    unit, energy = (1000.0, "kJ") if y.high >= 2000 else (1.0, "J")
    size, time = (1.0, "s") if x.high >= 1 else (1e-3, "ms")
    bottom = HEIGHT - BOTTOM
    rows = ticks(y.low / unit, y.high / unit, 6)
    parts = [_grid(y(v * unit), f"{v:.{_decimals(rows)}f}") for v in rows]
    columns = ticks(x.low / size, x.high / size, 8)
    for value in columns:
        at = x(value * size)
        parts.append(
            f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
            f'<text class="tick" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">'
            f"{value:.{_decimals(columns)}f}</text>"
        )
    slow = ticks((x.low / chart.baseline_s - 1) * 100, (x.high / chart.baseline_s - 1) * 100, 8)
    for value in slow:
        at = x(chart.baseline_s * (1 + value / 100))
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{TOP - 10}" text-anchor="middle">'
            f"{value + 0.0:+.{_decimals(slow)}f} %</text>"
        )
    return [
        *parts,
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>',
        (
            f'<text class="label" x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">'
            f"iteration time, {time}</text>"
        ),
        f'<text class="label" x="6" y="14">energy per iteration, {energy}</text>',
        (
            f'<text class="label" x="{WIDTH - RIGHT}" y="14" text-anchor="end">'
            "slower than the baseline</text>"
        ),
    ]


def _grid(at: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text class="tick" x="{LEFT - 9}" y="{at + 4:.1f}" text-anchor="end">{text}</text>'
    )


def _bound(chart: Chart, x: _Scale, y: _Scale) -> list[str]:
    if not chart.bound:
        return []
    line = _path(chart.bound, x, y)
    floor = HEIGHT - BOTTOM
    first, last = x(chart.bound[0][0]), x(chart.bound[-1][0])
    return [
        f'<path class="impossible" d="{line}L{last:.1f} {floor}L{first:.1f} {floor}Z"/>',
        (
            f'<path class="curve bound" d="{line}"><title>lower bound: nothing lies below</title>'
            "</path>"
        ),
    ]


def _deadline(chart: Chart, x: _Scale) -> list[str]:
    if chart.deadline_s is None:
        return []
    at, right, bottom = x(chart.deadline_s), WIDTH - RIGHT, HEIGHT - BOTTOM
    return [
        (
            f'<rect class="late" x="{at:.1f}" y="{TOP}" width="{max(0.0, right - at):.1f}" '
            f'height="{bottom - TOP}"/>'
        ),
        f'<line class="deadline" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}"/>',
        f'<text class="deadline-name" x="{at + 6:.1f}" y="{bottom - 8}">deadline</text>',
    ]


def _path(points: Sequence[tuple[float, float]], x: _Scale, y: _Scale) -> str:
    return "M" + "L".join(f"{x(time):.1f} {y(energy):.1f}" for time, energy in points)


def _mark(mark: Mark, x: float, y: float) -> str:
    shapes = {
        "circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5"/>',
        "ring": f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="6"/>',
        "square": f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" rx="1.5"/>',
        "diamond": f'<path d="M{x:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7Z"/>',
        "triangle": f'<path d="M{x:.1f} {y - 6.5:.1f}l6.5 11.5h-13Z"/>',
    }
    text = f"<title>{escape(mark.text or mark.name)}</title>" if mark.name else ""
    return f'<g class="mark {mark.style}">{shapes[mark.shape]}{text}</g>'
