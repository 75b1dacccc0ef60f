"""Charts of frontiers: energy against iteration time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulecut_engine import panel
from joulecut_engine.panel import Area, Limit, Line, Mark, Panel, Spans

if TYPE_CHECKING:
    from joulecut_engine.graph.pipeline import Granularity
    from joulecut_engine.optimize.problem import Problem, Solution

SLOWED = {"forward": "sky", "backward": "sand"}
ROOM = 0.06  # of the span, left free around the data
# The style of each granularity, the finest last.
STYLES: "dict[Granularity, str]" = {
    "gpu": "gpu",
    "changes": "changes",
    "computation": "ours",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """Energy against iteration time, in seconds and joules; marks are plans. `baseline_s` is where
    the scale of slowdowns starts."""

    title: str
    curves: tuple[Line, ...]
    marks: tuple[Mark, ...]
    baseline_s: float
    bound: tuple[tuple[float, float], ...] = ()
    deadline_s: float | None = None


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
    return Mark(name, style, (solution.iteration_time_s, solution.energy_j), shape)


def _curve(found: "Sequence[Solution]") -> Line:
    points = tuple((s.iteration_time_s, s.energy_j) for s in found)
    granularity = found[0].granularity
    return Line(f"frontier, granularity {granularity}", STYLES[granularity], points)


def frontier_panel(chart: Chart) -> Panel:
    """Energy against iteration time, with the bound, the deadline and every plan."""
    (left, right), (low, high) = view(chart)
    joules, energy = (1e3, "kJ") if high >= 2000 else (1.0, "J")
    seconds, time = (1.0, "s") if right >= 1 else (1e-3, "ms")

    def scaled(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
        return tuple((t / seconds, e / joules) for t, e in points)

    items: list[panel.Item] = []
    if chart.bound:
        bound = scaled(chart.bound)
        below = tuple((t, e, low / joules) for t, e in bound)
        items += [Line("lower bound", "muted", bound, "dotted"),
                  Area("lower bound", "muted", below, faint=True)]  # fmt: skip
    items += [replace(one, points=scaled(one.points)) for one in reversed(chart.curves)]
    if chart.deadline_s is not None:
        items.append(Limit("deadline", "due", x=chart.deadline_s / seconds))
    items += [replace(mark, at=scaled([mark.at])[0]) for mark in chart.marks]
    return Panel(
        chart.title, f"iteration time, {time}", f"energy per iteration, {energy}", tuple(items),
        x_range=(left / seconds, right / seconds), y_range=(low / joules, high / joules),
        baseline=chart.baseline_s / seconds,
    )  # fmt: skip


def frontier_figure(chart: Chart, *, legend: bool = False) -> Any:
    """The figure of a frontier, with its plans."""
    return panel.figure([frontier_panel(chart)], height=panel.HEIGHT, legend=legend)


def pipeline_panel(problem: "Problem", plan: "Solution", title: str) -> Panel:
    """The operations of a plan over time, to scale; slower ones than at their fastest by name."""
    spans: dict[tuple[str, bool], list[tuple[int, float, float]]] = {}
    for i, (operation, option, start_s) in enumerate(
        zip(problem.graph.operations, plan.clocks, plan.start_s, strict=True)
    ):
        fastest_s = min(one.time_s for one in problem.options[i])
        slowed = option.time_s > fastest_s * (1.0 + 1e-9)
        one = operation.stage, start_s, option.time_s
        spans.setdefault((operation.kind, slowed), []).append(one)
    items = tuple(
        Spans(panel.shown(kind) + (", slowed" if slowed else ""), colour, tuple(found),
              thin=kind.startswith("send"))
        for kind, plain in panel.PARTS.items()
        for slowed, colour in ((False, plain), (True, SLOWED.get(kind, plain)))
        if (found := spans.get((kind, slowed)))
    )  # fmt: skip
    names = tuple(f"stage {stage}" for stage in range(len(problem.blocking_power_w)))
    return Panel(title, "s", "", items, names, x_range=(0.0, plan.iteration_time_s))


def view(chart: Chart) -> tuple[tuple[float, float], tuple[float, float]]:
    """The shown range in seconds and joules: all marks, and the curves near them.

    The far end of a frontier is long and flat; with a deadline, the range ends soon after it.
    """
    first = min([mark.at[0] for mark in chart.marks] + [c.points[0][0] for c in chart.curves])
    last = max(mark.at[0] for mark in chart.marks)
    if chart.deadline_s is not None:
        last = max(last, chart.deadline_s)
    end = max((c.points[-1][0] for c in chart.curves), default=last)
    near = end if chart.deadline_s is None else max(last + 0.4 * (last - first), 1.06 * first)
    right = max(last, min(end, near))
    room = max(ROOM * (right - first), 1e-3 * first)
    energies = [mark.at[1] for mark in chart.marks]
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
