"""Child process that reads the driver for the agent, and can be killed when a call hangs.

It imports little: no gRPC, no configuration, no back end but its own. It answers one request at a
time, and ends with the agent.
"""

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any

from joulecut_agent import memory
from joulecut_agent.monitor import reader_protocol as wire
from joulecut_agent.monitor.reader_protocol import DRIVER, PACKET_BYTES_MAX, Progress
from joulecut_agent.ports.failure import Transient
from joulecut_wire.errors import JoulecutError, not_installed


class _ReaderLoop:
    """Answers requests."""

    def __init__(self, line: socket.socket, progress: Progress, backend: str) -> None:
        self._line = line
        self._progress = progress
        self._backend = backend
        self._reader: Any = None

    def run(self) -> None:
        """Returns, or raises OSError, when the agent is gone."""
        self._progress.step(DRIVER)
        while raw := self._line.recv(PACKET_BYTES_MAX):
            self._line.send(wire.encode(self._answer(*wire.decode(raw))))
            self._progress.step(DRIVER)

    def _answer(self, call: str, *arguments: Any) -> Any:
        """The result of a call, or the error that the call raised."""
        try:
            return self._perform(call, *arguments)
        except JoulecutError as error:
            return error
        except Exception as error:
            return Transient("reader_failed", f"{call}: {type(error).__name__}: {error}")

    def _perform(self, call: str, *arguments: Any) -> Any:
        if call == "open":
            address, options, state_dir = json.loads(self._backend)
            self._reader = _load(address).open_reader(options, state_dir)
            memory.give_back()
            return None
        reader, step = self._reader, self._progress.step
        if call == "describe":
            found = reader.describe(frozenset(arguments[0]), step)
            return found, getattr(reader, "unread", {})
        if call == "read":
            return reader.read(frozenset(arguments[0]), step)
        step(arguments[0])
        return reader.burst(arguments[0])


def main(argv: list[str]) -> int:
    """`argv`: the descriptors of socket and progress, and the back end as JSON."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it leaves with its agent
    line = socket.socket(fileno=int(argv[0]))
    progress = Progress(int(argv[1]))
    os.close(int(argv[1]))
    with contextlib.suppress(OSError):  # the agent is gone
        _ReaderLoop(line, progress, argv[2]).run()
    return 0


def _load(address: str) -> Any:
    module, _, name = address.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise not_installed(f"device {address} cannot be loaded: {error}", "agent") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
