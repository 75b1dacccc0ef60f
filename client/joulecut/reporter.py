"""Reports iterations of a training job to the agent of its node, in two lines of a training loop.

A report is one small datagram. It neither blocks nor breaks a training step: on any error the
report is lost and training goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket as sockets
import time
from collections.abc import Mapping, Sequence

SOCKET = "/run/joulecut/jobs.sock"  # the agent's own default
SOCKET_VARIABLE = "JOULECUT_SOCKET"
DATAGRAM_BYTES_MAX = 8192  # the agent's own bound
VERSION = 1
RETRY_S = 1.0  # between connects without an agent: reports are lost then, and cost next to nothing


class Reporter:
    """Reports iterations of one job on one GPU.

    `uuid` is the GPU's ("GPU-..."), `stage` the pipeline stage from 0, `replica` the data-parallel
    pipeline from 0 where there are several (older agents refuse it). `socket`: by default
    $JOULECUT_SOCKET, else /run/joulecut/jobs.sock. The job ends for the agent with this process.
    """

    def __init__(
        self,
        job: str,
        uuid: str,
        stage: int,
        socket: str | None = None,
        *,
        replica: int | None = None,
    ) -> None:
        self._identity = {"v": VERSION, "job": job, "uuid": uuid, "stage": stage}
        self._replica = {} if replica is None else {"replica": replica}
        self._path = socket or os.environ.get(SOCKET_VARIABLE) or SOCKET
        self._socket: sockets.socket | None = None
        self._retry_s = 0.0

    def iteration(
        self,
        number: int,
        duration_s: float,
        ops: Mapping[str, tuple[int, float]] | None = None,
        peer_iteration_time_s: float | None = None,
        *,
        timed: Sequence[tuple[str, float]] | None = None,
        age_s: float = 0.0,
        shape: Mapping[str, object] | None = None,
    ) -> bool:
        """Reports that iteration `number` took `duration_s`; whether it was sent.

        `ops`: by kind of operation ("forward", "backward"), its count and total seconds on the GPU.
        `timed`, in place of `ops`: kind and seconds of each operation. `peer_iteration_time_s`:
        iteration time of the slowest sibling pipeline, if this job waits for one. `age_s`: how long
        ago it ended. `shape`: `schedule`, `stages`, `microbatches`, as the policy names them. Never
        raises.
        """
        with contextlib.suppress(Exception):
            if time.monotonic() < self._retry_s:
                return False
            words = {**self._identity, **self._replica, "iteration": number}
            words["duration_s"] = duration_s
            words["ops"] = _sums(_by_kind(timed) if timed else ops or {})
            if peer_iteration_time_s is not None:
                words["peer_iteration_time_s"] = peer_iteration_time_s
            if age_s > 0.0:
                words["age_s"] = age_s
            if shape is not None:
                words["shape"] = dict(shape)
            return self._send(words)
        return False

    def mark(self, mark: str, kind: str, microbatch: int, iteration: int) -> bool:
        """Reports the "begin" or "end" of an operation when it happens; whether it was sent.

        Used only while the GPU has a clock schedule. Never raises.
        """
        with contextlib.suppress(Exception):
            if time.monotonic() < self._retry_s:
                return False
            words = {**self._identity, "mark": mark, "kind": kind, "microbatch": microbatch}
            words.update(iteration=iteration, t_ns=time.monotonic_ns())
            return self._send(words)
        return False

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _send(self, words: Mapping[str, object]) -> bool:
        raw = json.dumps(words, allow_nan=False, separators=(",", ":")).encode()
        if len(raw) > DATAGRAM_BYTES_MAX:
            return False
        try:
            if self._socket is None:
                self._retry_s = time.monotonic() + RETRY_S  # unless it connects
                self._socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM)
                self._socket.setblocking(False)
                self._socket.connect(self._path)
                self._retry_s = 0.0
            self._socket.send(raw)
        except BlockingIOError:
            return False  # the agent is busy; the next report follows soon
        except OSError:
            self.close()  # no agent, or a new one: connect again next time
            return False
        return True


def _sums(ops: Mapping[str, tuple[int, float]]) -> list[dict[str, object]]:
    return [
        {"kind": kind, "count": count, "busy_s": busy_s} for kind, (count, busy_s) in ops.items()
    ]


def _by_kind(timed: Sequence[tuple[str, float]]) -> dict[str, tuple[int, float]]:
    """Count and seconds of each kind."""
    found: dict[str, tuple[int, float]] = {}
    for kind, seconds in timed:
        count, busy_s = found.get(kind, (0, 0.0))
        found[kind] = count + 1, busy_s + seconds
    return found
