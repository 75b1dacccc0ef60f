"""Logs of jobs: new lines only, whole lines only, across truncation and rotation."""

import os
import re
import time
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


def test_a_log_that_gives_nothing_says_so_with_its_newest_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every five minutes; a pattern that fits is silent."""
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    tail, kept = _tail(tmp_path)
    path = tmp_path / "a.log"
    path.write_text("")

    def turns(line: str) -> list[str]:
        kept.taken.clear()
        for i in range(2 * round(SILENT_S / 60.0)):
            now_s[0] += 60.0
            with path.open("a") as file:
                file.write(line.format(i))
            tail.turn()
        return [one.text for one in kept.taken if isinstance(one, Fault)]

    tail.turn()
    silent = turns("epoch 3 in 4.1\n")
    assert len(silent) == 2
    assert "no iteration read for 300 s: newest line 'epoch 3 in 4.1'" in silent[0]
    assert not turns("step {} took 60.0 s\n")
    path.unlink()
    now_s[0] += 10 * SILENT_S
    tail.turn()
    assert isinstance(kept.taken[-1], Fault)
    assert "no such file" in kept.taken[-1].text


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        ("[{job: a, path: /x}]", "pattern: key missing; allowed: job, path, pattern"),
        ("[{job: a, path: x, pattern: megatron}]", "an absolute path"),
        ("[{job: a, path: /x, pattern: '('}]", "a regular expression"),
        ("[{job: a, path: /x, pattern: 'step'}]", "a group"),
        ("[{job: a, path: /x, pattern: '(a+)+$ (?P<s>[0-9]+)'}]", "takes longer than 1 s"),
        (r"[{job: a, path: /x, pattern: '(\d+\s?)*, (?P<s>[0-9]+)'}]", "takes longer than 1 s"),
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
