"""The plan of one job: solved and printed.

Computed from the job's profile alone, with no cluster: predicted, never measured.
"""

import json
import math
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from joulecut_cli import lateness, plot, switchshown, timeline
from joulecut_cli.jobfile import JobFile, read
from joulecut_cli.jobkeys import must_be_punctual
from joulecut_cli.planshown import as_json, as_text
from joulecut_cli.progress import Progress, solving
from joulecut_cli.prove import proved
from joulecut_cli.stray import no_stray_output
from joulecut_cli.target import critical, deadline_s, rounded_up, too_fast
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize import clock_change_margin
from joulecut_engine.optimize.clock_change_search import ClockChangeSearch
from joulecut_engine.optimize.clock_changes import Switched
from joulecut_engine.optimize.jitter import Trials, judge_of
from joulecut_engine.optimize.jitter_margin import Assured, Solves, assured
from joulecut_engine.optimize.problem import (
    Goal,
    Infeasible,
    NoCommonClock,
    Problem,
    Solution,
)
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver, prepared
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput


def run(options: Namespace, granularity: Granularity, prove_s: float) -> int:
    """Prints one plan, after `prove_s` more seconds of search. Raises BadInput."""
    picture, track = plot.target(options.plot), timeline.target(options.timeline)
    job = read(options.job)
    problem = job.problem()
    fastest = baseline(problem)
    goal = Goal(deadline_s(options, fastest.iteration_time_s))
    if job.switching is not None:
        must_be_punctual(str(options.job), problem, job.switching, granularity)
    began_s = time.perf_counter()
    kept: Assured | None = None
    switched: Switched | None = None
    try:
        with Progress(solving(f"planning {options.job.name}")) as progress:

            def show(plan: Solution) -> None:
                progress.note(f"{plan.energy_j:.9g} J, gap {plan.gap * 100:.3f} %")

            if job.switching is not None:
                search = ClockChangeSearch(problem, job.switching, granularity)
                kept, switched = _switched(options, job, search, goal, prove_s=prove_s, show=show)
            elif job.jitter is not None:
                kept = _assured(
                    options,
                    job,
                    problem,
                    goal,
                    granularity=granularity,
                    prove_s=prove_s,
                    show=show,
                )
            found = kept.plan if kept else switched.plan if switched else None
            if found is None:
                with no_stray_output():
                    found = _Proving(Solver(problem, granularity), prove_s, show).solve(goal)
    except Infeasible as none:
        if job.switching is not None:
            raise _too_fast_switching(options, none) from None
        raise too_fast(options, none, granularity, critical(problem, granularity)) from None
    except NoCommonClock as none:
        raise BadInput(f"{job.profile.source}: frequency", str(none), "one common clock") from None
    plan = replace(found, solve_seconds=time.perf_counter() - began_s)
    if picture is not None:
        behind = prepared(problem, granularity).points(plot.POINTS)
        title = f"{options.job.stem}: energy against iteration time"
        chart, rows = plot.of_frontier(title, fastest, (behind,), plan, goal.deadline_s)
        plot.write(picture, chart, ("", "iteration", "energy"), rows, job.title(granularity))
    if track is not None:
        timeline.write(track, problem, plan, job.title(granularity)[0])
    writer = _Writer(job, problem, goal, fastest, kept, switched)
    print(writer.json(plan) if options.json else writer.text(plan))
    return FINE


@dataclass(frozen=True, slots=True)
class _Writer:
    """Prints the plan, with its margin or its clock changes."""

    job: JobFile
    problem: Problem
    goal: Goal
    fastest: Solution
    kept: Assured | None
    switched: Switched | None

    def json(self, plan: Solution) -> str:
        shown = as_json(self.problem, self.goal, self.fastest, plan)
        more = {} if self.kept is None else lateness.as_json(self.kept)
        if self.switched is not None and self.job.switching is not None:
            free = self._free(self.switched)
            more |= switchshown.as_json(self.job.switching, self.switched, free)
            for operation, mhz in zip(shown["operations"], self.switched.asked_mhz, strict=True):
                operation["asked_mhz"] = mhz or None
        return json.dumps({**more, **shown}, allow_nan=False, indent=1)

    def text(self, plan: Solution) -> str:
        lines = [] if self.kept is None else ["", *lateness.as_text(self.kept, self.fastest)]
        if self.switched is not None:
            free = self._free(self.switched)
            lines += ["", *switchshown.as_text(self.switched, self.fastest, free)]
        return "\n".join([*as_text(self.job, self.problem, self.fastest, plan), *lines])

    def _free(self, switched: Switched) -> Solution:
        """The same granularity without limits, to compare with."""
        solver = Solver(self.problem, switched.plan.granularity)
        return solver.solve(Goal(max(self.goal.deadline_s, solver.fastest_s)))


def _too_fast_switching(options: Namespace, none: Infeasible) -> BadInput:
    """Unlike without switching, the fastest time is the fastest that was found."""
    flag = "--deadline" if options.deadline is not None else "--max-slowdown"
    if not math.isfinite(none.fastest_s):
        where = f"{options.job}: switching"
        return BadInput(where, "no plan that was found keeps these limits", "wider limits")
    at_least = f"{rounded_up(none.fastest_s)} s"
    what = (
        f"{none.deadline_s:.9g} s is below the fastest iteration time found under this "
        f"switching, {at_least}"
    )
    return BadInput(flag, what, f"at least {at_least}")


class _Proving:
    """A solver whose first answer is followed by so many seconds of search for a better one."""

    def __init__(self, solver: Solver, seconds: float, show: Callable[[Solution], None]) -> None:
        self._solver, self._seconds, self._show = solver, seconds, show

    @property
    def fastest_s(self) -> float:
        return self._solver.fastest_s

    def solve(self, goal: Goal, hints: Sequence[Solution] = ()) -> Solution:
        found, seconds, self._seconds = self._solver.solve(goal, hints), self._seconds, 0.0
        if not seconds:
            return found
        return proved(found, self._solver.improvements(goal, found), seconds, self._show)


def _switched(
    options: Namespace,
    job: JobFile,
    search: ClockChangeSearch,
    goal: Goal,
    *,
    prove_s: float,
    show: Callable[[Solution], None],
) -> tuple[Assured | None, Switched]:
    """The plan under the job's switching, with margin where times jitter. Raises BadInput."""
    if job.jitter is None:
        found = search.solve(goal)
        if prove_s:
            better = search.improvements(goal, found)
            found = proved(found, better, prove_s, lambda switched: show(switched.plan))
        return None, found
    kept = clock_change_margin.assured(
        search,
        goal,
        Trials(search.problem, job.jitter.noise),
        judge_of(search.problem, job.jitter.noise),
        statistic=job.jitter.hold,
        target_s=None if options.deadline is None else goal.deadline_s,
    )
    if options.deadline is not None and not kept.assured.met:
        raise lateness.too_late(kept.assured)
    return kept.assured, kept.found


def _assured(
    options: Namespace,
    job: JobFile,
    problem: Problem,
    goal: Goal,
    *,
    granularity: Granularity,
    prove_s: float,
    show: Callable[[Solution], None],
) -> Assured:
    """The plan that keeps its deadline although times vary. Raises BadInput, Infeasible."""
    assert job.jitter is not None
    noise, hold = job.jitter.noise, job.jitter.hold

    def with_margin(solver: Solves) -> Assured:
        return assured(
            problem,
            solver,
            goal,
            Trials(problem, noise),
            statistic=hold,
            target_s=None if options.deadline is None else goal.deadline_s,
            judge=judge_of(problem, noise),
        )

    solver = Solver(problem, granularity)
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
