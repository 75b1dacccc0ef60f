"""A comparison as text, JSON and chart: savings of each rule, with stragglers and a power limit."""

from pathlib import Path
from typing import Any

from joulecut_cli import figures, plot
from joulecut_engine.chart import Bar, Chart, Curve, Mark, bars_figure, frontier_figure
from joulecut_engine.optimize.problem import Solution
from joulecut_engine.optimize.solver import frontier
from joulecut_lab.compare.contest import LATE, Outcome
from joulecut_lab.compare.rules import Entry, Priced


def as_text(outcome: Outcome) -> list[str]:
    """What each rule saves, then stragglers and the power limit where asked."""
    setting, start = outcome.setting, outcome.fastest
    count = len(setting.problem.graph.operations)
    head = ["", "iteration", "slower", "energy", "saving", "gap", "took"]
    rows = [line(outcome, entry) for entry in outcome.entries]
    lines = [
        f"{outcome.job.path}: {count} operations, deadline {figures.seconds(setting.deadline_s)}",
        "one iteration, one GPU per stage; predicted from the profile, not measured",
        (
            f"baseline {figures.seconds(start.time_s)}, {figures.joules(start.energy_j)}; "
            "gap to a bound for the time each plan takes"
        ),
        "",
        *figures.table(head, rows, frozenset(head[1:])),
        *late(outcome),
    ]
    if setting.stragglers:
        lines += ["", *_straggler_table(outcome)]
    if setting.power_w is not None:
        lines += ["", *_budget_table(outcome)]
    return [*lines, "", *notes(outcome)]


def line(outcome: Outcome, entry: Entry) -> list[str]:
    if entry.plan is None:
        return [entry.name, entry.remark, *[figures.NONE] * 4, figures.seconds(entry.seconds)]
    return [
        entry.name,
        figures.seconds(entry.plan.time_s),
        f"{outcome.slowdown(entry.plan) * 100 + 0.0:+.2f} %" + "*" * (outcome.late(entry.plan) > 0),
        figures.joules(entry.plan.energy_j),
        figures.percent(outcome.saving(entry.plan.energy_j)),
        "-" if entry.gap is None else f"{entry.gap * 100:.2f} %",
        f"{entry.seconds:.2f} s",
    ]


def _straggler_table(outcome: Outcome) -> list[str]:
    against_j = outcome.baseline_cluster_j()
    head = ["", *(f"x{factor:g}" for factor in outcome.setting.stragglers)]
    rows = []
    for entry in outcome.entries:
        if entry.plan is None:
            continue
        cells = [
            figures.percent(outcome.saving(joules, base_j)) + ("*" if late > LATE else "")
            for joules, base_j, late in zip(entry.cluster_j, against_j, entry.late, strict=True)
        ]
        rows.append([entry.name, *cells])
        if entry.claimed_cluster_j:
            claims = outcome.claimed_stragglers(entry)
            rows.append([f"  {entry.name}, its claim", *map(figures.percent, claims)])
    title = f"saving of {outcome.setting.pipelines} pipelines while one of them is a straggler"
    return [title, *figures.table(head, rows, frozenset(head[1:])), *late_there(outcome)]


def late(outcome: Outcome) -> list[str]:
    """The footnote of starred times: a rule that cannot be on time is shown as it is."""
    if any(entry.plan and outcome.late(entry.plan) for entry in outcome.entries):
        return ["* later than the deadline"]
    return []


def late_there(outcome: Outcome) -> list[str]:
    """The footnote of starred savings: the pipelines end later than the straggler."""
    latest = max((late for entry in outcome.entries for late in entry.late), default=0.0)
    return [f"* later than the straggler, by up to {latest * 100:.2f} %"] if latest > LATE else []


def _budget_table(outcome: Outcome) -> list[str]:
    pipelines, power_w = outcome.setting.pipelines, outcome.setting.power_w
    assert power_w is not None
    head = ["", "iteration", "slower", "power"]
    rows = []
    for entry in outcome.entries:
        limited = entry.limited
        if limited is None:
            rows.append([entry.name, "out of reach", figures.NONE, figures.NONE])
            continue
        drawn_w = pipelines * limited.energy_j / limited.time_s
        slower = f"{outcome.slowdown(limited) * 100 + 0.0:+.2f} %"
        rows.append([entry.name, figures.seconds(limited.time_s), slower, figures.watts(drawn_w)])
    full_w = pipelines * outcome.fastest.energy_j / outcome.fastest.time_s
    limit_w = pipelines * power_w
    change = figures.percent(limit_w / full_w - 1, signed=True)
    title = (
        f"fastest within {figures.watts(limit_w)}, {change} of the {figures.watts(full_w)} "
        "at full speed"
    )
    return [title, *figures.table(head, rows, frozenset(head[1:]))]


def notes(outcome: Outcome) -> list[str]:
    """Notes on rules with a cost model of their own."""
    found = []
    if outcome.left_out():
        found.append(f"Compared {outcome.left_out()}.")
    if outcome.setting.stragglers and outcome.setting.sync == "layer":
        found.append("Siblings synchronise at every layer (sync: layer): no plan gains by waiting.")
    unit_ms = outcome.perseus_unit_s * 1e3
    for entry in outcome.entries:
        if entry.claimed is not None:
            claim = figures.percent(outcome.claimed_saving(entry))
            found.append(
                f"Perseus has units of {unit_ms:g} ms and fitted costs and claims {claim}; "
                "the table shows its clocks under the measured costs."
            )
            found.append(
                "Its plan is computed by a linear program of the same optimum; its time is not "
                "that of the published algorithm."
            )
    return found


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The comparison for programs; ratios and gaps are fractions, units are in the names."""
    setting = outcome.setting
    against_j = outcome.baseline_cluster_j()
    return {
        "deadline_s": setting.deadline_s,
        "pipelines": setting.pipelines,
        "perseus_unit_s": outcome.perseus_unit_s,
        "sync": setting.sync,
        "left_out": outcome.left_out(),
        "baseline": _priced(outcome.fastest),
        "rules": [_rule(outcome, entry, against_j) for entry in outcome.entries],
    }


def _priced(priced: Priced) -> dict[str, float]:
    return {"iteration_time_s": priced.time_s, "energy_j": priced.energy_j}


def _rule(outcome: Outcome, entry: Entry, against_j: tuple[float, ...]) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": entry.name, "seconds": entry.seconds}
    if entry.remark:
        shown["remark"] = entry.remark
    if entry.plan is not None:
        shown |= _priced(entry.plan) | {
            "saving_ratio": outcome.saving(entry.plan.energy_j),
            "slowdown_ratio": outcome.slowdown(entry.plan),
            "late_ratio": outcome.late(entry.plan),
            "lower_bound_j": entry.lower_bound_j,
            "gap": entry.gap,
        }
    if entry.claimed is not None:
        shown["claimed"] = _priced(entry.claimed) | {"saving_ratio": outcome.claimed_saving(entry)}
    shown["stragglers"] = [
        {"factor": factor, "energy_j": joules, "saving_ratio": outcome.saving(joules, base_j)}
        for factor, joules, base_j in zip(
            outcome.setting.stragglers, entry.cluster_j, against_j, strict=False
        )
    ]
    if entry.claimed_cluster_j:
        for row, saving in zip(shown["stragglers"], outcome.claimed_stragglers(entry), strict=True):
            row["claimed_saving_ratio"] = saving
    for row, late in zip(shown["stragglers"], entry.late, strict=True):
        row["late_ratio"] = late
    if outcome.setting.power_w is not None:
        limited = entry.limited
        shown["budget"] = limited and _priced(limited) | {
            "slowdown_ratio": outcome.slowdown(limited),
            "power_w": outcome.setting.pipelines * limited.energy_j / limited.time_s,
        }
    return shown


_SHAPES = {
    "base": "circle",
    "one": "square",
    "cap": "diamond",
    "stage": "triangle",
    "envpipe": "diamond",
    "perseus": "square",
    "ours": "circle",
    "gpu": "triangle",
    "edge": "square",
    "changes": "square",
}


def draw(path: Path, outcome: Outcome) -> None:
    found = frontier(outcome.setting.problem, plot.POINTS, "computation")
    title = f"{outcome.job.path.stem}: rules for clocks"
    marks = tuple(_mark(entry) for entry in outcome.entries if entry.plan is not None)
    chart = Chart(
        title=title,
        curves=(_curve(found),),
        marks=marks,
        baseline_s=outcome.fastest.time_s,
        bound=tuple((s.iteration_time_s, s.lower_bound_j) for s in found),
        deadline_s=outcome.setting.deadline_s,
    )
    rows = [
        plot.Row(entry.style, _SHAPES[entry.style], tuple(line(outcome, entry)[:-1]))
        for entry in outcome.entries
    ]
    rows.append(plot.Row("ours", "line", ("frontier, computation", *[""] * 5)))
    rows.append(plot.Row("bound", "line", ("lower bound: nothing lies below", *[""] * 5)))
    head = ("", "iteration", "slower", "energy", "saving", "gap")
    about = "One iteration, one GPU per stage; predicted from the profile, not measured."
    drawn = [frontier_figure(chart, legend=path.suffix == ".png")]
    if outcome.setting.stragglers:
        drawn.append(_bars(outcome))
    remarks = [about, *late(outcome), *late_there(outcome), *notes(outcome)]
    plot.write(path, title, drawn, (head, rows), remarks)


def _curve(found: tuple[Solution, ...]) -> Curve:
    points = tuple((s.iteration_time_s, s.energy_j) for s in found)
    return Curve("frontier, granularity computation", points, "ours")


def _mark(entry: Entry) -> Mark:
    assert entry.plan is not None
    shape = _SHAPES[entry.style]
    return Mark(entry.name, entry.plan.time_s, entry.plan.energy_j, entry.style, shape)


def _bars(outcome: Outcome) -> Any:
    setting = outcome.setting
    against_j = outcome.baseline_cluster_j()
    bars = tuple(
        Bar(
            entry.name,
            entry.style,
            tuple(
                round(outcome.saving(joules, base_j), 6) + 0.0  # no minus before a zero
                for joules, base_j in zip(entry.cluster_j, against_j, strict=True)
            ),
            tuple(late > LATE for late in entry.late),
        )
        for entry in outcome.entries
        if entry.plan is not None and entry.style != "base"
    )
    title = f"saving of {setting.pipelines} pipelines while one is a straggler, %"
    return bars_figure(title, [f"straggler x{factor:g}" for factor in setting.stragglers], bars)
