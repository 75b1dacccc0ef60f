"""Bad input to the demo: one line, exit status 2, before any process is started."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from joulecut_lab.demo.command import run
from joulecut_wire.errors import BadInput

COMMAND = (str(Path(sys.executable).with_name("joulecut")), "demo", "--no-browser")


def _run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *flags], capture_output=True, text=True, timeout=120.0, check=False
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--duration", "5"), "30 to 86400"),
        (("--duration", "nan"), "30 to 86400"),
        (("--duration", "soon"), "--duration"),
        (("--port", "70000"), "a whole number from 0 to 65535"),
        (("--port", "-1"), "a whole number from 0 to 65535"),
        (("--seed", "-1"), "--seed"),
        (("--card", "h100"), "a100-sxm, a40"),
        (("--summary", "/no/such/folder/summary.json"), "--summary"),
        (("--summary", "/dev"), "/dev is a folder"),
        (("--slo", "max_slowdown: 2"), "a percentage from 0% to 100%"),
        (("--slo", "nonsense"), "--slo"),
        (("--slo", "max_slowdown: 2%\n      rate: hook"), "more than one line"),
        (("--slo", "colour: red"), "--slo"),
        (("--frobnicate",), "--frobnicate"),
        (("surplus",), "surplus"),
    ],
)
def test_bad_flags_are_named(flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(BadInput) as told:
        run(list(flags))
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_a_bad_flag_is_one_line_and_status_2() -> None:
    done = _run("--duration", "5")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line == "joulecut: --duration: 5 is out of range; allowed: seconds from 30 to 86400"


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = _run("--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "a free port, or 0 for any" in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_help_is_short_and_fine() -> None:
    done = _run("--help")
    assert done.returncode == 0
    assert "--duration" in done.stdout
