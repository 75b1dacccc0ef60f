"""A comparison as text, JSON and figure: what each rule saves at every slowdown, and its worth."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from joulecut_cli import figures, plot
from joulecut_cli.money import prices_text
from joulecut_engine import panel
from joulecut_engine.money import Iteration, signed
from joulecut_lab.compare.contest import LATE, Outcome
from joulecut_lab.compare.rules import Entry, Point

TITLE = "energy saved, %"


def as_text(outcome: Outcome) -> list[str]:
    """What each rule saves, then stragglers where asked."""
    setting, start = outcome.setting, outcome.fastest
    count = len(setting.problem.graph.operations)
    head, rows = table(outcome)
    lines = [
        f"{outcome.job.path}: {count} operations; one iteration, one GPU per stage",
        "predicted from the profile, not measured",
        f"baseline {figures.seconds(start.time_s)}, {figures.joules(start.energy_j)}",
        "",
        "saved within a slowdown",
        *figures.table(head, rows, frozenset(head[1:])),
        *late(outcome),
    ]
    if setting.stragglers:
        lines += ["", *_straggler_table(outcome)]
    return [*lines, "", *notes(outcome)]


def table(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """Head and rows: a rule's saving at each slowdown, its point of least cost and worth there."""
    slowdowns = [f"{100.0 * slowdown:g} %" for slowdown in outcome.setting.slowdowns]
    head = ["", *slowdowns, "pays at", "a GPU-hour", "a year", "took"]
    rows = [_row(outcome, entry) for entry in outcome.entries]
    bounds = [figures.percent(outcome.saving(joules)) for joules in outcome.bounds_j]
    rows.append(["no plan saves more than", *bounds, *[""] * 4])
    return head, rows


def _row(outcome: Outcome, entry: Entry) -> list[str]:
    if not entry.points:
        blank = [figures.NONE] * (len(outcome.setting.slowdowns) + 3)
        return [entry.name, *blank, figures.seconds(entry.seconds)]
    cells = [
        figures.percent(outcome.saving(one.plan.energy_j))
        + "*" * (outcome.late(one.plan, deadline_s) > 0)
        for one, deadline_s in _points(outcome, entry)
    ]
    found = outcome.worth(entry)
    pays = f"{100.0 * found.slowdown + 0.0:+.2f} %" if found.net_per_gpu_hour > 0.0 else "nothing"
    net = signed(found.net_per_gpu_hour), signed(found.net_per_year)
    return [entry.name, *cells, pays, *net, f"{entry.seconds:.2f} s"]


def _points(outcome: Outcome, entry: Entry) -> list[tuple[Point, float]]:
    return list(zip(entry.points, outcome.setting.deadlines_s, strict=False))


def _straggler_table(outcome: Outcome) -> list[str]:
    head = ["", *(f"x{factor:g}" for factor in outcome.setting.stragglers)]
    rows = [
        [entry.name, *(figures.percent(one.saving_ratio) + "*" * (one.late_ratio > LATE)
                       for one in outcome.stragglers(entry))]
        for entry in outcome.entries
        if entry.points
    ]  # fmt: skip
    title = f"saving of {outcome.setting.pipelines} pipelines while one of them is a straggler"
    return [title, *figures.table(head, rows, frozenset(head[1:])), *late_there(outcome)]


def late(outcome: Outcome) -> list[str]:
    """The footnote of starred savings: a rule that cannot be on time is shown as it is."""
    each = [pair for entry in outcome.entries for pair in _points(outcome, entry)]
    latest = max((outcome.late(one.plan, deadline_s) for one, deadline_s in each), default=0.0)
    return [f"* later than the slowdown, by up to {latest * 100:.2f} %"] if latest else []


def late_there(outcome: Outcome) -> list[str]:
    """The footnote of starred savings: the pipelines end later than the straggler."""
    latest = max((late for entry in outcome.entries for late in entry.late), default=0.0)
    return [f"* later than the straggler, by up to {latest * 100:.2f} %"] if latest > LATE else []


def notes(outcome: Outcome) -> list[str]:
    """Prices, and what the table leaves out."""
    found = [f"Pays at: where energy and GPU time cost least, {prices_text(outcome.prices)}."]
    found += [f"{entry.name}: {entry.remark}." for entry in outcome.entries if entry.remark]
    if outcome.left_out():
        found.append(f"Compared {outcome.left_out()}.")
    if outcome.setting.stragglers and outcome.setting.sync == "layer":
        found.append("Siblings synchronise at every layer (sync: layer): no plan gains by waiting.")
    found.append(
        f"Perseus has units of {outcome.perseus_unit_s * 1e3:g} ms and fitted costs; the table "
        "shows its clocks under the measured costs, found by a linear program of the same optimum: "
        "its time is not that of the published algorithm."
    )
    return found


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The comparison for programs; ratios and gaps are fractions, units are in the names."""
    setting = outcome.setting
    return {
        "slowdowns": list(setting.slowdowns),
        "deadlines_s": list(setting.deadlines_s),
        "pipelines": setting.pipelines,
        "perseus_unit_s": outcome.perseus_unit_s,
        "sync": setting.sync,
        "left_out": outcome.left_out(),
        "baseline": _priced(outcome.fastest),
        "lower_bounds_j": list(outcome.bounds_j),
        "prices": asdict(outcome.prices),
        "rules": [_rule(outcome, entry) for entry in outcome.entries],
    }


def _priced(priced: Iteration) -> dict[str, float]:
    return {"iteration_time_s": priced.time_s, "energy_j": priced.energy_j}


def _rule(outcome: Outcome, entry: Entry) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": entry.name, "seconds": entry.seconds}
    if entry.remark:
        shown["remark"] = entry.remark
    shown["points"] = [
        _priced(one.plan)
        | {
            "saving_ratio": outcome.saving(one.plan.energy_j),
            "slowdown_ratio": outcome.slowdown(one.plan),
            "late_ratio": outcome.late(one.plan, deadline_s),
            "lower_bound_j": one.lower_bound_j,
            "gap": one.gap,
        }
        for one, deadline_s in _points(outcome, entry)
    ]
    shown["money"] = outcome.worth(entry).as_json() if entry.points else None
    shown["stragglers"] = [one._asdict() for one in outcome.stragglers(entry)]
    return shown


def savings_panel(outcome: Outcome) -> panel.Panel:
    """One curve a rule: saving against slowdown, with the bound."""
    items: list[panel.Item] = []
    slowdowns = outcome.setting.slowdowns
    bounds = [100.0 * outcome.saving(joules) for joules in outcome.bounds_j]
    xs = [100.0 * slowdown for slowdown in slowdowns]
    if len(xs) > 1:
        items.append(panel.Line("no plan saves more", "muted", tuple(zip(xs, bounds)), "dotted"))  # noqa: B905
    for entry in outcome.entries:
        points = tuple(
            (
                100.0 * max(allowed, outcome.slowdown(one.plan)),
                100.0 * outcome.saving(one.plan.energy_j),
            )
            for one, allowed in zip(entry.points, slowdowns, strict=False)
        )
        if len(points) > 1:
            items.append(panel.Line(entry.name, entry.style, points))
        elif points:
            items.append(panel.Mark(entry.name, entry.style, points[0]))
    return panel.Panel("", "slower than default clocks, %", TITLE, tuple(items))


def stragglers_panel(outcome: Outcome) -> panel.Panel:
    """Bars of each rule, a group for each straggler."""
    setting, bars = outcome.setting, []
    for entry in (one for one in outcome.entries if one.points and one.style != "base"):
        found = outcome.stragglers(entry)
        values = tuple(100.0 * (round(one.saving_ratio, 6) + 0.0) for one in found)  # no -0
        texts = tuple(
            f"{value:.1f}{'*' * (one.late_ratio > LATE)}"
            for value, one in zip(values, found, strict=True)
        )
        bars.append(panel.Bars(entry.name, entry.style, values, texts))
    title = f"saving of {setting.pipelines} pipelines while one is a straggler, %"
    groups = tuple(f"straggler x{factor:g}" for factor in setting.stragglers)
    return panel.Panel("", "", title, tuple(bars), groups)


def draw(path: Path, outcome: Outcome) -> None:
    """Writes the figure: a page with the table, or a picture. Raises BadInput."""
    png = path.suffix == ".png"
    head, rows = table(outcome)
    styles = [*(entry.style for entry in outcome.entries), "bound"]
    legend = [
        plot.Row(style, "line", cells[:-1]) for style, cells in zip(styles, rows, strict=True)
    ]
    drawn = [panel.figure([savings_panel(outcome)], height=panel.HEIGHT, legend=png)]
    if outcome.setting.stragglers:
        drawn.append(panel.figure([stragglers_panel(outcome)], legend=False))
    about = "One iteration, one GPU per stage; predicted from the profile, not measured."
    remarks = [about, *late(outcome), *late_there(outcome), *notes(outcome)]
    title = f"{outcome.job.path.stem}: what rules for clocks save"
    plot.write(path, title, drawn, (head[:-1], legend), remarks)
