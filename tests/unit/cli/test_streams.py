"""Full disks, closed streams and poor encodings: one line, a true status, no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROFILE = """\
stage,instruction,frequency,time,energy
0,forward,1400,1,300
0,backward,1400,2,600
0,forward,900,1.5,240
0,backward,900,3,480
"""
JOB = """\
pipeline: {schedule: 1f1b, stages: 1, microbatches: 2}
profile: profile.csv
blocking_power_w: 50
"""
JOULECUT = f"{sys.executable} -m joulecut_cli.main"
FULL = Path("/dev/full")
WAIT_S = 180.0  # for a line that takes one second on an idle machine
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "profile.csv").write_text(PROFILE)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def shell(folder: Path, line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A line as typed; `joulecut` in it is this tree's."""
    return subprocess.run(
        ["/bin/sh", "-c", line.replace("joulecut", JOULECUT)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )


@needs_full
@pytest.mark.parametrize("words", ["plan job.yaml", "plan job.yaml --json", "--version", "--help"])
def test_a_full_disk_is_one_line_and_status_1(folder: Path, words: str) -> None:
    done = shell(folder, f"joulecut {words} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == b"joulecut: No space left on device\n"


@needs_full
@pytest.mark.parametrize("errors", ["2>/dev/full", "2>&-"])
def test_a_complaint_that_nobody_can_hear_keeps_its_status(folder: Path, errors: str) -> None:
    done = shell(folder, f"joulecut plan none.yaml {errors}")
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-"])
def test_a_plan_needs_no_standard_error(folder: Path, closed: str) -> None:
    done = shell(folder, f"joulecut plan job.yaml --json {closed}")
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["operations"]) == 4


def test_a_plan_without_any_stream_is_still_fine(folder: Path) -> None:
    assert shell(folder, "joulecut plan job.yaml <&- >&- 2>&-").returncode == 0


@pytest.mark.parametrize("words", ["plan job.yaml", "plan job.yaml --json", "--help"])
def test_a_reader_who_leaves_is_no_error(folder: Path, words: str) -> None:
    """The far end is closed before the first byte is written."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*JOULECUT.split(), *words.split()],
            cwd=folder,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=WAIT_S,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8:strict"])
@pytest.mark.parametrize("name", ["ü λ.yaml".encode(), b"\xff.yaml"])
def test_a_name_that_cannot_be_shown_is_spelt_out(folder: Path, encoding: str, name: bytes) -> None:
    (folder / os.fsdecode(name)).write_text(JOB)
    line = f"joulecut plan '{os.fsdecode(name)}'"
    done = shell(folder, line, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"1 stages x 2 microbatches" in done.stdout


def test_a_complaint_cannot_steer_the_terminal(folder: Path) -> None:
    done = shell(folder, "joulecut plan '\x1b[31mred\x07.yaml'")
    assert done.returncode == 2
    assert done.stderr.startswith(b"joulecut: \\x1b[31mred\\x07.yaml: No such file")


@pytest.mark.parametrize("words", ["", "''", "'a\nb'", "--nonsense"])
def test_no_command_and_a_wrong_one_list_those_there_are(folder: Path, words: str) -> None:
    done = shell(folder, f"joulecut {words}")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"allowed: plan, frontier" in done.stderr


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
def test_a_file_without_an_end_is_too_large(folder: Path) -> None:
    for words, why in (("plan", b"too large"), ("policy check", b"not a regular file")):
        done = shell(folder, f"joulecut {words} /dev/zero")
        assert done.returncode == 2
        assert b"/dev/zero: " + why in done.stderr
