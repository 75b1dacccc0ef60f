"""A rate that a Prometheus knows: the expression, and the stretch of time that it averages over.

An iteration time counts only for the clocks that were in force all the time it was measured in. So
the ranges of the expression have to show how far back it looks. Pure.
"""

import re
from dataclasses import dataclass

from joulecut_wire.duration import parse_s
from joulecut_wire.quantity import Fault, shown, text

RANGE_S_MIN = 10.0  # shorter ranges hold less than two scrapes
RANGE_S_MAX = 600.0  # three of them are how long a job may be silent at its clocks
RANGES = "ranges from 10s to 10m, like rate(steps_total[1m])"
PRESETS_GONE = ("vllm", "sglang", "dynamo")
POWER_SIGNATURE = "power-signature"  # a source that went; the word is still read
NO_POWER_SIGNATURE = (
    "slo.rate: power-signature has no effect: power no longer gives a rate; reports of the job, "
    "a log or a Prometheus do (docs/integrations.md)"
)
_QUOTED = re.compile(r"""("|')(?:\\.|(?!\1).)*\1|`[^`]*`""")
_RANGE = re.compile(r"\[([^\]]*)\]")
_SHIFTED = re.compile(r"@|\boffset\b")
# What gives seconds where nothing is divided by it: quantiles, and names of times.
_SECONDS = re.compile(
    r"\bhistogram_(?:quantile|avg)\s*\(|\b\w*(?:seconds|_ms|milliseconds|duration)(?:_sum|_total)?\b"
)
_HISTOGRAM_COUNT = re.compile(r"\bhistogram_count\s*\(\s*rate\s*\([^()]*\)\s*\)")
# What gives a count over its range, where nothing divides it by the range.
_COUNT = re.compile(r"\b(?:increase|i?delta|changes|resets|(?:count|sum)_over_time)(?=\s*\()")
_BRACKETS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True)
class RateQuery:
    """`promql` yields iterations per second, a mean over at most the last `range_s` seconds."""

    promql: str
    range_s: float


def rate_query(promql: str) -> RateQuery:
    """The query of an expression. Raises Fault."""
    plain = _QUOTED.sub("", promql)
    if not _is_closed(plain):
        raise Fault("a bracket or a quote is not closed", RANGES)
    if _SHIFTED.search(plain):
        raise Fault("offset and @ show another time than now", RANGES)
    if (count := _COUNT.search(plain)) and "/" not in plain:
        what = f"{count[0]} counts over its range, and a rate is iterations per second"
        raise Fault(what, "rate(...), or divided by the seconds of its range")
    if seconds := _SECONDS.search(_HISTOGRAM_COUNT.sub("", plain.partition("/")[0])):
        what = f"{seconds[0].strip('(')} gives a time, and a rate is iterations per second"
        raise Fault(what, "a count over its time, like rate(x_seconds_count[1m])")
    ranges = _RANGE.findall(plain)
    if not ranges:
        what = "no range shows how far back the expression looks"
        raise Fault(what, f"an expression with {RANGES}")
    return RateQuery(promql, max(map(_seconds, ranges)))


def read_rate(value: object) -> str | RateQuery:
    """`hook`, or a mapping with an expression."""
    if isinstance(value, dict) and value.get("promql") in PRESETS_GONE:
        allowed = "its expression, as in docs/integrations.md#a-rate-from-prometheus"
        raise Fault(f"the preset {value['promql']} is gone", allowed)
    if isinstance(value, dict) and set(value) == {"promql"}:
        return rate_query(text(4096, "an expression")(value["promql"]))
    if isinstance(value, str) and value in {"hook", POWER_SIGNATURE}:
        return value
    allowed = "hook, {promql: EXPRESSION}"
    raise Fault(f"{shown(value)} is not a source of a rate", allowed)


def _is_closed(plain: str) -> bool:
    """Whether every bracket of an expression without quoted text has its other half."""
    opened: list[str] = []
    for one in plain:
        if one in _BRACKETS.values():
            opened.append(one)
        elif one in _BRACKETS and (not opened or opened.pop() != _BRACKETS[one]):
            return False
    return not opened and not set(plain) & set("\"'`")


def _seconds(written: str) -> float:
    """Of one range; subqueries and what is not a time are refused."""
    found = parse_s(written.strip())
    if found is None or not found[1] or not RANGE_S_MIN <= found[0] <= RANGE_S_MAX:
        raise Fault(f"range [{written}]", RANGES)
    return found[0]
