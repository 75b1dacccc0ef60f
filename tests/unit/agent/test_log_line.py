"""Times in lines of logs, in the forms that public logs and the frameworks' sources have.

What was printed is the truth. A wrong rate is worse than none.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.jobs.log_line import (
    AGREE_LINES,
    PACE_ARRIVALS_MIN,
    PACE_S_MIN,
    PRESETS,
    LineReader,
    LogSource,
    Reading,
)
from joulecut_agent.jobs.log_number import TIMES
from joulecut_wire.errors import BadInput

MEGATRON = (
    "iteration {:8}/{} | consumed samples: 800 | elapsed time per iteration (ms): {} | "
    "learning rate: 1.342E-04 | lm loss: 7.3"
)
BAR = "|███▎      | {}/{} [{}"
ESC = "\x1b"


STEP = r"step (?P<iteration>\d+) (?P<s>[\d.]+)"


def _reader(
    pattern: str,
    *,
    samples: float = 0.0,
    tokens: float = 0.0,
    accumulation: int = 1,
    lines: int = 1,
) -> LineReader:
    expression = re.compile(PRESETS.get(pattern, pattern))
    return LineReader(LogSource("demo", "/x", expression, samples, tokens, accumulation, lines))


def _read(reader: LineReader, lines: Sequence[str]) -> list[tuple[int, float]]:
    found = [reader.read(line, 0.0) for line in lines]
    return [(one.number, round(one.duration_s, 4)) for one in found if one]


def _watched(
    reader: LineReader, lines: Sequence[tuple[float, str]]
) -> tuple[list[Reading], list[str]]:
    """Readings and faults of lines that arrive at their times."""
    readings, faults = [], []
    for arrived_s, line in lines:
        try:
            if one := reader.read(line, arrived_s):
                readings.append(one)
        except BadInput as error:
            faults.append(str(error))
    return readings, faults


PUBLIC = yaml.safe_load((Path(__file__).parent / "public_logs.yaml").read_text())


@pytest.mark.parametrize("kind", PUBLIC)
def test_lines_of_public_logs(kind: str) -> None:
    log = PUBLIC[kind]
    assert _read(_reader(log["pattern"]), log["lines"]) == [tuple(one) for one in log["printed"]]


def test_samples_and_tokens_need_the_size_of_an_iteration() -> None:
    titan = (
        f"[rank0]:[titan] - root - INFO - {ESC}[31mstep: 10  {ESC}[32mloss:  7.1  "
        f"{ESC}[33mmemory: 47.34GiB(59.81%)  {ESC}[34mtps: 10,050  {ESC}[36mtflops: 58{ESC}[0m"
    )
    deepspeed = (
        "[INFO] [timer.py:260:stop] epoch=0/micro_step=796/global_step=199, "
        "RunningAvgSamplesPerSec=58.73, CurrSamplesPerSec=61.35304005128382, MemAllocated=6.01GB"
    )
    assert _read(_reader("torchtitan", tokens=16384), [titan]) == [(10, 1.6302)]
    assert _read(_reader("deepspeed", samples=768), [deepspeed]) == [(199, 12.5177)]
    for pattern, line, key in (
        ("torchtitan", titan, "tokens: N"), ("deepspeed", deepspeed, "samples: N"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=key):
            _reader(pattern).read(line, 0.0)


@pytest.mark.parametrize(
    ("pattern", "line", "reason"),
    [
        (r"(?P<s>[\d.]+)", "13.47 it/s", "13.47 is in it/s; allowed: s"),
        (r"(?P<s>[\d.]+)", "13.47it/s", "13.47 is in it/s"),
        (r"(?P<s>[\d.]+)", "took 13.47 ms", "13.47 is in ms"),
        (r"(?P<s>[\d.]+)$", "elapsed time (ms): 13.47", "13.47 is in ms"),
        (r"(?P<s>[\d.]+)$", "samples/sec: 13.47", "13.47 is in samples/s"),
        (r"(?P<s>[\d.]+)$", "tps: 1347", "1347 is in tokens/s"),
        (r"(?P<ms>[\d.]+)", "13.47 s", "13.47 is in s; allowed: ms"),
        (r"(?P<it_per_s>[\d.]+)", "13.47s/it", "13.47 is in s; allowed: it/s"),
        (r"took (?P<s>[\d.]+)", "took 1,347 s", "part of a number"),
        (r".*(?P<s>\d+)s", "took 13.47s", "part of a number"),
        (r"took (?P<s>\S+)", "took nan s", "no number"),
        (r"(?P<s>[\d.]+)$", "stepTimeMs=13.47", "13.47 is in ms"),
        (r"(?P<s>[\d.]+)$", "tokensPerSec=13.47", "13.47 is in tokens/s"),
        (r"(?P<s>[\d.]+)$", "steps per second: 13.47", "13.47 is in it/s"),
        (r"(?P<s>[\d.]+)$", "train/steps_per_sec: 13.47", "13.47 is in it/s"),
        (r"(?P<s>\d[\d.]*)$", "batches_per_minute=13.47", "13.47 is in it/minutes"),
        (r"(?P<s>[\d.]+)", "13.47 s/sample", "13.47 is in s/samples"),
        (r"(?P<ms>\d[\d.]+)", "time_ms: 2.5%", "2.5 is followed by '%'"),
        (r"(?P<ms>\d[\d.]+)", "time_ms: 2.5/3.5", "2.5 is followed by '/3.5'"),
        (r"time: (?P<s>\d+)", "time: 12:30", "12 is followed by ':30'"),
        (r"time: .*:(?P<s>\d+)", "time: 12:30", "30 is a part of a number"),
        (r"(?P<ms>\d[\d.]+)", "time_ms: -2.5", "a part of a number"),
        (r"(?P<it_per_s>[\d.]+)", "0.01it/s", "rounded to 50%"),
        ("hf", "  5%" + BAR.format(1, 2, "01:19<05:58,  0.01it/s]"), "rounded to 50%"),
        (
            "deepspeed",
            "[Rank 0] rank=0 time (ms) | forward: 1425.20 | backward: 211.12 | step: 649.10",
            "parts of a step",
        ),
        (r"took (?P<s>[\d.]+) s", "took 0.0 s", "above 0"),
    ],
)
def test_a_time_that_is_none_is_refused_with_its_reason(
    pattern: str, line: str, reason: str
) -> None:
    with pytest.raises(BadInput, match=reason):
        _reader(pattern).read(line, 0.0)


@given(st.integers(1000, 10**7), st.sampled_from(["s", "ms"]), st.sampled_from(["s", "ms"]))
def test_a_time_is_read_in_its_own_unit_or_not_at_all(
    thousandths: int, group: str, unit: str
) -> None:
    line = f"step 5 took {thousandths / 1000:.3f} {unit}"
    reader = _reader(rf"took (?P<{group}>[\d.]+)")
    if group != unit:
        with pytest.raises(BadInput):
            reader.read(line, 0.0)
    else:
        found = reader.read(line, 0.0)
        assert found
        assert found.duration_s == pytest.approx(thousandths / 1000 * TIMES[unit][1])


def test_times_far_from_those_before_count_when_they_agree() -> None:
    """An evaluation in a line is left out; a job that has changed is followed."""
    reader = _reader("megatron")
    times_ms = [60_000.0, 1000.0, 1001.0, 1002.0, 35_000.0, 1003.0, 3000.0, 3001.0, 3002.0, 3003.0]
    lines = [MEGATRON.format(i + 1, 99, time) for i, time in enumerate(times_ms)]
    numbers = [number for number, _ in _read(reader, lines)]
    assert numbers == [1, 1 + AGREE_LINES, 6, 6 + AGREE_LINES, 10]


@pytest.mark.parametrize("burst", [1, 20])
def test_lines_that_come_at_another_pace_than_they_say_are_refused(burst: int) -> None:
    """Also where a buffer holds lines back, and beside a pause."""

    def pace(printed_s: float, taken_s: float, pause_s: float = 0.0) -> str:
        reader, arrived_s, text = _reader(r"step (?P<iteration>\d+) (?P<s>[\d.]+)"), 100.0, ""
        arrivals = round(PACE_S_MIN / (burst * taken_s)) + 2 * PACE_ARRIVALS_MIN
        for i in range(arrivals * burst):
            if i % burst == 0:
                arrived_s += burst * taken_s + pause_s * (i == burst * (arrivals // 2))
            try:
                assert isinstance(reader.read(f"step {i + 1} {printed_s:.3f}", arrived_s), Reading)
            except BadInput as error:
                text = str(error)
        return text

    assert not pace(2.0, 2.0, pause_s=900.0)
    assert not pace(2.0, 2.6)
    assert "lines say 2 s an iteration and come every 0.5" in pace(2.0, 0.5)
    assert "lines say 0.2 s an iteration and come every 2" in pace(0.2, 2.0)


def test_accumulation_is_the_operators_word() -> None:
    reader = _reader(r"micro took (?P<ms>[\d.]+) ms", accumulation=8)
    assert _read(reader, ["micro took 340.00 ms"]) == [(1, 2.72)]


def test_means_since_an_epoch_began_become_times_of_their_own() -> None:
    reader = _reader("lightning")
    taken_s, bars, total_s = [0.5] * 400 + [0.6] * 400, [], 0.0
    for i, each_s in enumerate(taken_s):
        total_s += each_s
        bars.append(
            "Epoch 0:  1%" + BAR.format(i + 1, 8000, f"00:09<03:23, {(i + 1) / total_s:.2f}it/s]")
        )
    found = dict(_read(reader, bars))
    assert found
    last = max(found)
    assert found[last] == pytest.approx(0.6, rel=0.02), "the mean since the start is 0.55"
    assert all(found[number] == pytest.approx(0.5, rel=0.02) for number in found if number < 400)


@pytest.mark.parametrize(
    "line",
    [
        "batches_per_second=0.125", "batches_per_sec: 0.125", "steps per second: 0.125",
        "stepsPerSec=0.125", "it/s 0.125", "0.125 iterations per second", "0.125steps/s",
    ],
)  # fmt: skip
def test_words_of_a_rate(line: str) -> None:
    assert _read(_reader(r"(?P<it_per_s>\d[\d.]+)"), [line]) == [(1, 8.0)]


@pytest.mark.parametrize("line", ["time_ms: 2.5K", "time_ms: 2.5e3", "2.5k ms", "2.50E+03ms"])
def test_what_follows_a_number_counts(line: str) -> None:
    assert _read(_reader(r"(?P<ms>\d[\d.]*)"), [line]) == [(1, 2.5)]


@pytest.mark.parametrize(("each_s", "digits"), [(3.1, 2), (20.0, 2), (0.9, 1)])
def test_the_clock_of_a_bar_is_finer_than_its_rounded_mean(each_s: float, digits: int) -> None:
    def clock(i: int) -> str:
        return f"{int(i * each_s) // 60:02d}:{int(i * each_s) % 60:02d}"

    lines = [
        "Epoch 0:  1%" + BAR.format(i, 3000, f"{clock(i)}<9:00, {1 / each_s:.{digits}f}it/s, v=0]")
        for i in range(1, 3000)
    ]
    found = _read(_reader("lightning"), lines)
    assert len(found) > 3000 * each_s / 120
    assert all(seconds == pytest.approx(each_s, rel=0.05) for _, seconds in found)


def test_means_that_stay_too_coarse_are_said_once() -> None:
    reader = _reader(r"step (?P<iteration>\d+) mean (?P<mean_it_per_s>[\d.]+)")
    readings, faults = _watched(reader, [(0.0, f"step {i} mean 0.32") for i in range(1, 3000)])
    assert len(readings) == 1
    assert ["too coarse" in one for one in faults] == [True]


def test_times_that_differ_in_turn_all_count() -> None:
    lines = [(0.0, f"step {i} {(1.0, 9.0)[i % 2]}") for i in range(1, 41)]
    readings, faults = _watched(_reader(STEP), lines)
    assert not faults
    assert sum(one.duration_s for one in readings) / len(readings) == pytest.approx(5.0, rel=0.05)


def test_much_time_left_out_is_said_once() -> None:
    lines = [(0.0, f"step {i} {9.0 if i % 6 == 0 else 1.0}") for i in range(1, 91)]
    readings, faults = _watched(_reader(STEP), lines)
    assert {one.duration_s for one in readings} == {1.0}
    assert ["left out" in one for one in faults] == [True]


def test_a_time_of_all_iterations_since_the_line_before() -> None:
    lines = [(240.0 * i, f"step {100 * i} time 240.0") for i in range(1, 21)]
    pattern = r"step (?P<iteration>\d+) time (?P<{}>[\d.]+)"
    readings, faults = _watched(_reader(pattern.replace("{}", "s")), lines)
    assert (len(readings), len(faults)) == (1, 19), "the second line shows it"
    assert "come every 240 s, 100 iterations each" in faults[0]
    readings, faults = _watched(_reader(pattern.replace("{}", "interval_s")), lines)
    assert {one.duration_s for one in readings} == {2.4}
    assert not faults


def test_time_that_is_not_in_the_lines_is_said_once() -> None:
    lines = [(100.0 + 0.49 * i, "it_per_s 8.0") for i in range(200)]
    readings, faults = _watched(_reader(r"it_per_s (?P<it_per_s>[\d.]+)"), lines)
    assert len(readings) == 199
    assert ["the rest is not timed" in one for one in faults] == [True]


def test_fields_on_rows_of_their_own() -> None:
    pattern = r"step: (?P<iteration>\d+).*?time: (?P<s>[\d.]+)"
    rows = [f"step: {i}\nloss: 3.1\ntime: 0.{40 + i} s\n" for i in range(1, 4)]
    found = _read(_reader(pattern, lines=4), "".join(rows).splitlines())
    assert found == [(1, 0.41), (2, 0.42), (3, 0.43)]
