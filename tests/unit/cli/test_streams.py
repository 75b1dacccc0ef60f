"""Full disks, closed streams and poor encodings: one line, a true status, no traceback."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from grpc._cython import cygrpc

from joulecut_cli.main import dispatch
from joulecut_wire.command import guarded

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
Joulecut = Callable[..., int]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "profile.csv").write_text(PROFILE)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


@pytest.fixture
def joulecut(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Joulecut]:
    """The command in this process, with the standard streams given or pytest's own."""
    monkeypatch.chdir(folder)
    opened: list[io.TextIOWrapper] = []

    def run(*argv: str, out: str | None = "", err: str | None = "", encoding: str = "utf-8") -> int:
        """A path is opened for a stream; None closes it; "" is the captured one."""
        for name, target in (("stdout", out), ("stderr", err)):
            if target == "":
                continue
            stream = None
            if target is not None:
                word, _, errors = encoding.partition(":")
                stream = open(target, "w", encoding=word, errors=errors or "strict")  # noqa: SIM115
                opened.append(stream)
            monkeypatch.setattr(sys, name, stream)
        return guarded("joulecut", lambda: dispatch(list(argv)))

    yield run
    monkeypatch.undo()
    for stream in opened:
        stream.close()  # `guarded` has pointed a full one at /dev/null


@needs_full
@pytest.mark.parametrize("words", ["plan job.yaml", "plan job.yaml --json", "--version", "--help"])
def test_a_full_disk_is_one_line_and_status_1(
    joulecut: Joulecut, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert joulecut(*words.split(), out=str(FULL)) == 1
    assert capsys.readouterr().err == "joulecut: No space left on device\n"


# Loads an extension module where no file can be opened any more.
LOAD = """
import _imp, resource, sys
from importlib.machinery import ModuleSpec
from joulecut_wire.command import guarded
files = []
def run():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        while True:
            files.append(open("/dev/null"))
    except OSError:
        _imp.create_dynamic(ModuleSpec("cygrpc", None, origin=sys.argv[1]))
sys.exit(guarded("joulecut-agent", run))
"""


def test_a_library_that_has_no_room_to_load_is_one_line_and_status_1() -> None:
    """As an agent that starts on a node without a free file."""
    argv = [sys.executable, "-c", LOAD, cygrpc.__file__]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "joulecut-agent: Too many open files\n")


@needs_full
@pytest.mark.parametrize("errors", [str(FULL), None])
def test_a_complaint_that_cannot_be_written_keeps_its_status(
    joulecut: Joulecut, errors: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert joulecut("plan", "none.yaml", err=errors) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8:strict"])
@pytest.mark.parametrize("name", ["ü λ.yaml".encode(), b"\xff.yaml"])
def test_a_name_outside_the_encoding_is_escaped(
    joulecut: Joulecut, folder: Path, encoding: str, name: bytes
) -> None:
    (folder / os.fsdecode(name)).write_text(JOB)
    assert joulecut("plan", os.fsdecode(name), out="plan.txt", encoding=encoding) == 0
    assert b"1 stages x 2 microbatches" in (folder / "plan.txt").read_bytes()


def test_a_complaint_cannot_steer_the_terminal(
    joulecut: Joulecut, capsys: pytest.CaptureFixture[str]
) -> None:
    assert joulecut("plan", "\x1b[31mred\x07.yaml") == 2
    assert capsys.readouterr().err.startswith("joulecut: \\x1b[31mred\\x07.yaml: No such file")


@pytest.mark.parametrize("argv", [("",), ("a\nb",), ("--nonsense",)])
def test_a_wrong_command_lists_those_there_are(
    joulecut: Joulecut, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert joulecut(*argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "allowed: status, report" in shown.err


@pytest.mark.parametrize("variable", ["NUMBA_OPT=junk", "MPLBACKEND=junk"])
def test_a_variable_that_a_library_refuses_is_one_line(folder: Path, variable: str) -> None:
    """Nothing of it is compiled or drawn before: a process of its own."""
    name, _, value = variable.partition("=")
    done = subprocess.run(
        [*JOULECUT.split(), "plan", "job.yaml", "--plot", "plan.png"],
        cwd=folder, env={**os.environ, name: value, "NUMBA_CACHE_DIR": str(folder / "cold")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert name in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
def test_a_file_without_an_end_is_refused(
    joulecut: Joulecut, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ("plan", "policy check"):
        assert joulecut(*words.split(), "/dev/zero") == 2
        assert "/dev/zero: not a regular file" in capsys.readouterr().err


# -- a real process: closed descriptors and a broken pipe, to the interpreter's own end ------------


def test_a_plan_without_any_stream_is_still_fine(folder: Path) -> None:
    line = f"{JOULECUT} plan job.yaml <&- >&- 2>&-"
    done = subprocess.run(["/bin/sh", "-c", line], cwd=folder, timeout=WAIT_S, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("words", ["plan job.yaml --json", "--help"])
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
