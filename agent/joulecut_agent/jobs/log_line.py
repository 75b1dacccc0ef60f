"""Iteration time in a line of a training log; pure.

A wrong rate is worse than none: no time counts before some lines have come at the pace that they
say. A number of another unit, of a part of an iteration or of several comes at another pace.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from joulecut_wire.duration import ITERATION_S_MAX
from joulecut_wire.errors import BadInput

# Forms as the frameworks' sources and public logs have them.
PRESETS = {
    # Megatron-LM and GPT-NeoX: a mean over the logged iterations; BLOOM's branch in seconds.
    "megatron": (
        r"iteration\s+(?P<iteration>\d+)/.*?elapsed time per iteration "
        r"\((?:ms\):\s*(?P<ms>[\d.,]+)|s\):\s*(?P<s>[\d.,]+))"
    ),
    # NeMo 1 (a bar) and NeMo 2 (a line).
    "nemo": (
        r"(?:global_step[=:]\s*(?P<iteration>\d+).*?)?train_step_timing in s[=:]\s*(?P<s>[\d.,]+)"
    ),
    # The pipeline engine's own time, else the timer's, which leaves out what is between two steps.
    "deepspeed": (
        r"(?:global_step=|steps?: *)(?P<iteration>\d+)(?:.*?iter time \(s\): (?P<s>[\d.,]+)"
        r"|.*?CurrSamplesPerSec=(?P<samples_per_s>[\d.,]+))"
    ),
    # nanoGPT, build-nanogpt, nanochat, llm.c.
    "nanogpt": (
        r"(?:iter|step)\s*(?P<iteration>\d+)\b.*?(?:\btime |\bdt: |\| )(?P<ms>[\d.,]+) ?ms\b"
    ),
    "torchtitan": (r"\bstep:\s*(?P<iteration>\d+)\b.*?\b(?:tps|wps):\s*(?P<tokens_per_s>[\d.,]+)"),
    "nanotron": r"iteration: (?P<iteration>\d+) / .*?time_per_iteration_ms: (?P<ms>[\d.,]+)",
    "maxtext": r"completed step: (?P<iteration>\d+), seconds: (?P<s>[\d.,]+)",
    # mmengine, and mmcv before it; a mean over the logged iterations.
    "mmengine": (
        r"(?:Epoch(?:\(train\))?\s*\[(?P<epoch>\d+)\]\s*|Iter(?:\(train\))?\s*)"
        r"\[\s*(?P<iteration>\d+)/(?P<of>\d+)\].*?\btime: (?P<s>[\d.,]+)"
    ),
    # Updates a second have two digits; words a second and in a batch have more. Plain or JSON.
    "fairseq": (
        r"train_inner\b.*?\bwps\"?[=:]\s*\"?(?!0\b(?!\.))(?P<tokens_per_s>[\d.,]+?)\"?,"
        r".*?\bwpb\"?[=:]\s*\"?(?P<tokens>[\d.]+).*?\bnum_updates\"?[=:]\s*\"?(?P<iteration>\d+)"
    ),
    # PaddleNLP's Trainer, PaddleFleetX, PaddleOCR, PaddleClas, PaddleDetection.
    "paddle": (
        r"^(?!.*(?:\bval\b|\beval\b|\[Eval))"
        r"(?:(?!.*global[_ ]step).*?\b[Ee]poch:? *\[?\s*(?P<epoch>\d+)\b)?"
        r".*?\b(?:global[_ ]step|[Ii]ter|batch|step):? *\[?\s*(?P<iteration>\d+)\b(?:/(?P<of>\d+))?"
        r".*?(?:interval_steps_per_second: (?P<it_per_s>[\d.,]+)"
        r"|\b(?:avg_)?batch_cost: (?P<s>[\d.,]+))"
    ),
}
# Bars and parts of a step, which earlier versions read.
GONE = ("hf", "tqdm", "lightning", "litgpt")
TIMES = {"s": 1.0, "ms": 1e-3}  # by group: seconds of one
RATES = {  # by group: what an iteration has several of, a group or a key of the entry
    "it_per_s": "",
    "samples_per_s": "samples",
    "tokens_per_s": "tokens",
}
QUANTITIES = (*TIMES, *RATES)
ERROR_MAX = 0.05  # of the last digit: some logs print 0.01 it/s for an iteration of 100 s
PACE_S_MIN, PACE_ARRIVALS_MIN = 30.0, 2  # a log of each 100th iteration has a line in minutes
PACE_ARRIVALS = 64  # at one each half second they reach over PACE_S_MIN
PACE_MAX, PACE_MIN = 1.5, 0.25  # a step of a log says less than passes, where much is not timed

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?")
_TENS = re.compile(r"[eE]([+-]?\d{1,3})(?!\d)")
_MANY = re.compile(r"([kKMGB])(?![A-Za-z0-9])")
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}


@dataclass(frozen=True, slots=True)
class LogSource:
    """A job's log: `path` may have wildcards, `pattern` has one or more groups of QUANTITIES.

    Other groups: `iteration`, its number; `epoch`, in which that begins again, and `of`, how many
    an epoch has; `samples` and `tokens` of an iteration.
    """

    job: str
    path: str
    pattern: re.Pattern[str]
    samples: float = 0.0  # of one iteration, for `samples_per_s`
    tokens: float = 0.0  # of one iteration, as the log's rate counts them
    accumulation: int = 1  # what the lines call an iteration, in one optimizer step


@dataclass(frozen=True, slots=True)
class Reading:
    """One iteration; its number is that of the log, else of the line."""

    number: int
    duration_s: float


@dataclass(slots=True)
class Pace:
    """Time that the lines of a log claim over the time in which they arrive.

    Lines that arrive together were written since the arrival before. Median over arrivals: a pause
    is one of them.
    """

    arrived_s: float = 0.0
    number: int = 0
    arrivals: deque[list[float]] = field(default_factory=lambda: deque(maxlen=PACE_ARRIVALS))

    def proves(self, one: Reading, arrived_s: float) -> bool:
        """Whether enough lines have come at the pace that they say. Raises BadInput where they come
        at another one.
        """
        if arrived_s > self.arrived_s:
            if self.arrived_s:
                self.arrivals.append([0.0, arrived_s - self.arrived_s])
            self.arrived_s = arrived_s
        if self.arrivals:
            self.arrivals[-1][0] += one.duration_s * max(1, one.number - self.number)
        self.number = one.number
        enough = sum(passed_s for _, passed_s in self.arrivals) >= PACE_S_MIN
        if not enough or len(self.arrivals) < PACE_ARRIVALS_MIN:
            return False
        ratio = median([claimed_s / passed_s for claimed_s, passed_s in self.arrivals])
        if not PACE_MIN <= ratio <= PACE_MAX:
            what = f"lines say {one.duration_s:.4g} s an iteration and come every"
            what = f"{what} {one.duration_s / ratio:.4g} s" if ratio else f"{what} more"
            raise bad(what, "a pattern of whole iterations, in the unit of its group")
        return True


@dataclass(slots=True)
class LineReader:
    """Follows the lines of one log."""

    source: LogSource
    lines: int = 0  # with a time
    _iteration: int = -1
    _of: int = 0
    _before: int = 0  # iterations of the epochs before

    def read(self, line: str) -> Reading | None:
        """None for a line that is no iteration, or says nothing new of one. Raises BadInput for
        one whose time cannot be used.
        """
        match = self.source.pattern.search(_ANSI.sub("", line))
        if match is None:
            return None
        words = match.groupdict()
        self.lines += 1
        iteration = _whole(words["iteration"]) if words.get("iteration") else self.lines
        duration_s = self._seconds(match)
        if iteration == self._iteration:  # another rank's line
            return None
        if iteration < self._iteration and words.get("epoch"):
            self._before += self._of or self._iteration
        self._iteration, self._of = iteration, int(words.get("of") or 0)
        one = Reading(self._before + iteration, duration_s)
        if not 0.0 < one.duration_s <= ITERATION_S_MAX or one.number > 2**53:
            what = f"iteration {one.number} of {one.duration_s:g} s"
            raise bad(what, "above 0, up to a day")
        return one

    def _seconds(self, match: re.Match[str]) -> float:
        words = match.groupdict()
        group = next((name for name in QUANTITIES if words.get(name)), "")
        if not group:
            raise bad(f"{match[0][:80]!r} has no time", f"a group {', '.join(QUANTITIES)}")
        value, error = _value_of(match, group)
        if error > ERROR_MAX:
            raise bad(f"{match[group]} is rounded to {error:.0%}", f"{ERROR_MAX:.0%}")
        if group in TIMES:
            return value * TIMES[group] * self.source.accumulation
        count, key = 1.0, RATES[group]
        if key:
            given = self.source.samples if key == "samples" else self.source.tokens
            count = _value_of(match, key)[0] if words.get(key) else given
            if not count:
                unit = group.replace("_per_", "/")
                raise bad(
                    f"the log has {unit}", f"{key}: N in its entry, the {key} of an iteration"
                )
        return count / value * self.source.accumulation if value else 0.0


def _value_of(match: re.Match[str], group: str) -> tuple[float, float]:
    """The number of a group, and the error of its last digit. Raises BadInput."""
    text, start, line = match[group].rstrip(".,"), match.start(group), match.string
    if not _NUMBER.fullmatch(text):
        raise bad(f"{text!r} is no number", "digits, as in 1234.5 or 1,234.5")
    before, after = line[:start], line[start + len(text) :]
    if re.match(r"[.,:]?\d", after) or re.search(r"\d[.,:]?$", before):
        raise bad(f"{text} is a part of a number in {before[-12:] + text + after[:12]!r}", "all")
    value = float(text.replace(",", ""))
    error = 0.5 * 10.0 ** -len(text.partition(".")[2]) / value if value else 0.0
    if tens := _TENS.match(after):
        value *= 10.0 ** int(tens[1])
    elif many := _MANY.match(after):
        value *= _SCALES[many[1]]
    return value, error


def _whole(text: str | None) -> int:
    """Raises BadInput."""
    digits = (text or "").replace(",", "")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 16:
        raise bad(f"iteration {text!r}", "a whole number up to 2^53")
    return int(digits)


def bad(what: str, allowed: str) -> BadInput:
    return BadInput("log", what, allowed)
