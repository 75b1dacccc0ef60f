"""Figures of frontiers and comparisons, drawn by matplotlib: a PNG, or SVG inside a page.

One figure serves both, and notebooks. In a page its colours become CSS variables, so that a dark
screen gets its own, and its size follows the page. matplotlib takes half a second to load and 80 MB
on disk: it is imported when a chart is drawn. Where it is missing, ModuleNotFoundError is raised.
"""

import importlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulecut_engine.graph.pipeline import Granularity
    from joulecut_engine.optimize.problem import Solution

WIDTH, HEIGHT = 880, 460  # of a frontier, in CSS pixels
APART = 12  # CSS pixels between marks: a mark is 10 wide
ROOM = 0.06  # of the span, left free around the data
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif"
MARKERS = {"circle": "o", "ring": "o", "square": "s", "diamond": "D", "triangle": "^"}

# Light and dark shade of every colour; `page` declares them, figures use the light ones.
PAGE = {
    "paper": ("#f6f6f3", "#131518"),
    "card": ("#ffffff", "#1b1e22"),
    "ink": ("#1b1f23", "#e8eaed"),
    "muted": ("#5d656e", "#9aa3ad"),
    "line": ("#e3e3dd", "#2d3238"),
    "due": ("#b4530b", "#f0a35e"),
}
SERIES = {
    "ours": ("#4a55c4", "#98a2ff"),
    "edge": ("#8a63d2", "#bb9bf5"),
    "changes": ("#b3478f", "#e58cc4"),
    "gpu": ("#0b7a68", "#46c9ae"),
    "perseus": ("#d2691e", "#f0a35e"),
    "envpipe": ("#c2417c", "#f08bb8"),
    "stage": ("#2f7fb8", "#74b8e6"),
    "cap": ("#a08310", "#dcc04a"),
    "one": ("#7a5c46", "#c4a184"),
    "base": ("#6c7480", "#98a1ac"),
}
# The style of each granularity, the finest last.
STYLES: "dict[Granularity, str]" = {
    "gpu": "gpu",
    "edge": "edge",
    "changes": "changes",
    "computation": "ours",
}
_RC = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "joulecut",  # equal charts are equal bytes
    "text.parse_math": False,  # a job may be named $x$
    "font.size": 11.5,
    "axes.titlesize": 11.5,
    "axes.labelsize": 11.5,
    "xtick.labelsize": 11.5,
    "ytick.labelsize": 11.5,
    "axes.edgecolor": "#5d656e",
    "axes.labelcolor": "#5d656e",
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e3e3dd",
    "text.color": "#5d656e",
    "xtick.color": "#5d656e",
    "ytick.color": "#5d656e",
    "ytick.major.size": 0,
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through (seconds, joules) in a colour of `SERIES`."""

    name: str
    points: tuple[tuple[float, float], ...]
    style: str


@dataclass(frozen=True, slots=True)
class Mark:
    """One plan: a colour of `SERIES` and a shape of `MARKERS`."""

    name: str
    time_s: float
    energy_j: float
    style: str
    shape: str = "circle"


@dataclass(frozen=True, slots=True)
class Chart:
    """Energy against iteration time; `baseline_s` is where the scale of slowdowns starts."""

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


@contextmanager
def style() -> Iterator[None]:
    """The house style, for everything drawn or saved within."""
    with importlib.import_module("matplotlib").rc_context(_RC), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a name with letters the font has not
        yield


def figure(width: float, height: float) -> tuple[Any, Any]:
    """An empty figure of so many CSS pixels and its axes; to be called within `style`."""
    drawn = importlib.import_module("matplotlib.figure").Figure(
        (width / 72, height / 72), dpi=72, layout="constrained"
    )
    return drawn, drawn.subplots()


def svg(drawn: Any, label: str, series: Mapping[str, tuple[str, str]] = SERIES) -> str:
    """The figure as inline SVG: no size, colours as CSS variables, the page's font."""
    out = io.StringIO()
    with style():
        drawn.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    body = text[text.index("<defs>") :].rstrip()
    viewbox = re.search(r'viewBox="[^"]*"', text)
    assert viewbox is not None
    names = {light: name for name, (light, _) in {**PAGE, **series}.items()}
    body = re.sub(r"(font: [^;\"]*?[\d.]+px) [^;\"]+", rf"\1 {FONT}", body)
    body = re.sub(
        r"#[0-9a-f]{6}\b", lambda m: f"var(--{names[m[0]]})" if m[0] in names else m[0], body
    ).replace("xlink:href", "href")
    name = escape(label, quote=True)
    return (
        f'<svg class="chart" {viewbox[0]} role="img" aria-label="{name}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}'
    )


def png(drawn: Any) -> bytes:
    """The figure as a picture on white."""
    out = io.BytesIO()
    with style():
        drawn.savefig(out, format="png", dpi=160)
    return out.getvalue()


def palette(series: Mapping[str, tuple[str, str]] = SERIES) -> str:
    """CSS: the variables of the page and of a series, light and dark."""

    def scheme(which: int) -> str:
        colours = {**PAGE, **series}
        return "".join(f"--{name}:{pair[which]};" for name, pair in colours.items())

    return (
        f":root{{color-scheme:light dark;{scheme(0)}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{scheme(1)}}}}}"
    )


def of_frontiers(
    title: str,
    fastest: "Solution",
    frontiers: "Sequence[Sequence[Solution]]",
    plan: "Solution | None" = None,
    deadline_s: float | None = None,
) -> Chart:
    """The chart of one or more granularities' frontiers, with a plan on them or without.

    The bound shown is that of the finest: nothing of any granularity lies below it.
    """
    marks = [_marked("baseline", fastest, "base", "circle")]
    if plan is not None:
        marks.append(_marked("plan", plan, STYLES[plan.granularity], "ring"))
    finest = max(frontiers, key=lambda found: [*STYLES].index(found[0].granularity))
    return Chart(
        title=title,
        curves=tuple(_curve(found) for found in frontiers),
        marks=tuple(marks),
        baseline_s=fastest.iteration_time_s,
        bound=tuple((s.iteration_time_s, s.lower_bound_j) for s in finest),
        deadline_s=deadline_s,
    )


def _marked(name: str, solution: "Solution", style: str, shape: str) -> Mark:
    return Mark(name, solution.iteration_time_s, solution.energy_j, style, shape)


def _curve(found: "Sequence[Solution]") -> Curve:
    points = tuple((s.iteration_time_s, s.energy_j) for s in found)
    granularity = found[0].granularity
    return Curve(f"frontier, granularity {granularity}", points, STYLES[granularity])


def frontier_figure(chart: Chart, *, legend: bool = False) -> Any:
    """Energy against iteration time, with the bound, the deadline and every plan."""
    with style():
        return _frontier(chart, legend=legend)


def _frontier(chart: Chart, *, legend: bool) -> Any:
    moved = importlib.import_module("matplotlib.transforms").ScaledTranslation
    drawn, axes = figure(WIDTH, HEIGHT)
    (left, right), (low, high) = view(chart)
    joules, energy = (1e3, "kJ") if high >= 2000 else (1.0, "J")
    seconds, time = (1.0, "s") if right >= 1 else (1e-3, "ms")

    def scaled(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
        return [t / seconds for t, _ in points], [e / joules for _, e in points]

    if chart.bound:
        times, bound = scaled(chart.bound)
        muted = PAGE["muted"][0]
        axes.plot(times, bound, ls=":", color=muted, lw=1.3, label="lower bound")
        axes.fill_between(times, bound, low / joules, color=muted, alpha=0.07, lw=0)
    for curve in reversed(chart.curves):
        axes.plot(*scaled(curve.points), color=SERIES[curve.style][0], lw=2.2, label=curve.name)
    if chart.deadline_s is not None:
        due, at = PAGE["due"][0], chart.deadline_s / seconds
        axes.axvspan(at, max(at, right / seconds), color=due, alpha=0.06, lw=0)
        axes.axvline(at, color=due, ls=(0, (5, 3)), lw=1.5, gid="deadline")
        axes.annotate("deadline", (at, 0.02), (6, 0), color=due, fontsize=12,
                      xycoords=("data", "axes fraction"), textcoords="offset points")  # fmt: skip
    for marks in together(chart):
        for place, mark in enumerate(marks):
            colour, ring = SERIES[mark.style][0], mark.shape == "ring"
            # Side by side: behind each other only the last would be seen. None is moved to the
            # right, where a plan on time would look late.
            inches = (place - len(marks) + 1) * APART / 72
            beside = moved(inches, 0, drawn.dpi_scale_trans)
            axes.plot(
                [mark.time_s / seconds], [mark.energy_j / joules], MARKERS[mark.shape], ms=10,
                mfc="none" if ring else colour, mec=colour if ring else PAGE["card"][0],
                mew=2.4 if ring else 1.6, ls="", label=mark.name, gid=f"mark-{mark.name}", zorder=3,
                clip_on=False, transform=axes.transData + beside,
            )  # fmt: skip
        if len(marks) > 2:
            place_of = (marks[0].time_s / seconds, marks[0].energy_j / joules)
            axes.annotate(f"{len(marks)} side by side", place_of, (0, 10), ha="center", fontsize=10,
                          textcoords="offset points", annotation_clip=False)  # fmt: skip
    axes.set(xlim=(left / seconds, right / seconds), ylim=(low / joules, high / joules))
    axes.set_xlabel(f"iteration time, {time}", loc="right")
    axes.set_title(f"energy per iteration, {energy}", loc="left")
    slower = axes.secondary_xaxis(
        "top",
        functions=(
            lambda t: (t * seconds / chart.baseline_s - 1) * 100,
            lambda p: chart.baseline_s * (1 + p / 100) / seconds,
        ),
    )
    slower.xaxis.set_major_formatter(lambda value, _: f"{value + 0.0:+g} %")
    slower.tick_params(length=0)
    slower.spines["top"].set_visible(False)
    slower.set_xlabel("slower than the baseline", loc="right")
    if legend:
        axes.legend()
    return drawn


def bars_figure(title: str, groups: Sequence[str], bars: Sequence[Bar]) -> Any:
    """Groups of bars side by side, one bar of each method in every group."""
    with style():
        return _bars(title, groups, bars)


def _bars(title: str, groups: Sequence[str], bars: Sequence[Bar]) -> Any:
    drawn, axes = figure(WIDTH, 300)
    wide = 0.9 / len(bars)
    for place, bar in enumerate(bars):
        at = [number + (place - len(bars) / 2 + 0.5) * wide for number in range(len(groups))]
        heights = [value * 100 for value in bar.values]
        stars = bar.starred or (False,) * len(heights)
        drawn_bars = axes.bar(at, heights, wide * 0.92, color=SERIES[bar.style][0], label=bar.name)
        texts = [f"{h:.1f}{'*' * star}" for h, star in zip(heights, stars, strict=True)]
        axes.bar_label(drawn_bars, texts, padding=2, fontsize=9.5)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.set_title(title, loc="left")
    axes.axhline(0, color=PAGE["muted"][0], lw=0.8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    return drawn


def together(chart: Chart) -> list[list[Mark]]:
    """The marks in groups: those of a group would hide each other at one place of the figure."""
    (left, right), (low, high) = view(chart)
    wide, tall = APART / WIDTH * (right - left), APART / HEIGHT * (high - low)
    groups: list[list[Mark]] = []
    for mark in chart.marks:
        near = (
            group for group in groups
            if abs(group[0].time_s - mark.time_s) < wide
            and abs(group[0].energy_j - mark.energy_j) < tall
        )  # fmt: skip
        group = next(near, None)
        if group is None:
            groups.append([mark])
        else:
            group.append(mark)
    return groups


def view(chart: Chart) -> tuple[tuple[float, float], tuple[float, float]]:
    """The shown range in seconds and joules: all marks, and the curves near them.

    The far end of a frontier is long and flat; with a deadline, the range ends soon after it.
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


def swatch_svg(style: str, shape: str) -> str:
    """The line or mark of a legend's row."""
    bound = style == "bound"
    colour, dashes = (
        "var(--muted)" if bound else f"var(--{style})",
        ' stroke-dasharray="2 3"' * bound,
    )
    paths = {
        "line": f'<path d="M1 8H21" fill="none" stroke="{colour}" stroke-width="2.2"{dashes}/>',
        "ring": f'<circle cx="11" cy="8" r="5" fill="none" stroke="{colour}" stroke-width="2.4"/>',
        "circle": f'<circle cx="11" cy="8" r="5.5" fill="{colour}"/>',
        "square": f'<rect x="6" y="3" width="10" height="10" rx="1.5" fill="{colour}"/>',
        "diamond": f'<path d="M11 1l7 7l-7 7l-7 -7Z" fill="{colour}"/>',
        "triangle": f'<path d="M11 2l6.5 11.5h-13Z" fill="{colour}"/>',
    }
    return f'<svg class="swatch" viewBox="0 0 22 16" aria-hidden="true">{paths[shape]}</svg>'
