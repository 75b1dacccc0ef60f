"""A comparison as a picture: every rule beside the frontier, and bars for each straggler."""

from pathlib import Path

from joulecut_cli import figures, plot
from joulecut_cli.chart import Bar, Chart, Curve, Mark
from joulecut_engine.optimize.problem import Solution
from joulecut_engine.optimize.solver import frontier
from joulecut_lab.compare.outcome import LATE, Outcome
from joulecut_lab.compare.setting import Entry
from joulecut_lab.compare.table import late, late_there, line, notes

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
}


def draw(path: Path, outcome: Outcome) -> None:
    found = frontier(outcome.setting.problem, plot.POINTS, "computation")
    title = f"{outcome.job.path.stem}: rules for clocks"
    marks = tuple(_mark(outcome, entry) for entry in outcome.entries if entry.plan is not None)
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
    plot.write(
        path,
        chart,
        head,
        rows,
        [about, *late(outcome), *late_there(outcome), *notes(outcome)],
        bars=_bars(outcome),
    )


def _curve(found: tuple[Solution, ...]) -> Curve:
    points = tuple((s.iteration_time_s, s.energy_j) for s in found)
    return Curve("frontier, granularity computation", points, "ours")


def _mark(outcome: Outcome, entry: Entry) -> Mark:
    assert entry.plan is not None
    saving = figures.percent(outcome.saving(entry.plan.energy_j))
    seconds, joules = figures.seconds(entry.plan.time_s), figures.joules(entry.plan.energy_j)
    text = f"{entry.name}: {seconds}, {joules}, saves {saving}"
    shape = _SHAPES[entry.style]
    return Mark(entry.name, entry.plan.time_s, entry.plan.energy_j, entry.style, shape, text)


def _bars(outcome: Outcome) -> plot.Bars | None:
    setting = outcome.setting
    if not setting.stragglers:
        return None
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
    return title, tuple(f"straggler x{factor:g}" for factor in setting.stragglers), bars
