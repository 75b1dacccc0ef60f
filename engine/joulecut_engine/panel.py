"""Figures of the whole product: one palette, one order of parts, one style.

A `Panel` states what is drawn as plain data, in the units of its axes: tests and JSON read it, and
matplotlib draws it as a PNG, for notebooks, or as SVG inside a page. There its colours become CSS
variables, so that a dark screen gets its own, and its size follows the page. matplotlib takes half
a second to load and 80 MB on disk: it is imported when a panel is drawn. Where it is missing,
ModuleNotFoundError is raised.
"""

import importlib
import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from itertools import pairwise, product
from typing import Any, Literal

WIDTH, HEIGHT = 880, 460  # CSS pixels: a figure as wide as its page
HALF, LOW = 430, 300  # two of them side by side
APART = 12  # CSS pixels between marks: a mark is 10 wide
ROW, ROWS_ROOM = 26, 96  # a bar that lies on its side, and what title, axis and legend take
LETTER = 6.4, 14.0  # width and height of a letter of a label
DOTS_MAX = 1500  # of a scatter: more only make the page heavy
LABELLED_MAX = 400  # points of a curve that labels keep clear of
POINTS_MAX = 64  # of a curve whose points are shown: more run together
DECADES_NAMED = 3  # of a logarithmic axis: with fewer, 2 and 5 of each are named as well
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif"
YEAR = "year"  # label of an axis of whole numbers
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
    "sky": ("#6cb8dd", "#a5d8f0"),
    "sand": ("#c9b37e", "#e6d7b0"),
}
# Lines that have no colour of their own, in this order: the first eight differ for colour-blind
# readers as those of Okabe and Ito do.
LINES = ("stage", "perseus", "gpu", "envpipe", "cap", "sky", "base", "one", "ours", "edge")
# Parts of time, energy and memory in the order in which every figure and table has them: work,
# communication, waiting. The colours of kinds of operations are those of the trace's names.
PARTS = {
    "forward": "gpu", "backward": "perseus", "input": "perseus", "weight": "one",
    "recompute": "cap", "embedding_loss": "edge", "optimizer": "changes", "offload": "sand",
    "tensor_comm": "stage", "pipeline_comm": "sky", "data_comm": "ours", "expert_comm": "envpipe",
    "context_comm": "one", "bubble": "base",
    "compute": "gpu", "memory": "cap", "network": "stage", "scale_up": "sky",
    "scale_out": "stage", "launch": "one", "waiting": "base", "static": "edge", "host": "sand",
    "weights_bytes": "gpu", "gradients_bytes": "perseus", "optimizer_bytes": "changes",
    "activations_bytes": "cap", "temporary_bytes": "base", "cache_bytes": "stage",
    "tensor-forward": "envpipe", "tensor-backward": "envpipe", "send-forward": "sky",
    "send-backward": "stage", "collective": "ours",
    "useful switching": "gpu", "clock and overhead": "perseus", "leakage": "base",
    "leakage and uncore": "base", "memory and uncore": "cap", "memory traffic": "cap",
}  # fmt: skip
_RC = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "joulecut",  # equal charts are equal bytes
    "text.parse_math": False,  # a job may be named $x$
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
    **dict.fromkeys(
        ("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize"),
        11.5,
    ),
}

# Of a mark: right, left, above, below, and the corners.
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))

Point = tuple[float, float]
Kind = Literal["line", "dots", "dashed", "dotted", "step", "marks"]


@dataclass(frozen=True, slots=True)
class Line:
    """A curve or dots; `style` is a colour of `SERIES`, as everywhere below, or of `PAGE`."""

    name: str
    style: str
    points: tuple[Point, ...]
    kind: Kind = "line"


@dataclass(frozen=True, slots=True)
class Area:
    """A band between two curves over the same x: (x, from, to)."""

    name: str
    style: str
    points: tuple[tuple[float, float, float], ...]
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of its own, by a shape of `MARKERS`, and what is written beside it."""

    name: str
    style: str
    at: Point
    shape: str = "circle"
    label: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """One bar in each group of the panel; `texts` are written at their ends."""

    name: str
    style: str
    values: tuple[float, ...]
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spans:
    """Stretches in rows of the panel: (row, start, length), with a text in each or none; thin
    ones run beside others, below them.
    """

    name: str
    style: str
    spans: tuple[tuple[int, float, float], ...]
    texts: tuple[str, ...] = ()
    thin: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """A straight line across the panel, up at an x or across at a y, with its name beside it;
    what lies beyond an upright one is shaded.
    """

    name: str
    style: str
    x: float | None = None
    y: float | None = None


Item = Line | Area | Mark | Bars | Spans | Limit


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart. `groups` name bars, or rows of spans; `stacked` bars of a group follow each other,
    else they stand side by side; `sideways` they grow to the right. `log` names the logarithmic
    axes; `zero` keeps 0 on the vertical one. `x_ticks`, where given, are the only values named. A
    second scale on top has the per cent above `baseline`.
    """

    title: str
    x_label: str
    y_label: str
    items: tuple[Item, ...]
    groups: tuple[str, ...] = ()
    stacked: bool = False
    sideways: bool = False
    log: Literal["", "x", "y", "xy"] = ""
    zero: bool = False
    x_ticks: tuple[float, ...] = ()
    x_range: Point | None = None
    y_range: Point | None = None
    baseline: float | None = None
    baseline_label: str = "slower than the baseline"

    @property
    def height(self) -> int:
        """CSS pixels that it likes to have where its rows need them."""
        upright = any(isinstance(item, Bars) for item in self.items) and not self.sideways
        return LOW if upright or not self.groups else ROW * len(self.groups) + ROWS_ROOM


def stacked(
    title: str,
    label: str,
    groups: Mapping[str, Mapping[str, float]],
    *,
    unit: float = 1.0,
    texts: Mapping[str, str] | None = None,
) -> Panel:
    """Bars on their side, one of each group, of the parts in the order of `PARTS`; parts that are
    nothing in all groups are left out. `texts` are written at the ends.
    """
    names = [name for name in PARTS if any(parts.get(name, 0.0) > 0.0 for parts in groups.values())]
    items = tuple(
        Bars(
            shown(name),
            PARTS[name],
            tuple(max(0.0, parts.get(name, 0.0)) / unit for parts in groups.values()),
            tuple((texts or {}).values()) if name == names[-1] else (),
        )
        for name in names
    )
    return Panel(title, label, "", items, tuple(groups), stacked=True, sideways=True)


def shown(part: str) -> str:
    """A part's name as people read it."""
    return part.removesuffix("_bytes").replace("_", " ")


@contextmanager
def style() -> Iterator[None]:
    """The house style, for everything drawn or saved within."""
    with importlib.import_module("matplotlib").rc_context(_RC), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a name with letters the font has not
        yield


def figure(
    panels: Sequence[Panel],
    *,
    columns: int = 1,
    width: int = WIDTH,
    height: int | None = None,
    legend: bool = True,
    note: str = "",
) -> Any:
    """The matplotlib figure of panels, in rows of `columns`, each `height` CSS pixels; with one
    legend below them all (above, where a note is below) or one below each in one column.
    """
    rows = -(-len(panels) // columns)
    tall = [
        height or max(one.height for one in panels[at * columns : (at + 1) * columns])
        for at in range(rows)
    ]
    with style():
        drawn = importlib.import_module("matplotlib.figure").Figure(
            (width / 72, sum(tall) / 72), dpi=72, layout="constrained"
        )
        grid = drawn.subplots(rows, columns, squeeze=False, height_ratios=tall)
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw(axes, panel, width / columns, tall[0])
            if len(panels) > 1:
                axes.set_title(_titled(panel), loc="left")
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        if legend and (columns > 1 or len(panels) == 1):
            place = {"loc": "outside upper center"} if note else {}
            _legend(drawn, drawn.axes, width, **place)
        elif legend:
            for axes, pixels in zip(grid.flat, tall, strict=True):
                _legend(axes, [axes], width, loc="upper left", bbox_to_anchor=(0, -40 / pixels))
        if note:
            drawn.supxlabel(note, x=0.01, ha="left", fontsize=10.5)
    return drawn


def _titled(panel: Panel) -> str:
    return ": ".join(one for one in (panel.title, panel.y_label) if one)


def _legend(of: Any, some: Sequence[Any], width: float, **where: Any) -> None:
    """Below the panels: never on a mark."""
    found: dict[str, Any] = {}
    for axes in some:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    if found:
        longest = max(map(len, found)) * LETTER[0] + 40
        columns = max(1, min(len(found), int(width / longest)))
        place = where or {"loc": "outside lower center"}
        of.legend(found.values(), found, ncols=columns, fontsize=10, **place)


def _draw(axes: Any, panel: Panel, width: float, height: float) -> None:
    bars = [item for item in panel.items if isinstance(item, Bars)]
    for item in panel.items:
        if isinstance(item, Line):
            _draw_line(axes, item)
        elif isinstance(item, Area):
            xs, low, high = zip(*item.points, strict=True)
            axes.fill_between(xs, low, high, color=_colour(item.style), lw=0,
                              alpha=0.07 if item.faint else 0.72,
                              label=None if item.faint else item.name)  # fmt: skip
        elif isinstance(item, Spans):
            _draw_spans(axes, item)
    if bars:
        _draw_bars(axes, panel, bars, width)
    axes.set(**{f"{name}scale": "log" for name in panel.log})
    axes.set_xlabel(panel.x_label, loc="right")
    axes.set_title(panel.y_label, loc="left")
    if panel.groups and not bars:
        axes.set_yticks(range(len(panel.groups)), panel.groups)
        axes.set_ylim(len(panel.groups) - 0.4, -0.6)
        axes.grid(visible=False)
    _ranges(axes, panel)
    for item in panel.items:
        if isinstance(item, Limit):
            _draw_limit(axes, item, panel, width, height)
    marks = [item for item in panel.items if isinstance(item, Mark)]
    _draw_marks(axes, marks, width, height)
    _draw_labels(axes, panel, marks, width, height)
    if panel.baseline is not None:
        _second_scale(axes, panel.baseline, panel.baseline_label)


def _ranges(axes: Any, panel: Panel) -> None:
    if panel.zero:
        axes.set_ylim(bottom=0.0)
    if panel.x_range is not None:
        axes.set_xlim(panel.x_range)
    if panel.y_range is not None:
        axes.set_ylim(panel.y_range)
    if panel.x_ticks:
        axes.set_xticks(panel.x_ticks)
    elif panel.x_label == YEAR:
        axes.xaxis.get_major_locator().set_params(integer=True)
    for item in panel.items:
        if isinstance(item, Mark):  # drawn last, at their own places: they count for the range
            axes.update_datalim([item.at])
    if panel.x_range is None or panel.y_range is None:
        axes.autoscale_view(scalex=panel.x_range is None, scaley=panel.y_range is None)
        if panel.zero and panel.y_range is None:
            axes.set_ylim(bottom=0.0)
    _log_ticks(axes, panel.log)  # of the range that is shown


def _colour(name: str) -> str:
    return (SERIES.get(name) or PAGE[name])[0]


def _draw_line(axes: Any, line: Line) -> None:
    colour = _colour(line.style)
    xs, ys = zip(*line.points, strict=True)
    if line.kind == "dots":
        step = max(1, -(-len(xs) // DOTS_MAX))
        axes.plot(xs[::step], ys[::step], ".", color=colour, ms=4, mew=0, alpha=0.45,
                  label=line.name or None)  # fmt: skip
        return
    if line.kind == "step":
        axes.step(xs, ys, where="post", color=colour, lw=2, label=line.name or None)
        return
    if line.kind == "marks":
        axes.plot(xs, ys, "o", color=colour, ms=5, mew=0, alpha=0.7, label=line.name or None)
        return
    dash = {"line": "-", "dashed": "--", "dotted": ":"}[line.kind]
    plain = line.kind == "line"
    axes.plot(xs, ys, dash, color=colour, lw=2.2 if plain else 1.3, ms=6, label=line.name or None,
              marker="." if plain and len(xs) <= POINTS_MAX else "")  # fmt: skip


def _draw_bars(axes: Any, panel: Panel, bars: Sequence[Bars], width: float) -> None:
    count, places = len(panel.groups), range(len(panel.groups))
    wide = 0.72 if panel.stacked else 0.9 / len(bars)
    draw = axes.barh if panel.sideways else axes.bar
    base = [0.0] * count
    for place, bar in enumerate(bars):
        colour = _colour(bar.style)
        if panel.stacked:
            at: list[float] = [float(number) for number in places]
            start = {"left": base} if panel.sideways else {"bottom": base}
            drawn = draw(at, bar.values, wide, color=colour, label=bar.name, **start)
            base = [low + value for low, value in zip(base, bar.values, strict=True)]
        else:
            shift = (place - len(bars) / 2 + 0.5) * wide
            at = [number + shift for number in places]
            drawn = draw(at, bar.values, wide * 0.92, color=colour, label=bar.name)
        if bar.texts:
            axes.bar_label(drawn, bar.texts, padding=3, fontsize=9.5)
    if panel.sideways:
        axes.set_yticks(places, panel.groups)
        axes.set_ylim(count - 0.4, -0.6)
        axes.grid(visible=False)
        axes.grid(axis="x")
        axes.margins(x=0.12)
    else:
        long = sum(len(name) + 2 for name in panel.groups) * LETTER[0] > width
        axes.set_xticks(places, panel.groups, **({"rotation": 90, "fontsize": 9} if long else {}))
        axes.tick_params(axis="x", length=0)
        axes.axhline(0, color=PAGE["muted"][0], lw=0.8)
        axes.margins(y=0.12)


def _draw_spans(axes: Any, item: Spans) -> None:
    colour, rows = _colour(item.style), dict[int, list[Point]]()
    for row, start, length in item.spans:
        rows.setdefault(row, []).append((start, length))
    for row, pairs in rows.items():
        where = (row + 0.3, 0.16) if item.thin else (row - 0.4, 0.68)
        axes.broken_barh(pairs, where, facecolor=colour, edgecolor=PAGE["card"][0],
                         lw=0.6 if item.texts else 0.0)  # fmt: skip
    for (row, start, length), text in zip(item.spans, item.texts, strict=False):
        axes.text(start + length / 2, row - 0.06, text, ha="center", va="center", fontsize=8.5,
                  color=PAGE["card"][0])  # fmt: skip
    axes.plot([], [], color=colour, lw=6, label=item.name)


def _draw_limit(axes: Any, item: Limit, panel: Panel, width: float, height: float) -> None:
    colour, dash = _colour(item.style), (0, (5, 3))
    if item.y is not None:
        axes.axhline(item.y, color=colour, ls=dash, lw=1.3)
        axes.annotate(item.name, (0.005, item.y), (0, 3), color=colour, fontsize=10,
                      xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip
        return
    assert item.x is not None
    right = axes.get_xlim()[1]
    axes.axvspan(item.x, max(item.x, right), color=colour, alpha=0.06, lw=0)
    axes.axvline(item.x, color=colour, ls=dash, lw=1.5, gid=item.name)
    axes.set_xlim(right=right)
    x, _ = _pixel(axes, (item.x, axes.get_ylim()[0]), width, height)
    wide = LETTER[0] * 1.2 * len(item.name)
    inner = width * 0.92
    left = x + 6 + wide > inner
    start = x - 6 - wide if left else x + 6
    taken = _taken(axes, panel, width, height)
    cost = {}
    for up in (0.02, 0.9, 0.5, 0.25, 0.7):
        low = up * height * 0.8
        box = start, low, start + wide, low + LETTER[1]
        cost[up] = sum(_overlap(box, one) for one in taken)
    axes.annotate(
        item.name, (item.x, min(cost, key=lambda up: cost[up])), (-6 if left else 6, 0),
        color=colour, fontsize=12, ha="right" if left else "left",
        xycoords=("data", "axes fraction"), textcoords="offset points",
    )  # fmt: skip


def _pixel(axes: Any, at: Point, width: float, height: float) -> Point:
    """Near enough before the layout is known: axes take most of their figure."""
    x, y = (axes.transScale + axes.transLimits).transform(at)
    return float(x) * width * 0.92, float(y) * height * 0.8


def together(axes: Any, marks: Sequence[Mark], width: float, height: float) -> list[list[Mark]]:
    """Marks in groups: those of a group would hide each other at one place of the figure."""
    groups: list[tuple[Point, list[Mark]]] = []
    for mark in marks:
        x, y = _pixel(axes, mark.at, width, height)
        near = (one for at, one in groups if abs(at[0] - x) < APART and abs(at[1] - y) < APART)
        group = next(near, None)
        if group is None:
            groups.append(((x, y), [mark]))
        else:
            group.append(mark)
    return [group for _, group in groups]


def _draw_marks(axes: Any, marks: Sequence[Mark], width: float, height: float) -> None:
    moved = importlib.import_module("matplotlib.transforms").ScaledTranslation
    # Of a curve's own points, which have no name, none is moved.
    alone = [[mark] for mark in marks if not mark.name]
    named = together(axes, [mark for mark in marks if mark.name], width, height)
    for group in (*named, *alone):
        for place, mark in enumerate(group):
            colour, ring = _colour(mark.style), mark.shape == "ring"
            # Side by side: behind each other only the last would be seen. None is moved to the
            # right, where a plan on time would look late.
            inches = (place - len(group) + 1) * APART / 72
            beside = moved(inches, 0, axes.figure.dpi_scale_trans)
            axes.plot(
                [mark.at[0]], [mark.at[1]], MARKERS[mark.shape], ms=10,
                mfc="none" if ring else colour, mec=colour if ring else PAGE["card"][0],
                mew=2.4 if ring else 1.6, ls="", label=mark.name or None, zorder=3, clip_on=False,
                gid=f"mark-{mark.name}", transform=axes.transData + beside,
            )  # fmt: skip
        if len(group) > 2:
            axes.annotate(
                f"{len(group)} side by side", group[0].at, (-APART * (len(group) - 1) / 2, 10),
                ha="center", fontsize=10, textcoords="offset points", annotation_clip=False,
            )  # fmt: skip


def _draw_labels(
    axes: Any, panel: Panel, marks: Sequence[Mark], width: float, height: float
) -> None:
    """Each beside its mark where least is covered: marks, points of curves, other labels."""
    # Of marks in one place with one text the first alone has it.
    named = list({
        (group[0].at, mark.label): mark
        for group in together(axes, [one for one in marks if one.label], width, height)
        for mark in reversed(group)
    }.values())  # fmt: skip
    if not named:
        return
    taken = _taken(axes, panel, width, height)
    for mark in named:
        x, y = _pixel(axes, mark.at, width, height)
        wide, tall = LETTER[0] * len(mark.label), LETTER[1]
        best, found = math.inf, (0.0, 0.0, 0.0, 0.0, 0, 0)
        for far, (across, up) in product((9, 20, 34), _SIDES):
            left = x + across * far - (1 - across) / 2 * wide
            low = y + up * far - (1 - up) / 2 * tall
            box = left, low, left + wide, low + tall
            out = max(0.0, -left) + max(0.0, box[2] - width * 0.92) + max(0.0, -low)
            cost = far / 4 + 10 * sum(_overlap(box, one) for one in taken) + 50 * out
            if cost < best:
                best, found = cost, (*box, across * far, up * far)
        taken.append(found[:4])
        side, rise = found[4:]
        axes.annotate(
            mark.label, mark.at, (side, rise), textcoords="offset points", fontsize=10,
            color=PAGE["ink"][0], zorder=4, annotation_clip=False, gid=f"label-{mark.label}",
            ha={1: "left", 0: "center", -1: "right"}[(side > 0) - (side < 0)],
            va={1: "bottom", 0: "center", -1: "top"}[(rise > 0) - (rise < 0)],
        )  # fmt: skip


def _taken(axes: Any, panel: Panel, width: float, height: float) -> list[tuple[float, ...]]:
    """Boxes of marks and of points along the curves, in pixels."""
    places = []
    for item in panel.items:
        if isinstance(item, Mark):
            places.append(_pixel(axes, item.at, width, height))
        elif isinstance(item, Line):
            some = [_pixel(axes, at, width, height) for at in item.points[:LABELLED_MAX]]
            places += some if item.kind in {"dots", "marks"} else _along(some)
    return [(x - 5, y - 5, x + 5, y + 5) for x, y in places]


def _along(points: Sequence[Point]) -> list[Point]:
    """Of a curve, a point every few pixels."""
    found = []
    for (x, y), (right, top) in pairwise(points):
        steps = min(100, 1 + int(math.hypot(right - x, top - y) / APART))
        found += [(x + (right - x) * k / steps, y + (top - y) * k / steps) for k in range(steps)]
    return found


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Square pixels that two boxes (left, low, right, high) share."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    tall = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, wide) * max(0.0, tall)


def _log_ticks(axes: Any, which: str) -> None:
    ticker = importlib.import_module("matplotlib.ticker")
    for name in which:
        axis, (low, high) = getattr(axes, f"{name}axis"), getattr(axes, f"get_{name}lim")()
        few = math.log10(high / low) < DECADES_NAMED
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if few else (1,), numticks=9))
        axis.set_minor_locator(ticker.NullLocator())
        axis.set_major_formatter(ticker.EngFormatter(sep=""))


def _second_scale(axes: Any, baseline: float, label: str) -> None:
    top = axes.secondary_xaxis(
        "top", functions=(lambda x: (x / baseline - 1) * 100, lambda p: baseline * (1 + p / 100))
    )
    top.xaxis.set_major_formatter(lambda value, _: f"{value + 0.0:+g} %")
    top.tick_params(length=0)
    top.spines["top"].set_visible(False)
    top.set_xlabel(label, loc="right")


def svg(drawn: Any, label: str) -> str:
    """The figure as inline SVG: no size, colours as CSS variables, the page's font."""
    out = io.StringIO()
    with style():
        drawn.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    body = text[text.index("<defs>") :].rstrip()
    viewbox = re.search(r'viewBox="[^"]*"', text)
    assert viewbox is not None
    names = {light: name for name, (light, _) in {**PAGE, **SERIES}.items()}
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


def palette() -> str:
    """CSS: the variables of every page, light and dark."""

    def scheme(which: int) -> str:
        return "".join(f"--{name}:{pair[which]};" for name, pair in {**PAGE, **SERIES}.items())

    return (
        f":root{{color-scheme:light dark;{scheme(0)}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{scheme(1)}}}}}"
    )


def html(panel: Panel, *, width: int = HALF, height: int | None = None) -> str:
    """A figure element: the title, a legend and the chart."""
    names = dict.fromkeys(
        (item.name, item.style) for item in panel.items
        if item.name and not isinstance(item, Limit) and not (isinstance(item, Area) and item.faint)
    )  # fmt: skip
    legend = "".join(f'<span style="--c:var(--{colour})">{escape(name)}</span>'
                     for name, colour in names)  # fmt: skip
    drawn = svg(figure([panel], width=width, height=height, legend=False), panel.title)
    shown_names = f'<p class="legend">{legend}</p>' if len(names) > 1 else ""
    return f"<figure><figcaption>{escape(panel.title)}</figcaption>{shown_names}{drawn}</figure>"
