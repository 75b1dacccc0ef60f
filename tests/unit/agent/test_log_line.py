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

from joulecut_agent.jobs.log_line import PACE_S_MIN, PRESETS, LineReader, LogSource, Pace, Reading
from joulecut_wire.errors import BadInput

ESC = "\x1b"


def _reader(
    pattern: str, *, samples: float = 0.0, tokens: float = 0.0, accumulation: int = 1
) -> LineReader:
    expression = re.compile(PRESETS.get(pattern, pattern))
    return LineReader(LogSource("demo", "/x", expression, samples, tokens, accumulation))


def _read(reader: LineReader, lines: Sequence[str]) -> list[tuple[int, float]]:
    found = [reader.read(line) for line in lines]
    return [(one.number, round(one.duration_s, 4)) for one in found if one]


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
            _reader(pattern).read(line)


@pytest.mark.parametrize(
    ("pattern", "line", "reason"),
    [
        (r"took (?P<s>[\d.]+)", "took 1,347 s", "part of a number"),
        (r".*(?P<s>\d+)s", "took 13.47s", "part of a number"),
        (r"took (?P<s>\S+)", "took nan s", "no number"),
        (r"time: .*:(?P<s>\d+)", "time: 12:30", "30 is a part of a number"),
        (r"(?P<it_per_s>[\d.]+)", "0.01it/s", "rounded to 50%"),
        (r"took (?P<s>[\d.]+) s", "took 0.0 s", "above 0"),
    ],
)
def test_a_time_that_is_none_is_refused_with_its_reason(
    pattern: str, line: str, reason: str
) -> None:
    with pytest.raises(BadInput, match=reason):
        _reader(pattern).read(line)


@pytest.mark.parametrize("burst", [1, 20])
def test_lines_that_come_at_another_pace_than_they_say_are_refused(burst: int) -> None:
    """Also where a buffer holds lines back, and beside a pause."""

    def pace(printed_s: float, taken_s: float, pause_s: float = 0.0) -> str:
        known, arrived_s, text = Pace(), 100.0, ""
        arrivals = round(PACE_S_MIN / (burst * taken_s)) + 10
        for i in range(arrivals * burst):
            if i % burst == 0:
                arrived_s += burst * taken_s + pause_s * (i == burst * (arrivals // 2))
            try:
                known.proves(Reading(i + 1, printed_s), arrived_s)
            except BadInput as error:
                text = str(error)
        return text

    assert not pace(2.0, 2.0, pause_s=900.0)
    assert not pace(2.0, 2.6)
    assert "lines say 2 s an iteration and come every 0.5" in pace(2.0, 0.5)
    assert "lines say 0.2 s an iteration and come every 2" in pace(0.2, 2.0)


@given(
    each_s=st.floats(0.5, 100.0), every=st.integers(1, 100),
    wrong=st.sampled_from([1e-3, 1e3, 0.1, 8.0]),
)  # fmt: skip
def test_a_number_of_another_unit_or_of_several_iterations_never_counts(
    each_s: float, every: int, wrong: float
) -> None:
    right, other, arrived_s, proven = Pace(), Pace(), 50.0, False
    for i in range(1, 200):
        arrived_s += each_s * every
        proven |= right.proves(Reading(i * every, each_s), arrived_s)
        try:
            assert not other.proves(Reading(i * every, wrong * each_s), arrived_s)
        except BadInput as error:
            assert "in the unit of its group" in str(error)
    assert proven


def test_accumulation_is_the_operators_word() -> None:
    reader = _reader(r"micro took (?P<ms>[\d.]+) ms", accumulation=8)
    assert _read(reader, ["micro took 340.00 ms"]) == [(1, 2.72)]


@pytest.mark.parametrize("line", ["time_ms: 2.5K", "time_ms: 2.5e3", "2.50E+03ms"])
def test_what_follows_a_number_counts(line: str) -> None:
    assert _read(_reader(r"(?P<ms>\d[\d.]*)"), [line]) == [(1, 2.5)]
