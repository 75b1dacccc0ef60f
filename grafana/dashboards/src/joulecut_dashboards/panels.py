"""Values that describe a dashboard: queries, panels, rows, variables.

Only what these dashboards use exists, so the checks in tests/grafana know every shape.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["timeseries", "stat", "table"]

# Grafana's unit ids (packages/grafana-data/src/valueFormats/categories.ts), those in use here.
UNITS = (
    "bytes", "celsius", "hertz", "joule", "kwatth", "none", "percentunit", "reqps", "s", "short",
    "watt",
)  # fmt: skip
WIDTH = 24  # Grafana's grid


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression. `legend` names each of its series.

    `quiet_because` says why a healthy cluster may have no answer. Tests check only the grammar of
    such a query; every other one must return data.
    """

    expr: str
    legend: str = ""
    quiet_because: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. A stat and a table show the newest value, a timeseries the whole range.

    `ratio_max` draws the axis of a share up to it. `columns` renames the value columns of a
    table, in the order of its queries; `by` names its label columns.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 12
    height: int = 8
    stacked: bool = False
    show_name: bool = False  # a stat whose value is the legend, such as a mode
    thresholds: tuple[tuple[str, float | None], ...] = (("green", None),)
    by: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()  # (title, unit), one per query


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and its panels, laid out from left to right."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A variable with the values that a label has now; all of them unless chosen."""

    name: str
    label: str
    metric: str
    value_of: str
    description: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A variable that the user types, such as a price."""

    name: str
    label: str
    default: str
    description: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard. `uid` is fixed, because links and bookmarks use it."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    choices: tuple[Choice, ...] = ()
    entries: tuple[Entry, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def stat(
    title: str, description: str, unit: str, expr: str, *, width: int = 4, legend: str = "",
    show_name: bool = False, quiet_because: str = "",
    thresholds: tuple[tuple[str, float | None], ...] = (("green", None),),
) -> Panel:  # fmt: skip
    """One large number."""
    query = Query(expr, legend, quiet_because)
    return Panel(
        title, description, unit, (query,), kind="stat", width=width, height=4,
        show_name=show_name, thresholds=thresholds,
    )  # fmt: skip


def below(amber: float, red: float) -> tuple[tuple[str, float | None], ...]:
    """Green at best, amber and red where a number falls below these."""
    return (("red", None), ("orange", red), ("green", amber))


def above(amber: float, red: float) -> tuple[tuple[str, float | None], ...]:
    """Green at best, amber and red where a number reaches these."""
    return (("green", None), ("orange", amber), ("red", red))
