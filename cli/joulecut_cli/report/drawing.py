"""Pictures of a report as SVG text: windows over time, and what was saved beside the promise."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from joulecut_cli.chart import ticks
from joulecut_cli.report.table import moment, one_share, share

Json = dict[str, Any]

WIDTH = 880
LEFT, RIGHT, TOP, BOTTOM = 66, 20, 24, 30
HEIGHT = 230
ROW = 30  # of one job in the picture of savings
NAMES = 190
DAY_S = 86_400
STEPS_S = (60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, DAY_S, 2 * DAY_S, 7 * DAY_S)
LABELS_MAX = 8


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a window: its key, its name and unit, and what it is multiplied by."""

    key: str
    name: str
    factor: float = 1.0


def windows_svg(points: Sequence[Json], figure: Figure) -> str:
    """Every window of a job as a line as long as it was, by arm."""
    begun_s: float = min(point["begun_unix_s"] for point in points)
    ended_s: float = max(point["ended_unix_s"] for point in points)
    values: list[float] = [point[figure.key] * figure.factor for point in points]
    low, high = min(values), max(values)
    room = max(0.08 * (high - low), 1e-3 * abs(high), 1e-12)
    low, high = low - room, high + room

    def x(unix_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (unix_s - begun_s) / (ended_s - begun_s)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - low) / (high - low)

    rows = ticks(low, high, 4)
    parts = [
        (
            f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{escape(figure.name, quote=True)} over time">'
        ),
        f'<text class="label" x="6" y="12">{escape(figure.name)}</text>',
        *(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
            f'<text class="tick" x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.6g}</text>'
            for v in rows
        ),
        *_days(begun_s, ended_s, x),
    ]
    # Hold-outs last: they are few, and lie on top.
    for point in sorted(points, key=lambda one: one["arm"] == "default"):
        value = point[figure.key] * figure.factor
        from_x, to_x = x(point["begun_unix_s"]), x(point["ended_unix_s"])
        parts.append(
            f'<line class="window {escape(point["arm"], quote=True)}" x1="{from_x:.1f}" '
            f'x2="{max(to_x, from_x + 0.1):.1f}" y1="{y(value):.1f}" y2="{y(value):.1f}">'
            f"<title>{moment(point['begun_unix_s'])} UTC, {_arm(point)}: {value:.6g}</title></line>"
        )
    return "".join([*parts, "</svg>"])


def savings_svg(jobs: Sequence[Json]) -> str:
    """A row per job: the measured interval, and the predicted saving as a ring."""
    shown = [job for job in jobs if job["measured"]["saved_ratio"] is not None]
    height = TOP + ROW * len(shown) + BOTTOM
    ends = [0.0]
    for job in shown:
        ends += [job["measured"]["saved_ratio"][end] for end in ("low", "high")]
        if job["predicted"]["saved_ratio"] is not None:
            ends.append(job["predicted"]["saved_ratio"])
    low, high = min(ends), max(ends)
    room = max(0.05 * (high - low), 0.002)
    low, high = (low - room if low < 0.0 else 0.0), high + room

    def x(ratio: float) -> float:
        return NAMES + (WIDTH - NAMES - RIGHT - 120) * (ratio - low) / (high - low)

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Energy saved">'
    ]
    foot = height - BOTTOM
    parts += [
        f'<line class="grid" x1="{x(v):.1f}" x2="{x(v):.1f}" y1="{TOP - 8}" y2="{foot}"/>'
        f'<text class="tick" x="{x(v):.1f}" y="{foot + 18}" text-anchor="middle">'
        f"{v * 100:g} %</text>"
        for v in (round(tick, 9) for tick in ticks(low, high, 6))
    ]
    for place, job in enumerate(shown):
        at = TOP + ROW * (place + 0.5)
        measured, predicted = job["measured"]["saved_ratio"], job["predicted"]["saved_ratio"]
        parts.append(
            f'<text class="name" x="{NAMES - 14}" y="{at + 4:.1f}" text-anchor="end">'
            f"{escape(_short(job['job']))}</text>"
            f'<line class="interval" x1="{x(measured["low"]):.1f}" x2="{x(measured["high"]):.1f}" '
            f'y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<circle class="measured" cx="{x(measured["mid"]):.1f}" cy="{at:.1f}" r="5"/>'
        )
        if predicted is not None:
            parts.append(
                f'<circle class="predicted" cx="{x(predicted):.1f}" cy="{at:.1f}" r="7">'
                f"<title>predicted {one_share(predicted)}</title></circle>"
            )
        parts.append(
            f'<text class="tick" x="{WIDTH - RIGHT}" y="{at + 4:.1f}" text-anchor="end">'
            f"{share(measured)}</text>"
        )
    return "".join([*parts, "</svg>"])


def _days(begun_s: float, ended_s: float, x: Any) -> list[str]:
    """Marks at round times of UTC."""
    span_s = ended_s - begun_s
    step_s = next((s for s in STEPS_S if span_s / s <= LABELS_MAX), STEPS_S[-1])
    while span_s / step_s > LABELS_MAX:
        step_s *= 2
    first = int(-(-begun_s // step_s))
    parts = []
    for number in range(first, int(ended_s // step_s) + 1):
        unix_s = float(number * step_s)
        text = moment(unix_s)[5:10] if step_s >= DAY_S else moment(unix_s)[5:]
        parts.append(
            f'<line class="grid" x1="{x(unix_s):.1f}" x2="{x(unix_s):.1f}" y1="{TOP}" '
            f'y2="{HEIGHT - BOTTOM}"/><text class="tick" x="{x(unix_s):.1f}" '
            f'y="{HEIGHT - 10}" text-anchor="middle">{text}</text>'
        )
    return parts


def _arm(point: Json) -> str:
    return "default clocks" if point["arm"] == "default" else f"plan {point['generation']}"


def _short(name: str) -> str:
    return name if len(name) <= 26 else name[:25] + "…"
