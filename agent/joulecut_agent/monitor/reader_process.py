"""The process that reads the driver for the agent, and can be killed when a call hangs.

It imports little: no gRPC, no configuration, no other back end than its own. It answers one
request at a time, reads by itself in between where it was told to, and ends when the agent does.
What it reads lies in the line until the agent wants it: waking the agent for each reading would
cost more than the reading.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from joulecut_agent import memory
from joulecut_agent.monitor import reader_protocol as words
from joulecut_agent.monitor.reader_protocol import DRIVER, IDLE, PACKET_BYTES_MAX, Mark
from joulecut_agent.ports.failure import Transient
from joulecut_wire.errors import JoulecutError, Unavailable


class _Eye:
    """The reader, and what it was told to do by itself."""

    def __init__(self, line: socket.socket, mark: Mark, given: str) -> None:
        self._line = line
        self._mark = mark
        self._given = given
        self._reader: Any = None
        self._glance: Any = None
        self._left_out: frozenset[int] = frozenset()
        self._each_s = 0.0
        self._due_s = 0.0
        self._number = 0  # of the last whole reading

    def run(self) -> None:
        """Until the agent has gone; raises OSError then, too."""
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        while True:
            wait_s = max(0.0, self._due_s - time.monotonic()) if self._each_s else None
            if not poll.poll(wait_s and wait_s * 1000.0):
                self._push()
            elif raw := self._line.recv(PACKET_BYTES_MAX):
                self._line.send(words.encode(self._answer(*words.decode(raw))))
            else:
                return
            self._mark.step(IDLE)

    def _push(self) -> None:
        self._due_s = max(self._due_s + self._each_s, time.monotonic())
        try:
            rows = self._glance(self._mark.step) if self._glance else None
            rows = rows or self._whole()
        except Exception:  # the agent asks what is wrong, and hears it
            rows = None
        with contextlib.suppress(BlockingIOError):  # nobody takes them: later ones tell the same
            self._line.send(words.pushed(self._number, rows), socket.MSG_DONTWAIT)

    def _whole(self) -> Any:
        readings = self._reader.read(self._left_out, self._mark.step)
        self._number += 1
        return words.encode_readings(readings)

    def _answer(self, call: str, *arguments: Any) -> list[Any]:
        try:
            return [None, self._do(call, *arguments)]
        except JoulecutError as error:
            return [words.encode_error(error), None]
        except Exception as error:
            what = f"{call}: {type(error).__name__}: {error}"
            return [words.encode_error(Transient("reader_failed", what)), None]

    def _do(self, call: str, *arguments: Any) -> Any:
        if call == "open":
            address, options, state_dir = json.loads(self._given)
            self._reader = _backend(address).open_reader(options, state_dir)
            self._glance = getattr(self._reader, "glance", None)
            memory.give_back()
            return None
        reader, mark = self._reader, self._mark
        mark.step(DRIVER)
        if call == "describe":
            return words.encode_described(reader.describe(frozenset(arguments[0]), mark.step))
        if call == "read":
            self._left_out, self._each_s = frozenset(arguments[0]), arguments[1]
            self._due_s = time.monotonic() + self._each_s
            rows = self._whole()
            return [self._number, rows]
        mark.step(arguments[0])
        return words.encode_burst(reader.burst(arguments[0]))


def main(argv: list[str]) -> int:
    """`argv`: the descriptors of line and mark, and what to open as JSON."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it leaves with its agent
    line = socket.socket(fileno=int(argv[0]))
    mark = Mark(int(argv[1]))
    os.close(int(argv[1]))
    with contextlib.suppress(OSError):  # the agent has gone
        _Eye(line, mark, argv[2]).run()
    return 0


def _backend(address: str) -> Any:
    module, _, name = address.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        what = f"device {address} cannot be loaded: {error}; pip install 'joulecut[all]' has it"
        raise Unavailable(what) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
