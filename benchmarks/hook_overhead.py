"""Time that the hooks of a training script take per mark: `begin` or `end` of one operation.

Measured on this machine, with the clock of operations on the CPU; with an agent that listens, and
without one; with and without a datagram for each mark.
"""

import os
import socket
import sys
import tempfile
import time

from joulecut.recorder import IterationRecorder

MARKS, PER_ITERATION = 100_000, 200
BAR_US = 20.0


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        path = f"{home}/s"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
            agent.bind(path)
            os.environ |= {"JOULECUT_SOCKET": path, "JOULECUT_UUID": "GPU-x"}
            _measure("agent listens", agent)
            os.environ["JOULECUT_MARKS"] = "1"
            _measure("agent listens, a datagram a mark", agent)
        del os.environ["JOULECUT_MARKS"]
        os.environ["JOULECUT_SOCKET"] = f"{home}/gone"
        _measure("no agent", None)


def _measure(what: str, agent: socket.socket | None) -> None:
    recorder = IterationRecorder()
    took_s: list[float] = []
    for mark in range(MARKS // 2):
        t0 = time.perf_counter()
        begun = recorder.begin("forward", mark)
        t1 = time.perf_counter()
        recorder.end("forward", mark, begun)
        t2 = time.perf_counter()
        took_s += (t1 - t0, t2 - t1)
        if mark % (PER_ITERATION // 2) == 0:
            recorder.step()
        if agent is not None:
            _drain(agent)
    took_s.sort()
    p50, p99 = (1e6 * took_s[round(q * (len(took_s) - 1))] for q in (0.5, 0.99))
    sys.stdout.write(f"{what}: p50 {p50:.1f} us, p99 {p99:.1f} us a mark (bar: {BAR_US:g} us)\n")


def _drain(agent: socket.socket) -> None:
    agent.setblocking(False)
    try:
        while True:
            agent.recv(10_000)
    except BlockingIOError:
        return


if __name__ == "__main__":
    main()
