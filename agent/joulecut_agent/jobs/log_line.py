"""Iteration time in a line of a training log, with its unit; pure.

A wrong rate is worse than none. A number is refused where its unit contradicts the group that found
it, where it is half a number or too rough, and where lines claim more or fewer iterations than come
while they are read. A line far from those before it (an evaluation in it) is left out.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from joulecut_wire.duration import ITERATION_S_MAX
from joulecut_wire.errors import BadInput

BAR = (
    r"\d+%\|[^|]*\|\s*(?P<iteration>\d+)/(?P<of>\d+) \[[^\]]*?,\s*"
    r"(?:(?P<{rate}>[\d.,]+)it/s|(?P<{time}>[\d.,]+)s/it)"
)
_TQDM = r"(?:^|\]:?)\s*(?:Train\w*:?\s*)?" + BAR.replace("{rate}", "it_per_s").replace(
    "{time}", "s"
)
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
    "litgpt": (
        r"iter (?P<micro>\d+) step (?P<iteration>\d+)\b.*?iter time: (?P<ms>[\d.,]+) ?ms"
        r"(?P<whole> \((?:optimizer\.)?step\))?"
    ),
    "torchtitan": (
        r"\bstep:\s*(?P<iteration>\d+)\b.*?\b(?:tps|wps):\s*(?P<tokens_per_s>[\d.,]+)"
    ),
    "hf": _TQDM,
    "tqdm": _TQDM,
    # Its bar shows the mean since the epoch began.
    "lightning": r"\bEpoch (?P<epoch>\d+):\s*"
    + BAR.replace("{rate}", "mean_it_per_s").replace("{time}", "mean_s"),
}  # fmt: skip
TIMES = {  # by group: the unit of its number, and seconds of one
    "s": ("s", 1.0),
    "ms": ("ms", 1e-3),
    "mean_s": ("s", 1.0),
}
RATES = {  # by group: the unit of its number, and the entry's key with the count of an iteration
    "it_per_s": ("it/s", ""),
    "mean_it_per_s": ("it/s", ""),
    "samples_per_s": ("samples/s", "samples"),
    "tokens_per_s": ("tokens/s", "tokens"),
}
QUANTITIES = (*TIMES, *RATES)

ERROR_MAX = 0.05  # of the last digit: bars print 0.01it/s for an iteration of 100 s
FAR_RATIO = 2.0  # from the median of the lines before; clocks never double a time
AGREE_RATIO = 1.5  # between lines that are far from the earlier ones and right: the job has changed
AGREE_LINES = 3
EARLIER_LINES = 9
PACE_S_MIN, PACE_ARRIVALS_MIN = 30.0, 5
PACE_ARRIVALS = 64  # at one each half second they reach over PACE_S_MIN
PACE_MAX, PACE_MIN = 1.5, 0.25  # a step of a log says less than passes, where much is not timed
RESOLVED = 0.01  # error of a difference of two means

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NESTED_BAR = "\x1b[A"  # a bar below another one: an evaluation's
_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?")
_PARTS = re.compile(r"time \(ms\) \|.*\b(?:forward|backward)")
_UNITS = {
    "ms": r"ms\b|msec|milliseconds?",
    "s": r"s\b(?!/)|s/it\b|s/iter|s/step|secs?\b(?!/)|seconds?\b(?!/)",
    "it/s": r"its?/s|iters?/s|iterations?/s|steps?/s|batch(?:es)?/s",
    "samples/s": r"samples?/s|samplespersec|samples per sec|examples?/s|img/s|images?/s",
    "tokens/s": r"tokens?/s|toks?/s|tokens per sec|tps\b|wps\b",
    "minutes": r"min(?:utes?)?\b",
    "microseconds": r"us\b|µs|usec",
}
_AFTER = [
    (unit, re.compile(rf"\s*\(?(?:{form})(?!\w*\)?\s*[:=])", re.IGNORECASE))
    for unit, form in _UNITS.items()
]
_BEFORE = [
    (
        unit,
        re.compile(rf"(?<![a-z/])(?:{form})\w*\)?\s*[:=]{'?' * ('/' in unit)}\s*$", re.IGNORECASE),
    )
    for unit, form in _UNITS.items()
]


@dataclass(frozen=True, slots=True)
class LogSource:
    """A job's log: `path` may have wildcards, `pattern` has one or more groups of QUANTITIES.

    Other groups: `iteration`, its number; `of`, how many a bar has; `epoch` of a bar; `micro` and
    `whole`, a number within a step and the mark of its end.
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
class _Pace:
    """Time that lines claim against the time in which they arrive.

    Lines that arrive together were written since the arrival before. Median over arrivals: a pause
    is one of them.
    """

    before_s: float = 0.0
    arrived_s: float = 0.0
    claimed_s: float = 0.0
    number: int = 0
    arrivals: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=PACE_ARRIVALS)
    )

    def follow(self, one: Reading, arrived_s: float) -> float:
        """Claimed over passed time; 1 before enough is seen."""
        if one.number <= self.number:
            self.before_s, self.arrived_s = 0.0, 0.0
            self.arrivals.clear()
        if arrived_s > self.arrived_s:
            if self.before_s:
                self.arrivals.append((self.claimed_s, self.arrived_s - self.before_s))
            self.before_s, self.arrived_s, self.claimed_s = self.arrived_s, arrived_s, 0.0
        self.claimed_s += one.duration_s * (one.number - self.number)
        self.number = one.number
        enough = sum(passed_s for _, passed_s in self.arrivals) >= PACE_S_MIN
        if not enough or len(self.arrivals) < PACE_ARRIVALS_MIN:
            return 1.0
        return median([claimed_s / passed_s for claimed_s, passed_s in self.arrivals])


@dataclass(slots=True)
class LineReader:
    """Follows the lines of one log."""

    source: LogSource
    lines: int = 0
    _last: tuple[object, ...] = ()
    _of: int = 0
    _micro: tuple[int, int] = (0, 0)  # iteration within a step, and step, of the last whole one
    _parts: list[tuple[int, float]] = field(default_factory=list)
    _mean: tuple[int, float, float] = (0, 0.0, 0.0)  # number, seconds since start, their error
    _earlier: deque[float] = field(default_factory=lambda: deque(maxlen=EARLIER_LINES))
    _far: list[float] = field(default_factory=list)
    _pace: _Pace = field(default_factory=_Pace)

    def read(self, line: str, arrived_s: float) -> Reading | None:
        """None for a line that is no iteration, or says nothing new of one. Raises BadInput for one
        whose time cannot be used.
        """
        plain = _ANSI.sub("", line)
        match = self.source.pattern.search(plain)
        if match is None:
            if not self.lines and _PARTS.search(plain):
                raise _bad(f"{plain[:80]!r} has times of parts of a step", "an iteration's time")
            return None
        words = match.groupdict()
        self.lines += 1
        number = _whole(words["iteration"]) if words.get("iteration") else self.lines
        group = next((name for name in QUANTITIES if words.get(name)), "")
        if not group:
            raise _bad(f"{plain[:80]!r} has no time", f"a group {', '.join(QUANTITIES)}")
        value, error = _value(match, group)
        if _NESTED_BAR in line or self._is_repeated(number, words):
            return None
        if epoch := words.get("epoch"):
            number += _whole(epoch) * self._of
        duration_s = self._one(words, group, number, self._seconds(group, value), error)
        if duration_s is None:
            return None
        if not 0.0 < duration_s <= ITERATION_S_MAX or number > 2**53:
            raise _bad(f"iteration {number} of {duration_s:g} s", "above 0, up to a day")
        if not self._is_near(duration_s):
            return None
        reading = Reading(number, duration_s)
        pace = self._pace.follow(reading, arrived_s)
        if not PACE_MIN <= pace <= PACE_MAX:
            what = f"lines say {duration_s:.4g} s an iteration and come every"
            raise _bad(f"{what} {duration_s / pace:.4g} s", "a pattern of whole iterations")
        return reading

    def _is_repeated(self, number: int, words: dict[str, str | None]) -> bool:
        """Another drawing of a bar, another rank's line, or a shorter bar beside the training's."""
        of = int(words.get("of") or 0)
        if of > self._of:
            self._of = of
            self._earlier.clear()
        this = (number, words.get("micro"), words.get("epoch"))
        repeated, self._last = this == self._last or of < self._of, this
        return repeated

    def _seconds(self, group: str, value: float) -> float:
        """Seconds of what the lines call an iteration."""
        if group in TIMES:
            return value * TIMES[group][1]
        unit, key = RATES[group]
        count = {"": 1.0, "samples": self.source.samples, "tokens": self.source.tokens}[key]
        if not count:
            raise _bad(f"the log has {unit}", f"{key}: N in its entry, the {key} of an iteration")
        return count / value if value else 0.0

    def _one(
        self, words: dict[str, str | None], group: str, number: int, each_s: float, error: float
    ) -> float | None:
        """Seconds of one iteration; None while it is not complete."""
        if group.startswith("mean_"):
            return self._since_last(number, each_s, error)
        if words.get("micro") is None or self.source.accumulation > 1:
            return each_s * self.source.accumulation
        return self._whole_step(int(words["micro"] or 0), number, each_s, bool(words.get("whole")))

    def _whole_step(self, micro: int, step: int, each_s: float, whole: bool) -> float | None:
        """Sum of the parts of a step; where only its last is logged, as often as parts passed."""
        self._parts.append((micro, each_s))
        if not whole:
            del self._parts[:-4096]
            return None
        last, parts, self._parts = self._micro, self._parts, []
        self._micro = (micro, step)
        steps = step - last[1]
        if steps <= 0 or micro <= last[0] or (micro - last[0]) % steps:
            return None
        count = micro - last[0]
        if [one for one, _ in parts] == list(range(last[0] + 1, micro + 1)):
            return sum(part_s for _, part_s in parts) / steps
        return each_s * count / steps

    def _since_last(self, number: int, mean_s: float, error: float) -> float | None:
        """Iteration time since the last line used, of means since the start."""
        total_s, total_error_s = number * mean_s, number * mean_s * error
        last, last_s, last_error_s = self._mean
        if number <= last or not last:
            self._mean = (number, total_s, total_error_s)
            return mean_s
        duration_s = (total_s - last_s) / (number - last)
        if total_error_s + last_error_s > RESOLVED * (total_s - last_s):
            return None
        self._mean = (number, total_s, total_error_s)
        return duration_s

    def _is_near(self, duration_s: float) -> bool:
        """Whether a time is like those before it, or repeats itself."""
        if not self._earlier:
            self._earlier.append(duration_s)
            return True
        usual_s = median(self._earlier)
        if usual_s / FAR_RATIO <= duration_s <= usual_s * FAR_RATIO:
            self._earlier.append(duration_s)
            self._far.clear()
            return True
        self._far = [
            one for one in self._far if 1 / AGREE_RATIO <= one / duration_s <= AGREE_RATIO
        ] + [duration_s]
        if len(self._far) < AGREE_LINES:
            return False
        self._earlier.clear()
        self._earlier.extend(self._far)
        self._far.clear()
        return True


def _value(match: re.Match[str], group: str) -> tuple[float, float]:
    """The number of a group, and the error of its last digit. Raises BadInput."""
    text, (start, end), line = match[group].rstrip(".,"), match.span(group), match.string
    end = start + len(text)
    if not _NUMBER.fullmatch(text):
        raise _bad(f"{text!r} is no number", "digits, as in 1234.5 or 1,234.5")
    if re.match(r"[.,]?\d", line[end:]) or re.search(r"\d[.,]?$", line[:start]):
        around = line[max(0, start - 12) : end + 12]
        raise _bad(f"{text} is a part of a number in {around!r}", "a whole one")
    unit = (TIMES.get(group) or RATES[group])[0]
    seen = next((name for name, form in _AFTER if form.match(line[end:])), "")
    seen = seen or next((name for name, form in _BEFORE if form.search(line[:start])), "")
    if seen and seen != unit:
        raise _bad(f"{text} is in {seen}", f"{unit} in group {group}")
    value = float(text.replace(",", ""))
    error = 0.5 * 10.0 ** -len(text.partition(".")[2]) / value if value else 0.0
    if error > ERROR_MAX:
        raise _bad(f"{text} {unit} is rounded to {error:.0%}", f"{ERROR_MAX:.0%}")
    return value, error


def _whole(text: str | None) -> int:
    """Raises BadInput."""
    digits = (text or "").replace(",", "")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 16:
        raise _bad(f"iteration {text!r}", "a whole number up to 2^53")
    return int(digits)


def _bad(what: str, allowed: str) -> BadInput:
    return BadInput("log", what, allowed)
