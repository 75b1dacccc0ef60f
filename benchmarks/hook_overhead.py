"""Processor time that the hooks of a training script take per iteration, and per mark.

Measured on this machine, with the clock of operations on the CPU. An iteration has 32 operations.
The agent's socket is held by a process that listens, is absent, goes and comes back, reads ten
datagrams a second, or reads none.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from joulecut.recorder import IterationRecorder

OPERATIONS = 32
ITERATIONS, ITERATION_S = 1_000, 0.002  # other work between two, so that an agent may read
BAR_MS, BAR_MARK_US = 0.25, 20.0
# ARGUMENTS: socket, seconds between two reads (0: at once, -1: never), seconds between restarts
AGENT = """
import os, socket, sys, time
path, pause_s, restart_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
while True:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(path)
        agent.settimeout(0.1)
        end_s = time.monotonic() + restart_s
        while time.monotonic() < end_s:
            try:
                pause_s < 0.0 or agent.recv(10_000)
            except TimeoutError:
                pass
            time.sleep(max(0.0, pause_s) if pause_s >= 0.0 else 0.1)
    os.unlink(path)
    time.sleep(0.1)
"""
AGENTS = {
    "listens": ("0", "1e9"),
    "absent": None,
    "restarts every 0.3 s": ("0", "0.3"),
    "reads ten a second": ("0.1", "1e9"),
    "reads none": ("-1", "1e9"),
}


@contextlib.contextmanager
def _agent(arguments: tuple[str, str] | None) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "s"
        os.environ |= {"JOULECUT_SOCKET": str(path), "JOULECUT_UUID": "GPU-x"}
        if arguments is None:
            yield
            return
        child = subprocess.Popen([sys.executable, "-c", AGENT, str(path), *arguments])
        try:
            while not path.exists():
                time.sleep(0.01)
            yield
        finally:
            child.kill()
            child.wait()


def _iterate(recorder: IterationRecorder) -> None:
    for microbatch in range(OPERATIONS // 2):
        for kind in ("forward", "backward"):
            recorder.end(kind, microbatch, recorder.begin(kind, microbatch))
    recorder.step()


def _quantiles(took_s: list[float]) -> tuple[float, float, float]:
    """Mean, 99th percentile and most."""
    took_s.sort()
    return sum(took_s) / len(took_s), took_s[round(0.99 * (len(took_s) - 1))], took_s[-1]


def _measure(what: str, per: int, unit: str, scale: float, work: Callable[[], None]) -> float:
    """The mean of `work`, over `per` parts of it, in `unit`."""
    processor_s, wall_s = [], []
    for _ in range(ITERATIONS):
        begun_s, begun_wall_s = time.thread_time(), time.monotonic()
        work()
        processor_s.append((time.thread_time() - begun_s) / per)
        wall_s.append(time.monotonic() - begun_wall_s)
        time.sleep(ITERATION_S)
    mean, p99, _ = (scale * one for one in _quantiles(processor_s))
    longest_ms = 1e3 * _quantiles(wall_s)[2]
    sys.stdout.write(
        f"{what:<44} mean {mean:.3f} {unit}, p99 {p99:.3f} {unit} of the processor; "
        f"longest iteration {longest_ms:.1f} ms\n"
    )
    return mean


def main() -> None:
    worst_ms = 0.0
    for name, arguments in AGENTS.items():
        with _agent(arguments):
            recorder = IterationRecorder()
            mean_ms = _measure(f"agent {name}", 1, "ms", 1e3, lambda r=recorder: _iterate(r))
            worst_ms = max(worst_ms, mean_ms)
    sys.stdout.write(f"an iteration takes {worst_ms:.2f} ms at most (bar: {BAR_MS:g} ms)\n")
    for marks in ("", "1"):
        os.environ["JOULECUT_MARKS"] = marks
        with _agent(AGENTS["listens"]):
            recorder, what = IterationRecorder(), "a mark" + (", a datagram each" if marks else "")
            mean_us = _measure(what, 2 * OPERATIONS, "us", 1e6, lambda r=recorder: _iterate(r))
        sys.stdout.write(f"  mean {mean_us:.1f} us (bar: {BAR_MARK_US:g} us)\n")


if __name__ == "__main__":
    main()
