"""Iteration time in a line of a training log, with its unit; pure.

A wrong rate is worse than none. A number is refused where its unit contradicts the group that found
it, where it is half a number or too rough, and where lines claim more or fewer iterations than come
while they are read. A line far from those before it (an evaluation in it) is left out, where such
lines are few.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from joulecut_agent.jobs.log_number import QUANTITIES, RATES, TIMES, bad, value_of
from joulecut_wire.duration import ITERATION_S_MAX

BAR = (
    r"\d+%\|[^|]*\|\s*(?P<iteration>\d+)/(?P<of>\d+) \[(?P<elapsed>[\d:]+)[^\]]*?,\s*"
    r"(?:(?P<{rate}>[\d.,]+)it/s|(?P<{time}>[\d.,]+)s/it)"
)
# A bar's description names the training; the bars of evaluations and downloads have others.
_TQDM = (
    r"(?:^|\]:?)\s*(?:(?!(?i:[^|]*\b(?:val|eval|test|infer|predict|generat|load|sav|download|map|"
    r"filter|tokeniz|sanity|warm)))(?i:(?=[^|]*(?:train|epoch|step|iter|loss|fit|tun|optimi)))"
    r"(?:[^|]*?(?i:epochs?)[\s:#\[=]*(?P<epoch>\d+))?[^|]*?[\s:\]])?"
) + BAR.replace("{rate}", "it_per_s").replace("{time}", "s")
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
    "hf": _TQDM,
    "tqdm": _TQDM,
    # Its bar shows the mean since the epoch began.
    "lightning": r"\bEpoch (?P<epoch>\d+):\s*"
    + BAR.replace("{rate}", "mean_it_per_s").replace("{time}", "mean_s"),
}
LINES_MAX = 32  # of one iteration
ERROR_MAX = 0.05  # of the last digit: bars print 0.01it/s for an iteration of 100 s
FAR_RATIO = 2.0  # from the median of the lines before; clocks never double a time
AGREE_RATIO = 1.5  # between lines that are far from the earlier ones and right: the job has changed
AGREE_LINES = 3
EARLIER_LINES = 9
RECENT_LINES = 16
FAR_LINES_MAX = 3  # of the recent lines: evaluations are rarer, and a quarter is the job's own way
LEFT_OUT_MAX = 0.1  # of the lines' time: then the mean that is reported is not the job's
PACE_S_MIN, PACE_ARRIVALS_MIN = 30.0, 5
PACE_ARRIVALS = 64  # at one each half second they reach over PACE_S_MIN
PACE_MAX, PACE_MIN = 1.5, 0.25  # a step of a log says less than passes, where much is not timed
PACE_UNTIMED = 1 / 1.5  # below it the untimed part is worth a word
INTERVAL_RATIO, INTERVAL_S = 1.2, 0.6  # lines are seen up to POLL_S late
RESOLVED = 0.01  # error of a difference of two means
UNRESOLVED_LINES = 64  # of means without a clock beside them

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NESTED_BAR = "\x1b[A"  # a bar below another one: an evaluation's
_PARTS = re.compile(r"time \(ms\) \|.*\b(?:forward|backward)")


@dataclass(frozen=True, slots=True)
class LogSource:
    """A job's log: `path` may have wildcards, `pattern` has one or more groups of QUANTITIES.

    Other groups: `iteration`, its number; `of`, how many a bar has, and `elapsed`, its clock;
    `epoch`; `micro` and `whole`, a number within a step and the mark of its end; `samples` and
    `tokens` of an iteration. A pattern of several `lines` is searched in them together.
    """

    job: str
    path: str
    pattern: re.Pattern[str]
    samples: float = 0.0  # of one iteration, for `samples_per_s`
    tokens: float = 0.0  # of one iteration, as the log's rate counts them
    accumulation: int = 1  # what the lines call an iteration, in one optimizer step
    lines: int = 1  # over which the fields of an iteration are spread; then "." fits their ends


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
        """Claimed over passed time; 1 before enough is seen. Raises BadInput for a time that passes
        between two lines, and is printed beside a number that is several iterations further.
        """
        if one.number <= self.number:
            self.before_s, self.arrived_s = 0.0, 0.0
            self.arrivals.clear()
        passed_s = arrived_s - self.arrived_s if self.arrived_s else 0.0
        claimed_s = one.duration_s * (one.number - self.number)
        if arrived_s > self.arrived_s:
            if self.before_s:
                self.arrivals.append((self.claimed_s, self.arrived_s - self.before_s))
            self.before_s, self.arrived_s, self.claimed_s = self.arrived_s, arrived_s, 0.0
        self.claimed_s += claimed_s
        iterations, self.number = one.number - self.number, one.number
        apart_s = abs(passed_s - one.duration_s)
        near = apart_s <= (INTERVAL_RATIO - 1.0) * one.duration_s + INTERVAL_S
        if (
            passed_s
            and iterations > 1
            and near
            and INTERVAL_RATIO * passed_s + INTERVAL_S < claimed_s
        ):
            what = f"lines say {one.duration_s:.4g} s and come every {passed_s:.4g} s"
            allowed = "group interval_s for the time since the line before"
            raise bad(f"{what}, {iterations} iterations each", allowed)
        enough = sum(passed_s for _, passed_s in self.arrivals) >= PACE_S_MIN
        if not enough or len(self.arrivals) < PACE_ARRIVALS_MIN:
            return 1.0
        return median([claimed_s / passed_s for claimed_s, passed_s in self.arrivals])


@dataclass(slots=True)
class _Usual:
    """Which times are like those before them: few that are not are evaluations and checkpoints."""

    earlier: deque[float] = field(default_factory=lambda: deque(maxlen=EARLIER_LINES))
    far: list[float] = field(default_factory=list)
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT_LINES))
    lines: int = 0
    all_s: float = 0.0
    left_out_s: float = 0.0
    said: bool = False

    def takes(self, duration_s: float, doubtful: bool) -> bool:
        """Whether a time is like those before it, repeats itself, or is one of many that differ.
        Those of a doubtful bar have to be like those before it. Raises BadInput once, where those
        left out are much of the lines' time.
        """
        self.lines, self.all_s = self.lines + 1, self.all_s + duration_s
        usual_s = median(self.earlier) if self.earlier else duration_s
        near = usual_s / FAR_RATIO <= duration_s <= usual_s * FAR_RATIO
        self.recent.append(near)
        if near:
            self.earlier.append(duration_s)
            self.far.clear()
            return True
        self.far = [
            one for one in self.far if 1 / AGREE_RATIO <= one / duration_s <= AGREE_RATIO
        ] + [duration_s]
        if len(self.far) >= AGREE_LINES and not doubtful:
            self.clear()
            self.earlier.extend(self.far)
            self.recent.extend([True] * len(self.far))
            self.far.clear()
            return True
        far, seen = self.recent.count(False), len(self.recent)
        if not doubtful and (far > FAR_LINES_MAX or (far > 1 and seen > 3 and 2 * far >= seen)):
            self.earlier.append(duration_s)
            return True
        self.left_out_s += duration_s
        self._say(usual_s, duration_s)
        return False

    def clear(self) -> None:
        self.earlier.clear()
        self.recent.clear()
        self.lines, self.all_s, self.left_out_s = 0, 0.0, 0.0

    def _say(self, usual_s: float, duration_s: float) -> None:
        share = self.left_out_s / self.all_s
        if not self.said and self.lines >= RECENT_LINES and share > LEFT_OUT_MAX:
            self.said = True
            what = f"lines of {duration_s:.4g} s among lines of {usual_s:.4g} s"
            raise bad(f"{what} are left out, {share:.0%} of the time", "iterations that are alike")


@dataclass(slots=True)
class _Place:
    """Number of an iteration over the bars and epochs of a run."""

    base: int = 0
    iteration: int = 0
    of: int = 0
    epoch: int = -1
    last: tuple[object, ...] = ()
    new: bool = True  # the first line of its bar or epoch
    doubtful: bool = False  # a shorter bar after one that has ended: an evaluation's, or an epoch's

    def find(self, iteration: int, words: dict[str, str | None]) -> int | None:
        """None for another drawing of a bar, another rank's line, or a shorter bar beside the
        training's.
        """
        of = int(words.get("of") or 0)
        epoch = _whole(words["epoch"]) if words.get("epoch") else -1
        this = (iteration, words.get("micro"), epoch, of)
        repeated, self.last = this == self.last, this
        later = epoch > self.epoch
        ended = self.of > 0 and self.iteration >= 0.9 * self.of
        shorter = of < self.of and not later
        if repeated or (shorter and not (ended and 2 * of >= self.of)):
            return None
        self.new = later or of != self.of or (ended and iteration < self.iteration)
        if self.new:
            self.doubtful = shorter
            if self.epoch < 0 and not self.iteration:  # the first line
                self.base = max(0, epoch) * of
            elif later or ended:
                self.base += self.of or self.iteration
        self.iteration, self.of, self.epoch = iteration, of, max(epoch, self.epoch)
        return self.base + iteration


@dataclass(slots=True)
class LineReader:
    """Follows the lines of one log."""

    source: LogSource
    lines: int = 0
    _rows: deque[str] = field(default_factory=deque)
    _place: _Place = field(default_factory=_Place)
    _number: int = 0
    _micro: tuple[int, int] = (0, 0)  # iteration within a step, and step, of the last whole one
    _parts: list[tuple[int, float]] = field(default_factory=list)
    _mean: tuple[int, float, float] = (0, 0.0, 0.0)  # number, seconds since start, their error
    _unresolved: int = 0
    _usual: _Usual = field(default_factory=_Usual)
    _pace: _Pace = field(default_factory=_Pace)
    _untimed: bool = False  # said

    def read(self, line: str, arrived_s: float) -> Reading | None:
        """None for a line that is no iteration, or says nothing new of one. Raises BadInput for one
        whose time cannot be used.
        """
        plain = _ANSI.sub("", line)
        match = self._search(plain)
        if match is None:
            if not self.lines and _PARTS.search(plain):
                raise bad(f"{plain[:80]!r} has times of parts of a step", "an iteration's time")
            return None
        words = match.groupdict()
        self.lines += 1
        iteration = _whole(words["iteration"]) if words.get("iteration") else self.lines
        group, value, error = _time(match, plain)
        clock = words.get("elapsed")
        number = self._placed(line, iteration, words)
        if number is None:
            return None
        each_s = self._seconds(match, group, value)
        since, self._number = number - self._number if self._number else 0, number
        if group == "interval_s":
            duration_s = each_s / since if since > 0 else None
        elif group.startswith("mean_"):
            duration_s = self._since_last(iteration, each_s, error, clock)
        else:
            duration_s = self._one(words, number, each_s)
        if duration_s is None:
            return None
        if not 0.0 < duration_s <= ITERATION_S_MAX or number > 2**53:
            raise bad(f"iteration {number} of {duration_s:g} s", "above 0, up to a day")
        reading = Reading(number, duration_s)
        pace = self._pace.follow(reading, arrived_s)
        if not self._usual.takes(duration_s, self._place.doubtful):
            return None
        self._compare(reading, pace)
        return reading

    def _placed(self, line: str, iteration: int, words: dict[str, str | None]) -> int | None:
        """Number of an iteration in its run; None for a repeated one, and one of no training."""
        of = self._place.of
        number = None if _NESTED_BAR in line else self._place.find(iteration, words)
        if number is not None and self._place.new:
            self._mean = (0, 0.0, 0.0)
            if self._place.of > of:
                self._usual.clear()
        return number

    def _search(self, plain: str) -> re.Match[str] | None:
        """In this line; where a step has several, in the fewest of the last ones that fit."""
        pattern, lines = self.source.pattern, self.source.lines
        if lines == 1:
            return pattern.search(plain)
        pattern = re.compile(pattern.pattern, pattern.flags | re.DOTALL)
        self._rows.append(plain)
        if len(self._rows) > lines:
            self._rows.popleft()
        rows = list(self._rows)
        for first in reversed(range(len(rows))):
            if match := pattern.search("\n".join(rows[first:])):
                self._rows.clear()
                return match
        return None

    def _compare(self, reading: Reading, pace: float) -> None:
        """Raises BadInput where lines come at another pace than they say."""
        what = f"lines say {reading.duration_s:.4g} s an iteration and come every"
        what = f"{what} {reading.duration_s / pace:.4g} s"
        if not PACE_MIN <= pace <= PACE_MAX:
            raise bad(what, "a pattern of whole iterations")
        if pace < PACE_UNTIMED and not self._untimed:
            self._untimed = True
            raise bad(f"{what}: the rest is not timed", "a time of whole iterations")

    def _seconds(self, match: re.Match[str], group: str, value: float) -> float:
        """Seconds of what the lines call an iteration."""
        if group in TIMES:
            return value * TIMES[group][1]
        unit, key = RATES[group]
        count = {"": 1.0, "samples": self.source.samples, "tokens": self.source.tokens}[key]
        if key and match.groupdict().get(key):
            count = value_of(match, key)[0]
        if not count:
            raise bad(f"the log has {unit}", f"{key}: N in its entry, the {key} of an iteration")
        return count / value if value else 0.0

    def _one(self, words: dict[str, str | None], number: int, each_s: float) -> float | None:
        """Seconds of one iteration; None while it is not complete."""
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

    def _since_last(
        self, number: int, mean_s: float, error: float, clock: str | None
    ) -> float | None:
        """Iteration time since the last line used, of means since the start or, where it is finer,
        of the bar's clock of whole seconds. Raises BadInput once where the means are too coarse.
        """
        total_s, total_error_s = number * mean_s, number * mean_s * error
        if clock and total_error_s > 0.5:
            clock_s = _clock_s(clock) + 0.5
            if abs(clock_s - total_s) <= total_error_s + 1.0:
                total_s, total_error_s = clock_s, 0.5
        last, last_s, last_error_s = self._mean
        if number <= last or not last:
            self._mean = (number, total_s, total_error_s)
            return total_s / number if number and total_error_s <= ERROR_MAX * total_s else None
        if total_error_s + last_error_s > RESOLVED * (total_s - last_s):
            self._unresolved += 1
            if self._unresolved == UNRESOLVED_LINES and not clock:
                raise bad(f"means of {mean_s:.4g} s are too coarse", "more digits, or its clock")
            return None
        self._mean, self._unresolved = (number, total_s, total_error_s), 0
        return (total_s - last_s) / (number - last)


def _time(match: re.Match[str], plain: str) -> tuple[str, float, float]:
    """Group of a line's time, its number, and the error of its last digit. Raises BadInput."""
    words = match.groupdict()
    group = next((name for name in QUANTITIES if words.get(name)), "")
    if not group:
        raise bad(f"{plain[:80]!r} has no time", f"a group {', '.join(QUANTITIES)}")
    value, error = value_of(match, group)
    if error > ERROR_MAX and not (group.startswith("mean_") and words.get("elapsed")):
        unit = (TIMES.get(group) or RATES[group])[0]
        raise bad(f"{match[group]} {unit} is rounded to {error:.0%}", f"{ERROR_MAX:.0%}")
    return group, value, error


def _clock_s(text: str) -> float:
    seconds = 0.0
    for part in text.split(":"):
        seconds = 60.0 * seconds + (int(part) if part.isdigit() else 0)
    return seconds


def _whole(text: str | None) -> int:
    """Raises BadInput."""
    digits = (text or "").replace(",", "")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 16:
        raise bad(f"iteration {text!r}", "a whole number up to 2^53")
    return int(digits)
