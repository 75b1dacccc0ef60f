"""Logs of jobs: new lines only, whole lines only, across truncation and rotation."""

import os
import re
from itertools import count
from pathlib import Path

import pytest

from joulecut_agent import config
from joulecut_agent.jobs.log_line import LogSource
from joulecut_agent.jobs.log_tail import SILENT_S, LogTail
from joulecut_agent.jobs.rate_source import Fault, Submission
from joulecut_wire.errors import BadInput

PATTERN = re.compile(r"step (?P<iteration>\d+) took (?P<s>[\d.]+) s")


class Kept:
    """An inbox that keeps what it is given."""

    def __init__(self) -> None:
        self.taken: list[Submission | Fault] = []

    def submit(self, one: Submission | Fault) -> bool:
        self.taken.append(one)
        return True

    def numbers(self) -> list[int]:
        return [one.report.iteration for one in self.taken if isinstance(one, Submission)]


TURN_S = 16.0  # between two turns: three lines prove their pace


def _tail(folder: Path) -> tuple[LogTail, Kept]:
    kept, times_s = Kept(), count(100.0, TURN_S)
    source = LogSource("demo", str(folder / "*.log"), PATTERN)
    return LogTail([source], kept, lambda _: ["GPU-a", "GPU-b"], lambda: next(times_s)), kept


def _write(tail: LogTail, path: Path, *numbers: int) -> None:
    """A line for each, as it comes."""
    for number in numbers:
        with path.open("a") as file:
            file.write(f"step {number} took {TURN_S} s\n")
        tail.turn()


def test_only_lines_that_are_added_and_only_whole_ones_once_their_pace_is_known(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.log"
    path.write_text("step 1 took 2.0 s\n")
    tail, kept = _tail(tmp_path)
    tail.turn()
    _write(tail, path, 2, 3)
    assert kept.taken == []
    with path.open("a") as file:
        file.write("nothing\nstep 4 took 16.0 s\nstep 5 to")
        file.flush()
        tail.turn()
        file.write("ok 15.5 s\n")
    tail.turn()
    assert kept.numbers() == [4, 4, 5, 5]
    last = kept.taken[-1]
    assert isinstance(last, Submission)
    assert (last.report.uuid, last.report.duration_s) == ("GPU-b", 15.5)


def test_lines_that_come_at_another_pace_are_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    tail, kept = _tail(tmp_path)
    path.touch()
    tail.turn()
    _write(tail, path, 10, 20, 30)
    (fault,) = kept.taken
    assert isinstance(fault, Fault)
    assert "lines say 16 s an iteration and come every 1.6 s" in fault.text


def test_truncation_rotation_and_new_files(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("step 1 took 16.0 s\n" * 9)
    tail, kept = _tail(tmp_path)
    tail.turn()
    path.write_text("step 2 took 16.0 s\n")
    tail.turn()
    _write(tail, path, 3, 4)
    path.rename(tmp_path / "a.log.1")
    _write(tail, path, 5, 6, 7)
    _write(tail, tmp_path / "b.log", 8, 9, 10)
    assert kept.numbers() == [4, 4, 7, 7, 10, 10]


def test_what_is_no_log_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "dangling.log").symlink_to(tmp_path / "gone")
    tail, kept = _tail(tmp_path)
    tail.turn()
    assert kept.taken == []


def test_a_log_that_gives_nothing_says_so_with_its_newest_line(tmp_path: Path) -> None:
    """Every five minutes; a pattern that fits is silent."""
    tail, kept = _tail(tmp_path)
    path = tmp_path / "a.log"
    path.write_text("")
    turns = 2 * round(SILENT_S / TURN_S) + 4

    def texts() -> list[str]:
        return [one.text for one in kept.taken if isinstance(one, Fault)]

    tail.turn()
    for i in range(turns):
        with path.open("a") as file:
            file.write(f"epoch {i} in 4.1\n")
        tail.turn()
    assert len(texts()) == 2
    assert "no iteration read for 304 s: newest line 'epoch 18 in 4.1'" in texts()[0]
    kept.taken.clear()
    _write(tail, path, *range(1, turns))
    assert not texts()
    path.unlink()
    for _ in range(turns):
        tail.turn()
    assert "no such file" in texts()[0]


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        ("[{job: a, path: /x}]", "pattern: key missing; allowed: job, path, pattern"),
        ("[{job: a, path: x, pattern: megatron}]", "an absolute path"),
        ("[{job: a, path: /x, pattern: '('}]", "a regular expression"),
        ("[{job: a, path: /x, pattern: 'step'}]", "a group"),
        ("[{job: a, path: /x, pattern: '(a+)+$ (?P<s>[0-9]+)'}]", "takes longer than 1 s"),
        (r"[{job: a, path: /x, pattern: '(\d+\s?)*, (?P<s>[0-9]+)'}]", "takes longer than 1 s"),
        ("[{job: a, path: /x, pattern: hf}]", "hf. is gone; allowed: joulecut run"),
        ("nonsense", "a list"),
    ],
)
def test_a_wrong_entry_is_one_line(tmp_path: Path, logs: str, message: str) -> None:
    (tmp_path / "agent.yaml").write_text(f"device: simulated\nlogs: {logs}\n")
    with pytest.raises(BadInput, match=message):
        config.load(tmp_path / "agent.yaml")


def test_a_preset_and_a_pattern(tmp_path: Path) -> None:
    text = "[{job: a, path: /x/*, pattern: megatron}, {job: b, path: /y, pattern: '(?P<ms>1)'}]"
    (tmp_path / "agent.yaml").write_text(f"device: simulated\nlogs: {text}\n")
    assert [source.job for source in config.load(tmp_path / "agent.yaml").logs] == ["a", "b"]
