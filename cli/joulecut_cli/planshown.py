"""A plan in words and as JSON, for the command `joulecut plan`.

Every figure is of the profile alone: predicted, never measured.
"""

from dataclasses import asdict
from itertools import groupby
from typing import Any

from joulecut_cli import figures
from joulecut_cli.jobfile import JobFile
from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ
from joulecut_engine.graph.pipeline import KINDS_ALL, SENDS, Operation
from joulecut_engine.optimize.change_timing import changes_of
from joulecut_engine.optimize.problem import Goal, Problem, Solution

RUNNING = "a running job gets a few changes of clocks an iteration: --granularity changes"
ROUND_OFF = 1e-7  # of the energy: the bound is no sharper, so less is no saving but rounding


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
        **_changes(problem, plan),
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


def _changes(problem: Problem, plan: Solution) -> dict[str, Any]:
    """With granularity `changes` the clocks of each stage from the iteration's start on."""
    if plan.limits is None:
        return {}
    changes = [change._asdict() for change in changes_of(problem, plan)]
    return {"limits": asdict(plan.limits), "changes": changes}


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


def as_text(
    job: JobFile, problem: Problem, fastest: Solution, plan: Solution, *, asked: bool
) -> list[str]:
    """What a person wants to know first, then the clocks of each stage. `asked` is whether the
    command line names the granularity.
    """

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
        *([] if asked or plan.granularity != "computation" else [RUNNING]),
        "",
        *figures.table(head, rows, frozenset(head[1:])),
        f"{gap}; solved in {plan.solve_seconds:.2f} s",
        "",
        *_stage_table(problem, plan),
        *_change_lines(problem, plan),
    ]


def _change_lines(problem: Problem, plan: Solution) -> list[str]:
    """With granularity `changes`: when each GPU changes its clock."""
    if plan.limits is None:
        return []
    lines = ["", "clock changes from the start of the iteration"]
    for stage, group in groupby(changes_of(problem, plan), key=lambda change: change.stage):
        first, *later = group
        steps = "".join(f", {change.clock_mhz} from {change.offset_s:.6g} s" for change in later)
        lines.append(f"stage {stage}: {first.clock_mhz} MHz{steps}")
    return lines


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
