"""How long an iteration may take, from the flags of `joulecut plan`."""

import math
from argparse import Namespace
from collections import Counter

from joulecut_engine.graph import longest_path
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.problem import Goal, Infeasible, Problem
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver
from joulecut_wire.errors import BadInput

_WITH = {"gpu": "one clock per GPU", "changes": "few clock changes"}
STAGES_NAMED = 3  # on a critical path, in a complaint of one line


def deadline_s(options: Namespace, baseline_s: float) -> float:
    """From --max-slowdown (a fraction) or --deadline; neither means no slowdown."""
    if options.deadline is not None:
        return float(options.deadline)
    return baseline_s * (1.0 + (options.max_slowdown or 0.0))


def too_fast(
    options: Namespace,
    none: Infeasible,
    granularity: Granularity,
    critical_path: str,
    baseline_s: float,
) -> BadInput:
    """A deadline below the fastest time; names that time, rounded up so that it can be kept,
    the path that takes it, and the command that asks for it."""
    at_least = f"{rounded_up(none.fastest_s)} s"
    what = f"{none.deadline_s:.9g} s is below the fastest possible iteration time, {at_least}"
    if granularity in _WITH:
        what += f" with {_WITH[granularity]}"
    what += f" ({critical_path})"
    flag, asked, allowed = "--deadline", rounded_up(none.fastest_s), f"at least {at_least}"
    if options.deadline is None:
        flag, asked = "--max-slowdown", f"{rounded_up((none.fastest_s / baseline_s - 1) * 100)}%"
        allowed = f"at least {asked}"
    command = f"joulecut plan {options.job} --granularity {options.granularity or granularity}"
    allowed += f" ({command} {flag} {asked})"
    finer = "" if granularity == "computation" else ", or --granularity computation"
    return BadInput(flag, what, f"{allowed}{finer}")


def critical(problem: Problem, granularity: Granularity) -> str:
    """The stages of a critical path, which decides the fastest time; most operations first."""
    fastest = baseline(problem)
    if granularity != "computation":  # a clock for many is the fastest of few
        solver = Solver(problem, granularity)
        fastest = solver.solve(Goal(solver.fastest_s))
    path = longest_path(problem.graph, [option.time_s for option in fastest.clocks])
    counts = Counter(problem.graph.operations[i].stage for i in path)
    shown = [f"{count} on stage {stage}" for stage, count in counts.most_common(STAGES_NAMED)]
    if len(counts) > STAGES_NAMED:
        rest = sum(counts.values()) - sum(n for _, n in counts.most_common(STAGES_NAMED))
        shown.append(f"{rest} on {len(counts) - STAGES_NAMED} more")
    return f"critical path of {len(path)} operations: {', '.join(shown)}"


def rounded_up(seconds: float, digits: int = 9) -> str:
    """So many significant digits, never less than the number itself."""
    text = f"{seconds:.{digits}g}"
    if float(text) >= seconds:
        return text
    step = 10.0 ** (math.floor(math.log10(seconds)) + 1 - digits)
    return f"{seconds + step:.{digits}g}"
