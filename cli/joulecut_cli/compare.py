"""`joulecut compare JOB.yaml`: what other rules for clocks would make of the same job.

Computed from the job's profile alone, with no cluster: predicted, never measured.
"""

import json
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecut_cli import contest, figures, plot
from joulecut_cli.chart import Bar, Chart, Curve, Mark
from joulecut_cli.contest import Entry, Priced, Setting
from joulecut_cli.granularity import BUILT
from joulecut_cli.jobfile import JobFile, read
from joulecut_cli.progress import Progress
from joulecut_cli.target import deadline_s
from joulecut_controller.solve.problem import Solution
from joulecut_controller.solve.schedule import baseline
from joulecut_controller.solve.solver import frontier
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput

PROG = "joulecut compare"
PIPELINES = 16  # data-parallel pipelines of the published emulation (1,024 GPUs)
PIPELINES_MAX = 65_536
STRAGGLERS_MAX = 16
FACTOR_MAX = 100.0
UNIT_MS_MIN, UNIT_MS_MAX = 1e-3, 1e4
POWER_W_MAX = 1e12
LATE = 1e-6  # relative: what floats differ by is not late

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that is shown, as text, JSON or picture."""

    job: JobFile
    setting: Setting
    fastest: Priced
    entries: tuple[Entry, ...]
    unit_s: float

    def saving(self, joules: float, of_j: float | None = None) -> float:
        """A fraction of the baseline's energy, or of another."""
        return 1 - joules / (self.fastest.energy_j if of_j is None else of_j)

    def slowdown(self, priced: Priced) -> float:
        return priced.time_s / self.fastest.time_s - 1

    def late(self, priced: Priced) -> float:
        """By what fraction of the deadline; 0 for one that keeps it."""
        over = priced.time_s / self.setting.deadline_s - 1
        return over if over > LATE else 0.0


def run(argv: list[str]) -> int:
    """Prints one comparison. Raises BadInput, Unavailable."""
    options = _parse(argv)
    stragglers = _factors(options.straggler)
    pipelines = _whole("--pipelines", options.pipelines, PIPELINES, 1, PIPELINES_MAX)
    if stragglers and pipelines < 2:
        raise BadInput("--pipelines", "1 pipeline waits for nobody", "2 or more with --straggler")
    budget_w = _number("--budget", options.budget, 0.0, POWER_W_MAX)
    unit_ms = _number("--perseus-unit", options.perseus_unit, UNIT_MS_MIN, UNIT_MS_MAX)
    picture = plot.target(options.plot)
    job = read(options.job)
    problem = job.problem()
    fastest = baseline(problem)
    setting = Setting(
        problem=problem,
        deadline_s=deadline_s(options, fastest.iteration_time_s),
        stragglers=stragglers,
        pipelines=pipelines,
        power_w=None if budget_w is None else budget_w / pipelines,
        sync=job.pipeline.sync,
    )
    unit_s = contest.unit_s(problem) if unit_ms is None else unit_ms / 1e3
    with Progress(f"comparing on {options.job.name}") as progress:
        entries = contest.entries(setting, BUILT, unit_s, progress.advance)
    start = Priced(fastest.iteration_time_s, fastest.energy_j)
    outcome = Outcome(job, setting, start, tuple(entries), unit_s)
    if picture is not None:
        _draw(picture, outcome)
    if options.json:
        print(json.dumps(as_json(outcome), allow_nan=False, indent=1))
    else:
        print("\n".join(as_text(outcome)))
    return FINE


def _parse(argv: list[str]) -> Namespace:
    parser = Parser(PROG, "What other rules for clocks would make of the same job.")
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    parser.add_argument(
        "--max-slowdown", metavar="PCT", help="of the fastest iteration: 2 or 2%% (default 0)"
    )
    parser.add_argument(
        "--straggler", metavar="FACTORS", help="one pipeline is slower: 1.05,1.1,1.2,1.5"
    )
    parser.add_argument("--pipelines", metavar="N", help=f"data-parallel (default {PIPELINES})")
    parser.add_argument("--budget", metavar="W", help="mean power of all pipelines together")
    parser.add_argument(
        "--perseus-unit", metavar="MS", help="its unit of time (default 1, less for short work)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="write a picture: .html or .png")
    options = parser.parse_args(argv)
    options.deadline = None
    return options


def _factors(word: str | None) -> tuple[float, ...]:
    if word is None:
        return ()
    allowed = f"up to {STRAGGLERS_MAX} factors from 1 to {FACTOR_MAX:g}, like 1.05,1.2"
    parts = word.split(",")
    if len(parts) > STRAGGLERS_MAX:
        raise BadInput("--straggler", f"{len(parts)} factors", allowed)
    factors = []
    for part in parts:
        value = _finite(part)
        if value is None or not 1.0 <= value <= FACTOR_MAX:
            raise BadInput("--straggler", f'"{part.strip()}" is no factor', allowed)
        factors.append(value)
    return tuple(factors)


def _number(flag: str, word: str | None, low: float, high: float) -> float | None:
    if word is None:
        return None
    value = _finite(word)
    if value is None or not low < value <= high:
        raise BadInput(flag, f'"{word}" is out of range', f"a number above {low:g}, to {high:g}")
    return value


def _finite(word: str) -> float | None:
    text = word.strip()
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def _whole(flag: str, word: str | None, default: int, low: int, high: int) -> int:
    if word is None:
        return default
    text = word.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and low <= int(text) <= high):
        raise BadInput(flag, f'"{word}" is out of range', f"a whole number from {low} to {high}")
    return int(text)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The comparison for programs; ratios and gaps are fractions, units are in the names."""
    setting = outcome.setting
    against_j = contest.cluster_baseline_j(setting, outcome.fastest)
    return {
        "deadline_s": setting.deadline_s,
        "pipelines": setting.pipelines,
        "perseus_unit_s": outcome.unit_s,
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
        shown["claimed"] = _priced(entry.claimed) | {
            "saving_ratio": _claimed_saving(outcome, entry)
        }
    shown["stragglers"] = [
        {"factor": factor, "energy_j": joules, "saving_ratio": outcome.saving(joules, base_j)}
        for factor, joules, base_j in zip(
            outcome.setting.stragglers, entry.cluster_j, against_j, strict=False
        )
    ]
    if entry.claimed_cluster_j:
        for row, saving in zip(
            shown["stragglers"], _claimed_stragglers(outcome, entry), strict=True
        ):
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


def _floored(outcome: Outcome, entry: Entry) -> Priced:
    """The baseline in Perseus' reckoning: at full speed, floored times."""
    short_s = outcome.fastest.time_s - entry.claimed_fastest_s
    price_w = outcome.setting.problem.time_price_w
    return Priced(entry.claimed_fastest_s, outcome.fastest.energy_j - price_w * short_s)


def _claimed_saving(outcome: Outcome, entry: Entry) -> float:
    assert entry.claimed is not None
    return outcome.saving(entry.claimed.energy_j, _floored(outcome, entry).energy_j)


def _claimed_stragglers(outcome: Outcome, entry: Entry) -> list[float]:
    base_j = contest.cluster_baseline_j(outcome.setting, _floored(outcome, entry))
    pairs = zip(entry.claimed_cluster_j, base_j, strict=True)
    return [outcome.saving(joules, of_j) for joules, of_j in pairs]


def as_text(outcome: Outcome) -> list[str]:
    """What each rule saves, then stragglers and the power limit where asked."""
    setting, start = outcome.setting, outcome.fastest
    count = len(setting.problem.graph.operations)
    head = ["", "iteration", "slower", "energy", "saving", "gap", "took"]
    rows = [_line(outcome, entry) for entry in outcome.entries]
    lines = [
        f"{outcome.job.path}: {count} operations, deadline {figures.seconds(setting.deadline_s)}",
        "one iteration, one GPU per stage; predicted from the profile, not measured",
        (
            f"baseline {figures.seconds(start.time_s)}, {figures.joules(start.energy_j)}; "
            "gap to a bound for the time each plan takes"
        ),
        "",
        *figures.table(head, rows, frozenset(head[1:])),
        *_late(outcome),
    ]
    if setting.stragglers:
        lines += ["", *_straggler_table(outcome)]
    if setting.power_w is not None:
        lines += ["", *_budget_table(outcome)]
    return [*lines, "", *_notes(outcome)]


def _line(outcome: Outcome, entry: Entry) -> list[str]:
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
    against_j = contest.cluster_baseline_j(outcome.setting, outcome.fastest)
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
            claims = _claimed_stragglers(outcome, entry)
            rows.append([f"  {entry.name}, its claim", *map(figures.percent, claims)])
    title = f"saving of {outcome.setting.pipelines} pipelines while one of them is a straggler"
    return [title, *figures.table(head, rows, frozenset(head[1:])), *_late_there(outcome)]


def _late(outcome: Outcome) -> list[str]:
    """The footnote of starred times: a rule that cannot be on time is shown as it is."""
    if any(entry.plan and outcome.late(entry.plan) for entry in outcome.entries):
        return ["* later than the deadline"]
    return []


def _late_there(outcome: Outcome) -> list[str]:
    """The footnote of starred savings: they were bought with everybody's time."""
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


def _notes(outcome: Outcome) -> list[str]:
    notes = []
    for entry in outcome.entries:
        if entry.claimed is not None:
            claim = figures.percent(_claimed_saving(outcome, entry))
            notes.append(
                f"Perseus reckons in units of {outcome.unit_s * 1e3:g} ms with fitted costs and "
                f"claims {claim}; shown is what its clocks really take."
            )
            notes.append(
                "Its plan is computed by a linear program of the same optimum: what it took "
                "says nothing about the published walk."
            )
    return notes


def _draw(path: Path, outcome: Outcome) -> None:
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
        plot.Row(entry.style, _SHAPES[entry.style], tuple(_line(outcome, entry)[:-1]))
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
        [about, *_late(outcome), *_late_there(outcome), *_notes(outcome)],
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
    against_j = contest.cluster_baseline_j(setting, outcome.fastest)
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
