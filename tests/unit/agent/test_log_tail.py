"""Logs of jobs: new lines only, whole lines only, across truncation and rotation."""

import os
import re
from pathlib import Path

import pytest

from joulecut_agent import config
from joulecut_agent.jobs.log_line import LogSource
from joulecut_agent.jobs.log_tail import LogTail
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


def _tail(folder: Path) -> tuple[LogTail, Kept]:
    kept = Kept()
    source = LogSource("demo", str(folder / "*.log"), PATTERN)
    return LogTail([source], kept, lambda _: ["GPU-a", "GPU-b"]), kept


def test_only_lines_that_are_added_and_only_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("step 1 took 2.0 s\n")
    tail, kept = _tail(tmp_path)
    tail.turn()
    with path.open("a") as file:
        file.write("nothing\nstep 2 took 2.5 s\nstep 3 to")
        file.flush()
        tail.turn()
        file.write("ok 2.5 s\n")
    tail.turn()
    assert kept.numbers() == [2, 2, 3, 3]
    first = kept.taken[0]
    assert isinstance(first, Submission)
    assert (first.report.uuid, first.report.duration_s, first.permitted) == ("GPU-a", 2.5, True)


def test_truncation_rotation_and_new_files(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("step 1 took 2.0 s\n" * 9)
    tail, kept = _tail(tmp_path)
    tail.turn()
    path.write_text("step 2 took 2.0 s\n")
    tail.turn()
    path.rename(tmp_path / "a.log.1")
    path.write_text("step 3 took 2.0 s\n")
    tail.turn()
    (tmp_path / "b.log").write_text("step 4 took 2.0 s\n")
    tail.turn()
    assert kept.numbers() == [2, 2, 3, 3, 4, 4]


def test_what_is_no_log_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "dangling.log").symlink_to(tmp_path / "gone")
    tail, kept = _tail(tmp_path)
    tail.turn()
    assert kept.taken == []


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        ("[{job: a, path: /x}]", "pattern: key missing; allowed: job, path, pattern"),
        ("[{job: a, path: x, pattern: megatron}]", "an absolute path"),
        ("[{job: a, path: /x, pattern: '('}]", "a regular expression"),
        ("[{job: a, path: /x, pattern: 'step'}]", "a group"),
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
