"""The demo as a stranger starts it: real processes, from the first line to the last."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

COMMAND = (str(Path(sys.executable).with_name("joulecut")), "demo", "--no-browser")
README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
WAIT_S = 240.0  # a short demo takes half a minute on an idle machine
PID = re.compile(r"pid (\d+)")
FIELDS = {
    "name",
    "mode",
    "granularity",
    "baseline",
    "controlled",
    "saved_ratio",
    "slowdown_ratio",
    "predicted_saved_ratio",
    "possible_saved_ratio",
}


class Demo:
    """A running demo, and what it has said so far."""

    def __init__(self, *flags: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())

    def wait_for(self, words: str, count: int = 1) -> str:
        """The line in which the words stand for the `count`th time."""
        limit_s = time.monotonic() + WAIT_S
        while time.monotonic() < limit_s:
            if ended := self._process.poll() is not None:
                self._reader.join(WAIT_S)
            found = [line for line in list(self.lines) if words in line]
            if len(found) >= count:
                return found[count - 1]
            assert not ended, self.text()
            time.sleep(0.05)
        raise AssertionError(f"never said {words!r}:\n{self.text()}")

    def pids(self) -> list[int]:
        """Every process it named."""
        return [int(pid) for line in list(self.lines) for pid in PID.findall(line)]

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Its exit status; its lines are whole then."""
        status = self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return status

    def text(self) -> str:
        return "\n".join(self.lines)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()


@contextlib.contextmanager
def demo(*flags: str) -> Iterator[Demo]:
    running = Demo(*flags)
    try:
        yield running
    finally:
        running.close()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def _until(condition: Callable[[], bool]) -> bool:
    limit_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < limit_s:
        time.sleep(0.05)
    return condition()


def _folder_of(pid: int) -> Path:
    """The demo's folder, from the command line of one of its processes."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    path = next(Path(word.decode()) for word in words if b"jcdemo" in word)
    return next(parent for parent in path.parents if parent.name.startswith("jcdemo"))


def _summary(path: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(path.read_text())
    assert set(told) == {
        "jobs",
        "zero_slowdown",
        "commands_sent",
        "commands_while_recommending",
        "gpus_restored",
        "gpus_total",
    }
    assert [set(job) for job in told["jobs"]] == [FIELDS]
    return told


@pytest.mark.long
def test_a_short_demo_saves_keeps_its_target_and_gives_everything_back(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    with demo("--duration", "60", "--summary", str(path)) as running:
        running.wait_for("straggler:")
        folder = _folder_of(running.pids()[0])
        assert running.end() == 0, running.text()
        assert len(running.pids()) == 6  # two agents, two keepers, controller, job
        assert not any(map(_alive, running.pids()))
        assert not folder.exists()
    told = _summary(path)
    job = told["jobs"][0]
    assert (job["name"], job["mode"]) == ("gpt3-175b", "enforce")
    assert job["granularity"] in {"gpu", "changes"}  # by the jitter of a busy machine
    zero = told["zero_slowdown"]
    low, high = re.search(r"the demo measures (\d) to (\d) %", README).groups()
    assert float(low) <= 100.0 * zero["saved_ratio"] < float(high) + 0.5, "as README says"
    assert zero["saved_ratio"] <= zero["possible_saved_ratio"] + 0.01
    assert zero["slowdown_ratio"] <= 0.006
    before, after = job["baseline"], job["controlled"]
    assert job["saved_ratio"] == pytest.approx(1.0 - after["energy_j"] / before["energy_j"])
    assert job["slowdown_ratio"] == pytest.approx(
        after["iteration_time_s"] / before["iteration_time_s"] - 1.0
    )
    # Measured on A100 curves: 10 to 11 % is possible at 2 %; a run this short settles late.
    assert 0.05 < job["saved_ratio"] <= job["possible_saved_ratio"] + 0.01
    assert job["slowdown_ratio"] <= 0.03
    assert job["predicted_saved_ratio"] == pytest.approx(job["saved_ratio"], abs=0.05)
    assert told["commands_while_recommending"] == 0
    assert told["commands_sent"] >= 1  # a plan may leave some GPUs at their default
    assert (told["gpus_restored"], told["gpus_total"]) == (8, 8)


@pytest.mark.long
def test_killed_processes_are_named_and_come_back_and_the_end_is_clean() -> None:
    with demo() as running:
        running.wait_for("recommend:")
        agent, keeper, _, _, controller, _ = running.pids()[:6]
        folder = _folder_of(agent)
        os.kill(controller, signal.SIGKILL)
        running.wait_for("controller was killed by SIGKILL")
        assert "controller is back, pid" in running.wait_for("controller is back")
        os.kill(keeper, signal.SIGKILL)
        running.wait_for(f"keeper node-a pid {keeper} is gone")
        os.kill(agent, signal.SIGKILL)
        running.wait_for("agent node-a was killed by SIGKILL")
        running.wait_for("agent node-a is back")
        running.signal(signal.SIGINT)
        assert running.end() == 0, running.text()
        assert "8 of 8 GPUs at default clocks" in running.text()
        assert _until(lambda: not any(map(_alive, running.pids())))
        assert not folder.exists()


@pytest.mark.long
def test_sigterm_in_the_middle_of_enforcing_gives_back_too(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    with demo("--duration", "30", "--summary", str(path)) as running:
        running.wait_for("measured over")  # under the plan of the phase without slowdown
        folder = _folder_of(running.pids()[0])
        running.signal(signal.SIGTERM)
        running.signal(signal.SIGINT)  # an impatient person
        assert running.end() == 130, running.text()
        assert not any(map(_alive, running.pids()))
        assert not folder.exists()
    told = _summary(path)
    assert told["gpus_restored"] == 8
    assert told["commands_sent"] >= 1  # a plan may leave some GPUs at their default


def test_ctrl_c_before_anything_is_up_leaves_nothing() -> None:
    with demo() as running:
        running.wait_for("Joulecut demo")
        running.signal(signal.SIGINT)
        assert running.end() == 0, running.text()
        assert not any(map(_alive, running.pids()))


@pytest.mark.long
def test_a_reader_that_goes_away_ends_the_demo_in_good_order() -> None:
    """`joulecut demo | head` must not leave a cluster running that nobody sees."""
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        seen = [process.stdout.readline().decode() for _ in range(5)]
        process.stdout.close()
        assert process.wait(WAIT_S) == 0
        assert process.stderr.read() == b""
    pids = [int(pid) for line in seen for pid in PID.findall(line)]
    assert len(pids) == 4
    assert not any(map(_alive, pids))
