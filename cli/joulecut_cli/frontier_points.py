"""Energy against iteration time of one job, from fastest to cheapest: drawn and printed.

Computed from the job's profile alone, with no cluster: predicted, never measured.
"""

import json
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joulecut_cli import figures, plot
from joulecut_cli.granularity import ALL
from joulecut_cli.jobfile import JobFile, read
from joulecut_cli.jobkeys import must_be_punctual, too_late
from joulecut_cli.progress import Progress, solving
from joulecut_cli.prove import proved
from joulecut_cli.switchshown import Limited
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.clock_change_search import ClockChangeSearch
from joulecut_engine.optimize.clock_changes import Switched, Switching
from joulecut_engine.optimize.frontier import Frontier
from joulecut_engine.optimize.problem import Goal, Infeasible, NoCommonClock, Problem, Solution
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import prepared
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput

COMPARED = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)  # slowdowns people ask for


def run(
    options: Namespace, granularities: Sequence[Granularity], points: int, prove_s: float
) -> int:
    """Prints the frontier of one job, after `prove_s` more seconds of search. Raises BadInput."""
    picture = plot.target(options.plot)
    job = read(options.job)
    problem = job.problem()
    drawn: dict[Granularity, tuple[Solution, ...]] = {}
    switching = job.switching if len(granularities) == 1 else None
    if switching is not None:
        must_be_punctual(str(options.job), problem, switching, granularities[0])
    began_s = time.perf_counter()
    try:
        with Progress(solving(f"frontier of {options.job.name}")) as progress:
            frontiers, refused = _prepared(problem, granularities)
            for granularity, frontier in frontiers.items():
                if switching is None:
                    found = frontier.points(points, progress.advance)
                    drawn[granularity] = _proved(
                        frontier, found, prove_s / len(frontiers), progress
                    )
                else:
                    search = ClockChangeSearch(problem, switching, granularity)
                    drawn[granularity] = _drawn_limited(search, frontier, points, progress.advance)
            limited = None
            if job.switching is not None and len(granularities) > 1:
                limited = _limited(problem, job.switching)
    except Infeasible:
        where = f"{options.job}: switching"
        raise BadInput(where, "no plan that was found keeps these limits", "wider limits") from None
    except NoCommonClock as none:
        raise BadInput(f"{job.profile.source}: frequency", str(none), "one common clock") from None
    seconds = time.perf_counter() - began_s
    if picture is not None:
        title = f"{options.job.stem}: energy against iteration time"
        chart, rows = plot.of_frontier(title, baseline(problem), tuple(drawn.values()))
        plot.write(
            picture, chart, ("", "iteration", "energy"), rows, job.title(options.granularity)
        )
    if options.json:
        shown = _json(drawn, limited, seconds, several=len(granularities) > 1)
        shown |= {"refused": refused} if refused else {}
        print(json.dumps(shown, allow_nan=False, indent=1))
    elif len(granularities) > 1:
        fastest = baseline(problem)
        print("\n".join(_comparison(job, fastest, frontiers, drawn, seconds, limited=limited)))
        for granularity, why in refused.items():
            print(f"{granularity}: {why}")
    else:
        print("\n".join(_text(job, baseline(problem), drawn[granularities[0]], seconds)))
    return FINE


def _proved(
    frontier: Frontier, found: tuple[Solution, ...], seconds: float, progress: Progress
) -> tuple[Solution, ...]:
    if not seconds:
        return found

    def show(points: tuple[Solution, ...]) -> None:
        progress.note(f"gap at most {max(point.gap for point in points) * 100:.3f} %")

    return proved(found, frontier.improvements(found), seconds, show)


def _prepared(
    problem: Problem, granularities: Sequence[Granularity]
) -> tuple[dict[Granularity, Frontier], dict[Granularity, str]]:
    """What can be asked; of several, why one cannot. Raises NoCommonClock for a single one."""
    frontiers: dict[Granularity, Frontier] = {}
    refused: dict[Granularity, str] = {}
    for granularity in granularities:
        try:
            frontiers[granularity] = prepared(problem, granularity)
        except NoCommonClock as none:
            if len(granularities) == 1:
                raise
            refused[granularity] = str(none)
    return frontiers, refused


def _drawn_limited(
    search: ClockChangeSearch,
    frontier: Frontier,
    points: int,
    progress: Callable[[int, int], None],
) -> tuple[Solution, ...]:
    """Under the job's switching, up to where free switching would have nothing left to gain."""
    until_s = frontier.least().iteration_time_s
    return tuple(found.plan for found in search.points(points, until_s, progress))


def _limited(problem: Problem, switching: Switching) -> Limited:
    """Plans under the job's switching, within the slowdowns that are compared."""
    refused = too_late(problem, switching, "computation")
    if refused is not None:
        return Limited((None,) * len(COMPARED), refused)
    search = ClockChangeSearch(problem, switching)
    fastest_s = baseline(problem).iteration_time_s
    found: list[Switched | None] = []
    for slowdown in COMPARED:
        before = [plan for plan in found[-1:] if plan is not None]
        try:
            found.append(search.solve(Goal(fastest_s * (1 + slowdown)), before))
        except Infeasible:
            found.append(None)
    return Limited(tuple(found))


def _json(
    found: Mapping[Granularity, Sequence[Solution]],
    limited: Limited | None,
    seconds: float,
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
            ]
        }
        for granularity, points in found.items()
    }
    if several:
        if limited is not None:
            each["switching"] = limited.as_json()
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
    frontiers: Mapping[Granularity, Frontier],
    drawn: Mapping[Granularity, Sequence[Solution]],
    seconds: float,
    *,
    limited: Limited | None,
) -> list[str]:
    """What each granularity saves within the same slowdowns, and what none can exceed."""
    few = [] if limited is None else ["computation, switching"]
    head = ["at most slower", *frontiers, *few, "no plan saves more than"]
    rows = []
    for k, slowdown in enumerate(COMPARED):
        goal = Goal(fastest.iteration_time_s * (1 + slowdown))
        found = [_within(frontier, goal) for frontier in frontiers.values()]
        bound_j = max(s.lower_bound_j for s in found if s and s.bound_granularity == "computation")
        cells = [_saved(fastest, None if s is None else s.energy_j) for s in found]
        if limited is not None:
            switched = limited.plans[k]
            cells.append(_saved(fastest, None if switched is None else switched.plan.energy_j))
        rows.append([figures.percent(slowdown), *cells, _saved(fastest, bound_j)])
    ends = [
        f"{granularity}: {len(points)} points from {figures.seconds(points[0].iteration_time_s)} "
        f"to {figures.seconds(points[-1].iteration_time_s)}, "
        f"gap at most {max(point.gap for point in points) * 100:.2f} %"
        for granularity, points in drawn.items()
    ]
    return [
        *job.title(ALL),
        f"baseline {figures.seconds(fastest.iteration_time_s)}, {figures.joules(fastest.energy_j)}",
        "",
        "saved by clocks that change",
        *figures.table(head, rows, frozenset(head)),
        "",
        *ends,
        *([] if limited is None else limited.as_text()),
        f"solved in {seconds:.2f} s",
        *_left_out(job),
    ]


def _left_out(job: JobFile) -> list[str]:
    left_out = job.left_out("jitter")
    return [left_out] if left_out else []


def _within(frontier: Frontier, goal: Goal) -> Solution | None:
    return frontier.at(goal) if goal.deadline_s >= frontier.fastest_s else None


def _saved(fastest: Solution, energy_j: float | None) -> str:
    return figures.percent(None if energy_j is None else 1 - energy_j / fastest.energy_j)
