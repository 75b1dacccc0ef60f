"""How long an iteration may take, from the flags of `joulecut plan`."""

import math
import re
from argparse import Namespace

from joulecut_controller.solve.problem import Infeasible
from joulecut_controller.workload import Granularity
from joulecut_wire.errors import BadInput

_NUMBER = re.compile(r"\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
PERCENT_MAX = 1e6  # ten thousand times slower: nobody means that
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


def too_fast(options: Namespace, none: Infeasible, granularity: Granularity) -> BadInput:
    """A deadline below the fastest time; names that time, rounded up so that it can be kept."""
    at_least = f"{_rounded_up(none.fastest_s)} s"
    what = f"{none.deadline_s:.9g} s is below the fastest possible iteration time, {at_least}"
    if granularity == "gpu":
        what += " with one clock per GPU"
    flag = "--deadline" if options.deadline is not None else "--max-slowdown"
    return BadInput(flag, what, f"at least {at_least}")


def _number(flag: str, word: str, high: float, allowed: str) -> float:
    text = word.strip()
    if not _NUMBER.fullmatch(text):
        raise BadInput(flag, f'"{word}" is not a number from 0 up', allowed)
    value = float(text)
    if not value <= high:
        raise BadInput(flag, f'"{word}" is out of range', allowed)
    return value


def _rounded_up(seconds: float) -> str:
    """Nine significant digits, never less than the number itself."""
    text = f"{seconds:.9g}"
    if float(text) >= seconds:
        return text
    step = 10.0 ** (math.floor(math.log10(seconds)) - 8)
    return f"{seconds + step:.9g}"
