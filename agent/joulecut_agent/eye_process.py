"""The process that reads the driver for the agent, and can be killed when a call hangs.

It imports little: no gRPC, no configuration, no other back end than its own. It answers one
request at a time, and ends when the agent does.
"""

import importlib
import json
import os
import signal
import socket
import sys
from typing import Any

from joulecut_agent import eye_protocol as words
from joulecut_agent import memory
from joulecut_agent.eye_protocol import DRIVER, PACKET_BYTES_MAX, Mark
from joulecut_agent.ports.failure import Transient
from joulecut_wire.errors import JoulecutError, Unavailable


def main(argv: list[str]) -> int:
    """`argv`: the descriptors of line and mark, and what to open as JSON."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it leaves with its agent
    line = socket.socket(fileno=int(argv[0]))
    mark = Mark(int(argv[1]))
    os.close(int(argv[1]))
    address, options, state_dir = json.loads(argv[2])
    reader: Any = None
    answer: list[Any]
    try:
        while raw := line.recv(PACKET_BYTES_MAX):
            call, *arguments = words.decode(raw)
            try:
                if call == "open":
                    reader = _backend(address).open_reader(options, state_dir)
                    memory.give_back()
                    answer = [None, None]
                else:
                    answer = [None, _answer(reader, call, arguments, mark)]
            except JoulecutError as error:
                answer = [words.encode_error(error), None]
            except Exception as error:
                what = f"{call}: {type(error).__name__}: {error}"
                answer = [words.encode_error(Transient("reader_failed", what)), None]
            line.send(words.encode(answer))
    except OSError:
        return 0  # the agent has gone
    return 0


def _backend(address: str) -> Any:
    module, _, name = address.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        what = f"device {address} cannot be loaded: {error}; pip install 'joulecut[all]' has it"
        raise Unavailable(what) from None


def _answer(reader: Any, call: str, arguments: list[Any], mark: Mark) -> Any:
    mark.step(DRIVER)
    if call == "describe":
        return words.encode_described(reader.describe(frozenset(arguments[0]), mark.step))
    if call == "read":
        return words.encode_readings(reader.read(frozenset(arguments[0]), mark.step))
    mark.step(arguments[0])
    return words.encode_burst(reader.burst(arguments[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
