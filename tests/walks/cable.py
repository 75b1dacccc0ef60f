"""The network between controllers and one agent: a proxy that can be cut.

While it is cut no byte passes, in either direction, and connections stay open: a partition. What
was on its way arrives late when it heals, or is lost with its connection.
"""

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from pathlib import Path

CHUNK_BYTES = 65_536
POLL_S = 0.05  # how soon a cut or a healing is noticed


class Cable:
    """From the unix socket `near`, for controllers, to the agent's `far`."""

    def __init__(self, near: Path, far: Path, passed: Callable[[], None] = lambda: None) -> None:
        """`passed` is called for each chunk to the agent."""
        self._far, self._passed = str(far), passed
        self._agents: set[socket.socket] = set()  # the ends at the agent
        self._cut = self._over = self._drop = False
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(near))
        self._listener.listen()
        self._thread = threading.Thread(target=self._run, name="cable", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self._cut = True

    def heal(self, *, lossy: bool) -> None:
        """`lossy`: connections of before are reset, with what they carried."""
        self._drop = lossy
        self._cut = False

    def close(self) -> None:
        self._over = True
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._over:
                if self._drop:
                    self._drop = False
                    for one in list(self._pairs):
                        self._end(selector, one)
                if self._cut:
                    threading.Event().wait(POLL_S)
                    continue
                for key, _ in selector.select(POLL_S):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._pairs:
                        self._pass(selector, key.fileobj)
            for one in list(self._pairs):
                self._end(selector, one)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        client, _ = self._listener.accept()
        agent = socket.socket(socket.AF_UNIX)
        try:
            agent.connect(self._far)
        except OSError:  # no agent: refused, as by its own socket
            client.close()
            agent.close()
            return
        self._agents.add(agent)
        for one, other in ((client, agent), (agent, client)):
            self._pairs[one] = other
            selector.register(one, selectors.EVENT_READ)

    def _pass(self, selector: selectors.BaseSelector, one: socket.socket) -> None:
        """Blocks while the other side takes nothing: one connection of small messages."""
        try:
            chunk = one.recv(CHUNK_BYTES)
            if chunk:
                if one not in self._agents:
                    self._passed()
                self._pairs[one].settimeout(1.0)
                self._pairs[one].sendall(chunk)
                return
        except OSError:
            pass
        self._end(selector, one)

    def _end(self, selector: selectors.BaseSelector, one: socket.socket) -> None:
        other = self._pairs.get(one)
        for each in (one, other):
            if each is not None and self._pairs.pop(each, None) is not None:
                with contextlib.suppress(KeyError, ValueError):
                    selector.unregister(each)
                each.close()
                self._agents.discard(each)
