"""The plan of one job: solved and printed.

Computed from the job's profile alone, with no cluster: predicted, never measured. What few plans
ask for (figures, timelines, jitter) is imported where it is used: a typed plan is mostly imports.
"""

import json
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from joulecut_cli import figures
from joulecut_cli.granularity import Asked
from joulecut_cli.jobfile import JobFile, read
from joulecut_cli.money import given_prices, money_json, prices_text, valued
from joulecut_cli.planshown import as_json, as_text
from joulecut_cli.progress import Progress, solving
from joulecut_cli.stray import no_stray_output
from joulecut_cli.target import critical, deadline_s, too_fast
from joulecut_engine.money import Iteration, worth
from joulecut_engine.optimize.problem import (
    Goal,
    Infeasible,
    NoCommonClock,
    Solution,
)
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput

if TYPE_CHECKING:
    from joulecut_engine.optimize.drawn_choices import Limit
    from joulecut_engine.optimize.jitter_margin import Assured, Solves

DRAWN_MAX = 2000  # operations: more cannot be told apart


def run(options: Namespace, word: Asked | None) -> int:
    """Prints one plan, after `prove` more seconds of search. Raises BadInput."""
    picture = track = None
    if options.plot is not None:
        from joulecut_cli import plot

        picture = plot.target(options.plot)
    if options.timeline is not None:
        from joulecut_cli import timeline

        track = timeline.target(options.timeline)
    job = read(options.job)
    asked = job.asked(word)
    granularity, limits = asked.granularity, job.limits(asked)
    problem = job.problem()
    fastest = baseline(problem)
    goal = Goal(deadline_s(options, fastest.iteration_time_s))
    began_s = time.perf_counter()
    kept: Assured | None = None
    try:
        with Progress(solving(f"planning {options.job.name}")) as progress:

            def show(plan: Solution) -> None:
                progress.note(f"{plan.energy_j:.9g} J, gap {plan.gap * 100:.3f} %")

            solver = Solver(problem, granularity, limits)
            if granularity == "changes":  # shown at once, and where the search begins
                with suppress(Infeasible, NoCommonClock):
                    show(Solver(problem, "gpu", beside=solver.computation).solve(goal, quick=True))
            if job.jitter is not None:
                kept = _assured(options, job, solver, goal, prove_s=options.prove, show=show)
                found = kept.plan
            else:
                with no_stray_output():
                    found = _Proving(solver, options.prove, show).solve(goal)
    except Infeasible as none:
        path = critical(problem, granularity)
        raise too_fast(options, none, granularity, path, fastest.iteration_time_s) from None
    except NoCommonClock as none:
        raise BadInput(f"{job.profile.source}: frequency", str(none), "one common clock") from None
    plan = replace(found, solve_seconds=time.perf_counter() - began_s)
    if picture is not None:
        from joulecut_engine.chart import of_frontiers, pipeline_panel

        behind = solver.points(plot.POINTS, known=(plan,))
        title = f"{options.job.stem}: energy against iteration time"
        chart = of_frontiers(title, fastest, (behind,), plan, goal.deadline_s)
        pipelines = (
            (fastest, f"fastest: {figures.seconds(fastest.iteration_time_s)}"),
            (plan, f"plan: {figures.seconds(plan.iteration_time_s)}"),
        )
        drawn = [pipeline_panel(problem, one, name) for one, name in pipelines]
        below = drawn if len(problem.graph.operations) <= DRAWN_MAX else ()
        plot.frontier(picture, chart, job.title(granularity), below)
    if track is not None:
        timeline.write(track, *timeline.of_plan(problem, plan, job.title(granularity)[0]))
    print(_written(options, job, goal, plan, kept, solver=solver))
    return FINE


def _written(
    options: Namespace,
    job: JobFile,
    goal: Goal,
    plan: Solution,
    kept: "Assured | None",
    *,
    solver: Solver,
) -> str:
    """The plan, with its margin and its worth."""
    prices = given_prices(options)
    if kept is not None:
        from joulecut_cli import lateness
    problem = solver.problem
    fastest, gpus = baseline(problem), len(problem.graph.order)
    default, own = (Iteration(one.iteration_time_s, one.energy_j) for one in (fastest, plan))
    point = solver.cheapest(prices)
    least = valued(default, [own, point], gpus, prices)
    found = worth(default, own, gpus, prices)
    if options.json:
        more = {} if kept is None else lateness.as_json(kept)
        shown = more | as_json(problem, goal, fastest, plan)
        shown["money"] = money_json(prices, plan=found, least_cost=least)
        return json.dumps(shown, allow_nan=False, indent=1)
    margin = [] if kept is None else ["", *lateness.as_text(kept, fastest)]
    asked = options.granularity is not None
    money = [
        "",
        f"worth {found}",
        f"energy and time together cost least at {least.point_text}",
        prices_text(prices),
    ]
    return "\n".join([*as_text(job, problem, fastest, plan, asked=asked), *margin, *money])


class _Proving:
    """A solver whose first answer is followed by so many seconds of search for a better one."""

    def __init__(self, solver: Solver, seconds: float, show: Callable[[Solution], None]) -> None:
        self._solver, self._seconds, self._show = solver, seconds, show

    @property
    def fastest_s(self) -> float:
        return self._solver.fastest_s

    def solve(self, goal: Goal, hints: Sequence[Solution] = (), *, quick: bool = False) -> Solution:
        seconds, self._seconds = self._seconds, 0.0
        found = self._solver.solve(goal, hints, quick=quick and not seconds)
        if not seconds:
            return found
        until_s = time.monotonic() + seconds
        self._show(found)
        for better in self._solver.improvements(goal, found):
            self._show(found := better)
            if time.monotonic() >= until_s:
                break
        return found

    def steadied(self, goal: Goal, limit: "Limit", found: Sequence[Solution]) -> Solution:
        return self._solver.steadied(goal, limit, found)


def _assured(
    options: Namespace,
    job: JobFile,
    solver: Solver,
    goal: Goal,
    *,
    prove_s: float,
    show: Callable[[Solution], None],
) -> "Assured":
    """The plan that keeps its deadline although times vary. Raises BadInput, Infeasible."""
    from joulecut_cli import lateness
    from joulecut_engine.optimize.jitter import Trials, judge_of
    from joulecut_engine.optimize.jitter_margin import assured

    assert job.jitter is not None
    noise, hold, problem = job.jitter.noise, job.jitter.hold, solver.problem

    def with_margin(solver: "Solves") -> "Assured":
        return assured(
            problem,
            solver,
            goal,
            Trials(problem, noise),
            statistic=hold,
            target_s=None if options.deadline is None else goal.deadline_s,
            judge=judge_of(problem, noise),
        )

    found = with_margin(solver)
    if prove_s:  # a better plan without margin may leave a dearer one with it
        again = with_margin(_Proving(solver, prove_s, show))
        bound_j = max(found.plan.lower_bound_j, again.plan.lower_bound_j)
        found = min(found, again, key=lambda one: (not one.met, one.plan.energy_j))
        bound_j = min(bound_j, found.plan.energy_j)
        found = replace(found, plan=replace(found.plan, lower_bound_j=bound_j))
    if options.deadline is not None and not found.met:
        raise lateness.too_late(found)
    return found
