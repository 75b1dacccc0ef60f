"""`joulecut plan JOB.yaml`: the clocks that use least energy within a deadline.

Computed from the job's profile alone, with no cluster: predicted, never measured.
"""

import json
import math
import time
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joulecut_cli import figures, lateness, plot, switchshown, timeline
from joulecut_cli.granularity import SHOWN, read_granularity
from joulecut_cli.jobfile import JobFile, read
from joulecut_cli.progress import Progress, solving
from joulecut_cli.stray import no_stray_output
from joulecut_cli.switchkeys import must_be_punctual
from joulecut_cli.target import critical, deadline_s, rounded_up, too_fast
from joulecut_controller.hardware import ANY_CLOCK_MHZ
from joulecut_controller.solve import switchmargin
from joulecut_controller.solve.jitter import Trials, judge_of
from joulecut_controller.solve.margin import Assured, assured
from joulecut_controller.solve.problem import Goal, Infeasible, NoCommonClock, Problem, Solution
from joulecut_controller.solve.schedule import baseline
from joulecut_controller.solve.solver import Solver, prepared, solve
from joulecut_controller.solve.switched import SwitchSearch
from joulecut_controller.solve.switching import Switched
from joulecut_controller.workload import KINDS_ALL, SENDS, Operation
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput

PROG = "joulecut plan"
ROUND_OFF = 1e-7  # of the energy: the bound is no sharper, so less is no saving but rounding


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
                search = SwitchSearch(problem, job.switching, granularity)
                kept, switched = _switched(options, job, search, goal)
            elif job.jitter is not None:
                kept = _assured(options, job, problem, goal)
            found = kept.plan if kept else switched.plan if switched else None
            if found is None:
                with no_stray_output():
                    found = solve(problem, goal, granularity, effort="thorough")
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
    options: Namespace, job: JobFile, search: SwitchSearch, goal: Goal
) -> tuple[Assured | None, Switched]:
    """The plan under the job's switching, with margin where times jitter. Raises BadInput."""
    if job.jitter is None:
        return None, search.solve(goal, effort="thorough")
    found = switchmargin.assured(
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
        Solver(problem, read_granularity(options.granularity)),
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
        "The clocks that use least energy within a deadline. Seconds; up to two minutes where "
        "the gap between plan and bound is hard to close.",
    )
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    parser.add_argument(
        "--max-slowdown", metavar="PCT", help="of the fastest iteration: 2 or 2%% (default 0)"
    )
    parser.add_argument("--deadline", metavar="SECONDS", help="for one iteration")
    parser.add_argument(
        "--granularity", default="computation", help=f"{SHOWN} (default computation)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="write a picture: .html or .png")
    parser.add_argument("--timeline", metavar="FILE", help="write a trace for Perfetto: .json")
    return parser.parse_args(argv)


def as_json(problem: Problem, goal: Goal, fastest: Solution, plan: Solution) -> dict[str, Any]:
    """The plan for programs; ratios and gaps are fractions, units are in the names."""
    return {
        "iteration_time_s": plan.iteration_time_s,
        "energy_j": plan.energy_j,
        "lower_bound_j": plan.lower_bound_j,
        "bound_granularity": plan.bound_granularity,
        "gap": plan.gap,
        "gap_of_saving": gap_of_saving(fastest, plan),
        "granularity": plan.granularity,
        "deadline_s": goal.deadline_s,
        "baseline": {
            "iteration_time_s": fastest.iteration_time_s,
            "energy_j": fastest.energy_j,
        },
        "solve_seconds": plan.solve_seconds,
        "operations": [
            {
                **_named(operation),
                "stage": operation.stage,
                "microbatch": operation.microbatch,
                "kind": operation.kind,
                "clock_mhz": option.clock_mhz or None,  # none asked: it costs the same at all
                "start_s": start_s,
                "duration_s": option.time_s,
                "energy_j": option.energy_j,
            }
            for operation, option, start_s in zip(
                problem.graph.operations, plan.clocks, plan.start_s, strict=True
            )
        ],
    }


def _named(operation: Operation) -> dict[str, str | int]:
    """What only some graphs have: an id, or parts of the model beside the first."""
    named: dict[str, str | int] = {"id": operation.name} if operation.name else {}
    return named | ({"chunk": operation.chunk} if operation.chunk else {})


def gap_of_saving(fastest: Solution, plan: Solution) -> float:
    """What share of the possible saving is not proven to be reached; 0 where none is possible."""
    possible_j = fastest.energy_j - plan.lower_bound_j
    if possible_j <= ROUND_OFF * fastest.energy_j:
        return 0.0
    return max(0.0, (plan.energy_j - plan.lower_bound_j) / possible_j)


def as_text(job: JobFile, problem: Problem, fastest: Solution, plan: Solution) -> list[str]:
    """What a person wants to know first, then the clocks of each stage."""

    def row(name: str, time_s: float | None, energy_j: float) -> list[str]:
        slower = None if time_s is None else time_s / fastest.iteration_time_s - 1
        return [
            name,
            figures.seconds(time_s),
            figures.percent(slower, signed=True),
            figures.joules(energy_j),
            figures.percent(energy_j / fastest.energy_j - 1, signed=True),
        ]

    head = ["", "iteration", "slower", "energy", "change"]
    rows = [
        row("baseline", fastest.iteration_time_s, fastest.energy_j),
        row("plan", plan.iteration_time_s, plan.energy_j),
        row("lower bound", None, plan.lower_bound_j),
    ]
    of_saving = gap_of_saving(fastest, plan)
    gap = (
        f"gap {plan.gap * 100:.2f} % of the energy, {of_saving * 100:.1f} % of the possible saving"
    )
    if plan.bound_granularity != plan.granularity:
        gap += f" (at most: the bound is for {plan.bound_granularity})"
    return [
        *job.title(plan.granularity),
        "",
        *figures.table(head, rows, frozenset(head[1:])),
        f"{gap}; solved in {plan.solve_seconds:.2f} s",
        "",
        *_stage_table(problem, plan),
    ]


def _stage_table(problem: Problem, plan: Solution) -> list[str]:
    """Clocks by stage and kind, and the share of time that a stage computes nothing."""
    operations = problem.graph.operations
    chosen = {
        o.kind for o, menu in zip(operations, problem.options, strict=True) if menu[0].clock_mhz
    }
    kinds = [kind for kind in KINDS_ALL if kind in chosen]
    head = ["stage", *(f"{kind} MHz" for kind in kinds), "waiting"]
    rows = []
    for stage, indices in enumerate(problem.graph.order):
        clocks = [
            [
                plan.clocks[i].clock_mhz
                for i in indices
                if operations[i].kind == kind and plan.clocks[i].clock_mhz != ANY_CLOCK_MHZ
            ]
            for kind in kinds
        ]
        busy_s = sum(plan.clocks[i].time_s for i in indices if operations[i].kind not in SENDS)
        waiting = figures.percent(1 - busy_s / plan.iteration_time_s)
        rows.append([str(stage), *map(_span, clocks), waiting])
    return figures.table(head, rows, frozenset(head))


def _span(clocks: list[int]) -> str:
    if not clocks:
        return figures.NONE
    low, high = min(clocks), max(clocks)
    if low == high:
        return str(low)
    return f"{low}-{high}, mean {sum(clocks) / len(clocks):.0f}"
