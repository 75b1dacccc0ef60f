"""Two lines in a training loop, so that its job is controlled by its own rate and not by guesses.

A report is one small datagram to the node's agent. It can neither block nor break a
training step: whatever goes wrong, the report is lost and training goes on.
"""

import contextlib
import json
import os
import socket as sockets
import time
from collections.abc import Mapping

SOCKET = "/run/joulecut/jobs.sock"  # the agent's own default
SOCKET_VARIABLE = "JOULECUT_SOCKET"
DATAGRAM_BYTES_MAX = 8192  # what the agent takes
VERSION = 1


class Reporter:
    """Reports iterations of one job on one GPU.

    `job` and `uuid` (the GPU's own, "GPU-...") name them, `stage` is the pipeline stage from
    0. `socket` is the agent's; by default $JOULECUT_SOCKET, else /run/joulecut/jobs.sock.
    Use it in the process that trains: when that process ends, the agent knows the job ended.
    """

    def __init__(self, job: str, uuid: str, stage: int, socket: str | None = None) -> None:
        self._words = {"v": VERSION, "job": job, "uuid": uuid, "stage": stage}
        self._path = socket or os.environ.get(SOCKET_VARIABLE) or SOCKET
        self._socket: sockets.socket | None = None

    def iteration(
        self,
        number: int,
        duration_s: float,
        ops: Mapping[str, tuple[int, float]] | None = None,
        peer_iteration_time_s: float | None = None,
    ) -> bool:
        """Reports that iteration `number` took `duration_s` seconds; whether it was sent.

        `ops` gives for each kind of operation ("forward", "backward") how often it ran and
        how many seconds it kept the GPU busy in sum. `peer_iteration_time_s` is the slowest
        sibling pipeline's iteration time, if this job waits for one. Never raises.
        """
        with contextlib.suppress(Exception):
            words = {**self._words, "iteration": number, "duration_s": duration_s}
            words["ops"] = [
                {"kind": kind, "count": count, "busy_s": busy_s}
                for kind, (count, busy_s) in (ops or {}).items()
            ]
            if peer_iteration_time_s is not None:
                words["peer_iteration_time_s"] = peer_iteration_time_s
            return self._send(words)
        return False

    def mark(self, mark: str, kind: str, microbatch: int, iteration: int) -> bool:
        """Reports the "begin" or "end" of one operation, when it happens; whether it was sent.

        Only where the GPU has a clock program does anything wait for it. Never raises.
        """
        with contextlib.suppress(Exception):
            words = {**self._words, "mark": mark, "kind": kind, "microbatch": microbatch}
            words |= {"iteration": iteration, "t_ns": time.monotonic_ns()}
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
                self._socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM)
                self._socket.setblocking(False)
                self._socket.connect(self._path)
            self._socket.send(raw)
        except BlockingIOError:
            return False  # the agent is busy; the next iteration tells as much
        except OSError:
            self.close()  # no agent, or a new one: look for it again next time
            return False
        return True
