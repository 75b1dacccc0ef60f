"""`joulecut plan JOB.yaml`: the clocks that use least energy within a deadline.

Computed from the job's profile alone, with no cluster: predicted, never measured.
"""

import json
import math
import time
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from joulecut_cli import lateness, plot, switchshown, timeline
from joulecut_cli.granularity import SHOWN, read_granularity
from joulecut_cli.jobfile import JobFile, read
from joulecut_cli.planshown import as_json, as_text
from joulecut_cli.progress import Progress, solving
from joulecut_cli.stray import no_stray_output
from joulecut_cli.switchkeys import must_be_punctual
from joulecut_cli.target import critical, deadline_s, rounded_up, too_fast
from joulecut_engine.optimize import clock_change_margin
from joulecut_engine.optimize.jitter import Trials, judge_of
from joulecut_engine.optimize.jitter_margin import Assured, assured
from joulecut_engine.optimize.problem import (
    Effort,
    Goal,
    Infeasible,
    NoCommonClock,
    Problem,
    Solution,
)
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver, prepared, solve
from joulecut_engine.optimize.clock_change_search import ClockChangeSearch
from joulecut_engine.optimize.clock_changes import Switched
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput

PROG = "joulecut plan"


def run(argv: list[str]) -> int:
    """Prints one plan. Raises BadInput."""
    options = _parse(argv)
    granularity = read_granularity(options.granularity)
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
        with Progress(solving(f"planning {options.job.name}")):
            if job.switching is not None:
                search = ClockChangeSearch(problem, job.switching, granularity)
                kept, switched = _switched(options, job, search, goal)
            elif job.jitter is not None:
                kept = _assured(options, job, problem, goal)
            found = kept.plan if kept else switched.plan if switched else None
            if found is None:
                with no_stray_output():
                    found = solve(problem, goal, granularity, effort=_effort(options, "thorough"))
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
    """What is printed: the plan, and what jitter or switching makes of it."""

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


def _switched(
    options: Namespace, job: JobFile, search: ClockChangeSearch, goal: Goal
) -> tuple[Assured | None, Switched]:
    """The plan under the job's switching, with margin where times jitter. Raises BadInput."""
    if job.jitter is None:
        return None, search.solve(goal, effort=_effort(options, "thorough"))
    found = clock_change_margin.assured(
        search,
        goal,
        Trials(search.problem, job.jitter.noise),
        judge_of(search.problem, job.jitter.noise),
        statistic=job.jitter.hold,
        target_s=None if options.deadline is None else goal.deadline_s,
    )
    if options.deadline is not None and not found.assured.met:
        raise lateness.too_late(found.assured)
    return found.assured, found.found


def _assured(options: Namespace, job: JobFile, problem: Problem, goal: Goal) -> Assured:
    """The plan that keeps its deadline although times vary. Raises BadInput, Infeasible."""
    assert job.jitter is not None
    found = assured(
        problem,
        Solver(problem, read_granularity(options.granularity), _effort(options, "usual")),
        goal,
        Trials(problem, job.jitter.noise),
        statistic=job.jitter.hold,
        target_s=None if options.deadline is None else goal.deadline_s,
        judge=judge_of(problem, job.jitter.noise),
    )
    if options.deadline is not None and not found.met:
        raise lateness.too_late(found)
    return found


def _parse(argv: list[str]) -> Namespace:
    parser = Parser(
        PROG,
        "The clocks that use least energy within a deadline. Seconds; some minutes where the gap "
        "between plan and bound is hard to close.",
    )
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    parser.add_argument(
        "--max-slowdown", metavar="PCT", help="of the fastest iteration: 2 or 2%% (default 0)"
    )
    parser.add_argument("--deadline", metavar="SECONDS", help="for one iteration")
    parser.add_argument(
        "--granularity", default="computation", help=f"{SHOWN} (default computation)"
    )
    parser.add_argument(
        "--effort",
        choices=get_args(Effort),
        help="how long to look and to prove (default thorough; usual where the job has jitter)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="write a picture: .html or .png")
    parser.add_argument("--timeline", metavar="FILE", help="write a trace for Perfetto: .json")
    return parser.parse_args(argv)


def _effort(options: Namespace, unasked: Effort) -> Effort:
    asked: Effort | None = options.effort
    return asked or unasked
