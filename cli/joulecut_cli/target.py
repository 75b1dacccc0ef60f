"""How long an iteration may take, from the flags of `joulecut plan`."""

import math
import re
from argparse import Namespace
from collections import Counter

from joulecut_engine.graph import longest_path
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.problem import Goal, Infeasible, Problem
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver
from joulecut_wire.errors import BadInput

_NUMBER = re.compile(r"\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
PERCENT_MAX = 1e6  # ten thousand times slower: a mistake
_WITH = {"gpu": "one clock per GPU", "edge": "two clocks per GPU", "changes": "few clock changes"}
STAGES_NAMED = 3  # on a critical path, in a complaint of one line
SECONDS_MAX = 1e9  # thirty years


def deadline_s(options: Namespace, baseline_s: float) -> float:
    """From --max-slowdown or --deadline; neither means no slowdown. Raises BadInput."""
    slowdown, seconds = options.max_slowdown, options.deadline
    if slowdown is not None and seconds is not None:
        raise BadInput("--max-slowdown and --deadline", "both given", "one of them, or none")
    if seconds is not None:
        allowed = f"seconds above 0, up to {SECONDS_MAX:g}"
        value = _number("--deadline", seconds, SECONDS_MAX, allowed)
        if value <= 0.0:
            raise BadInput("--deadline", f'"{seconds}" is out of range', allowed)
        return value
    if slowdown is None:
        return baseline_s
    allowed = f"a percentage from 0 to {PERCENT_MAX:g}, like 2 or 2%"
    bare = slowdown.strip().removesuffix("%")
    return baseline_s * (1.0 + _number("--max-slowdown", bare, PERCENT_MAX, allowed) / 100.0)


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


def _number(flag: str, word: str, high: float, allowed: str) -> float:
    text = word.strip()
    if not _NUMBER.fullmatch(text):
        raise BadInput(flag, f'"{word}" is not a number from 0 up', allowed)
    value = float(text)
    if not value <= high:
        raise BadInput(flag, f'"{word}" is out of range', allowed)
    return value


def rounded_up(seconds: float) -> str:
    """Nine significant digits, never less than the number itself."""
    text = f"{seconds:.9g}"
    if float(text) >= seconds:
        return text
    step = 10.0 ** (math.floor(math.log10(seconds)) - 8)
    return f"{seconds + step:.9g}"
