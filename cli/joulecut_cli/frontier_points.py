"""Energy against iteration time of one job, from fastest to cheapest: drawn and printed.

Computed from the job's profile alone, with no cluster: predicted, never measured.
"""

import json
import time
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from joulecut_cli import figures, plot
from joulecut_cli.granularity import ALL, Asked
from joulecut_cli.jobfile import JobFile, read
from joulecut_cli.money import given_prices, money_json, prices_text, valued
from joulecut_cli.progress import Progress, solving
from joulecut_engine.chart import of_frontiers
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.money import Iteration, Prices, Worth
from joulecut_engine.optimize.problem import Goal, NoCommonClock, Problem, Solution
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput

COMPARED = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)  # slowdowns people ask for


def run(options: Namespace, word: Sequence[Asked] | None) -> int:
    """Prints the frontier of one job. Raises BadInput."""
    picture = plot.target(options.plot)
    job = read(options.job)
    problem = job.problem()
    asked = word or (job.asked(None),)
    # As text several are compared at a few deadlines; all their points take many times as long.
    compares = len(asked) > 1 and not options.json
    draws = picture is not None or not compares
    drawn: dict[Granularity, tuple[Solution, ...]] = {}
    rows: dict[Granularity, tuple[Solution, ...]] = {}
    began_s = time.perf_counter()
    try:
        with Progress(solving(f"frontier of {options.job.name}")) as progress:
            frontiers, refused = _prepared(job, problem, asked)
            shared_s = _shared_s(frontiers.values(), options.points) if draws else []
            for number, (granularity, frontier) in enumerate(frontiers.items()):
                advance = partial(_advance, progress, number, len(frontiers))
                if compares:
                    rows[granularity] = _compared(frontier, advance)
                if draws:
                    drawn[granularity] = frontier.points(options.points, advance, shared_s)
    except NoCommonClock as none:
        raise BadInput(f"{job.profile.source}: frequency", str(none), "one common clock") from None
    seconds = time.perf_counter() - began_s
    shown_as = ALL if len(asked) > 1 else asked[0].granularity
    if picture is not None:
        title = f"{options.job.stem}: energy against iteration time"
        chart = of_frontiers(title, baseline(problem), tuple(drawn.values()))
        plot.frontier(picture, chart, job.title(shown_as))
    prices = given_prices(options)
    least = {
        granularity: _least(frontiers[granularity], points, prices)
        for granularity, points in (drawn or rows).items()
    }
    if options.json:
        shown = _json(drawn, seconds, least, prices, several=len(asked) > 1)
        shown |= {"refused": refused} if refused else {}
        print(json.dumps(shown, allow_nan=False, indent=1))
    elif compares:
        print("\n".join(_comparison(job, baseline(problem), rows, seconds)))
        for granularity, why in refused.items():
            print(f"{granularity}: {why}")
    else:
        print("\n".join(_text(job, baseline(problem), drawn[asked[0].granularity], seconds)))
    if not options.json:
        for granularity, one in least.items():
            at = f"energy and time together cost least at {one.point_text}, worth {one}"
            print(f"{granularity}: {at}" if len(least) > 1 else at)
        print(prices_text(prices))
    return FINE


def _least(solver: Solver, points: Sequence[Solution], prices: Prices) -> Worth:
    """The plan where energy and GPU time together cost least."""
    fastest = baseline(solver.problem)
    drawn = [Iteration(one.iteration_time_s, one.energy_j) for one in points]
    drawn.append(solver.cheapest(prices))
    default = Iteration(fastest.iteration_time_s, fastest.energy_j)
    return valued(default, drawn, len(solver.problem.graph.order), prices)


def _advance(progress: Progress, number: int, of: int, done: int, points: int) -> None:
    """Points of all frontiers together."""
    progress.advance(number * points + done, of * points)


def _compared(frontier: Solver, progress: Callable[[int, int], None]) -> tuple[Solution, ...]:
    """The plans at the slowdowns of the comparison, from the least that the granularity allows."""
    fastest_s, found = baseline(frontier.problem).iteration_time_s, list[Solution]()
    for number, slowdown in enumerate(COMPARED):
        deadline_s = fastest_s * (1 + slowdown)
        if deadline_s >= frontier.fastest_s:
            found.append(frontier.at(Goal(deadline_s)))
        progress(number + 1, len(COMPARED))
    return tuple(found)


def _shared_s(frontiers: Collection[Solver], points: int) -> list[float]:
    """Deadlines that several frontiers share: what one knows of them the others then use."""
    if len(frontiers) < 2:
        return []
    ends_s = [s for one in frontiers for s in (one.fastest_s, one.least.iteration_time_s)]
    step_s = (max(ends_s) - min(ends_s)) / (points - 1)
    return [min(ends_s) + k * step_s for k in range(points)]


def _prepared(
    job: JobFile, problem: Problem, asked: Sequence[Asked]
) -> tuple[dict[Granularity, Solver], dict[Granularity, str]]:
    """What can be asked; of several, why one cannot. Raises NoCommonClock for a single one."""
    frontiers, refused = dict[Granularity, Solver](), dict[Granularity, str]()
    for one in asked:
        try:
            beside = next((solver.computation for solver in frontiers.values()), None)
            frontiers[one.granularity] = Solver(problem, one.granularity, job.limits(one), beside)
        except NoCommonClock as none:
            if len(asked) == 1:
                raise
            refused[one.granularity] = str(none)
    return frontiers, refused


def _json(
    found: Mapping[Granularity, Sequence[Solution]],
    seconds: float,
    least: Mapping[Granularity, Worth],
    prices: Prices,
    *,
    several: bool,
) -> dict[str, Any]:
    """One granularity as such; of several one object each, by name."""
    each: dict[str, Any] = {
        granularity: {
            "points": [
                {
                    "iteration_time_s": point.iteration_time_s,
                    "energy_j": point.energy_j,
                    "lower_bound_j": point.lower_bound_j,
                }
                for point in points
            ],
            "money": money_json(prices, least_cost=least[granularity]),
        }
        for granularity, points in found.items()
    }
    if several:
        return {**each, "solve_seconds": seconds}
    ((granularity, drawn),) = each.items()
    return {"granularity": granularity, **drawn, "solve_seconds": seconds}


def _text(
    job: JobFile, fastest: Solution, found: tuple[Solution, ...], seconds: float
) -> list[str]:
    head = ["iteration", "slower", "energy", "change", "gap"]
    rows = [
        [
            figures.seconds(point.iteration_time_s),
            figures.percent(point.iteration_time_s / fastest.iteration_time_s - 1, signed=True),
            figures.joules(point.energy_j),
            figures.percent(point.energy_j / fastest.energy_j - 1, signed=True),
            f"{point.gap * 100:.2f} %",
        ]
        for point in found
    ]
    against = f"the gap is against a bound on {found[0].bound_granularity}"
    baseline_j = figures.joules(fastest.energy_j)
    return [
        *job.title(found[0].granularity),
        f"baseline {figures.seconds(fastest.iteration_time_s)}, {baseline_j}",
        "",
        *figures.table(head, rows, frozenset(head)),
        "",
        f"{len(found)} points in {seconds:.2f} s; {against}",
        *_left_out(job),
    ]


def _comparison(
    job: JobFile,
    fastest: Solution,
    found: Mapping[Granularity, Sequence[Solution]],
    seconds: float,
) -> list[str]:
    """What each granularity saves within the same slowdowns, and what none can exceed."""
    head = ["at most slower", *found, "no plan saves more than"]
    rows = []
    for number, slowdown in enumerate(COMPARED):
        at = number - len(COMPARED)  # a granularity with a slower fastest plan has the last rows
        row = [points[at] if -at <= len(points) else None for points in found.values()]
        bound_j = max(s.lower_bound_j for s in row if s and s.bound_granularity == "computation")
        cells = [_saved(fastest, None if s is None else s.energy_j) for s in row]
        rows.append([figures.percent(slowdown), *cells, _saved(fastest, bound_j)])
    gaps = (
        f"{granularity} {max(point.gap for point in points) * 100:.2f} %"
        for granularity, points in found.items()
        if points
    )
    return [
        *job.title(ALL),
        f"baseline {figures.seconds(fastest.iteration_time_s)}, {figures.joules(fastest.energy_j)}",
        "",
        "saved by clocks that change",
        *figures.table(head, rows, frozenset(head)),
        "",
        f"gap at most: {', '.join(gaps)}",
        f"solved in {seconds:.2f} s; --json and --plot have all points",
        *_left_out(job),
    ]


def _left_out(job: JobFile) -> list[str]:
    left_out = job.left_out("jitter")
    return [left_out] if left_out else []


def _saved(fastest: Solution, energy_j: float | None) -> str:
    return figures.percent(None if energy_j is None else 1 - energy_j / fastest.energy_j)
