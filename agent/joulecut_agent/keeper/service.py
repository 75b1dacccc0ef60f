"""The keeper's process: its lock, its socket, its signals, its loop.

One thread. The socket is a unix socket in the state directory, for its owner and group; there is no
network socket. With an agent as its parent it also has one end of a socket pair.
"""

import contextlib
import fcntl
import math
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from joulecut_agent.keeper import protocol
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.keeper import Keeper
from joulecut_agent.keeper.protocol import ProtocolError, Reply
from joulecut_agent.keeper.settings import Settings
from joulecut_agent.log import log
from joulecut_agent.signal_wakeup import signal_wakeup
from joulecut_wire.errors import Unavailable

if TYPE_CHECKING:
    from joulecut_agent.ports.writer import DeviceWriter

LOCK_WAIT_S, LOCK_TRY_S = 5.0, 0.05  # longer than a keeper needs to restore and leave
CLIENTS_MAX = 8  # an agent, a `restore`, and some more


def run(
    settings: Settings, writer: "DeviceWriter", agent_fd: int = -1,
    ready: Callable[[], None] = lambda: None,
) -> int:  # fmt: skip
    """Serves until a signal, or until the agent at the other end of `agent_fd` is gone.

    `ready` is called once earlier settings are restored and the socket listens. Returns 0 if every
    GPU was restored. Raises Unavailable, OSError, DeviceError.
    """
    with signal_wakeup() as wakeup:
        path = Path(settings.state_dir) / "keeper.sock"
        fd = hold(path.with_suffix(".lock"), LOCK_WAIT_S)
        with contextlib.suppress(OSError):  # a full disk keeps no keeper from restoring
            os.ftruncate(fd, 0)
            os.pwrite(fd, os.fsencode(settings.journal_file), 0)  # for `restore`
        keeper = Keeper(settings, writer)
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.umask(0o117)  # owner and group, as of the state directory
        listener.bind(str(path))
        listener.listen(CLIENTS_MAX)
        ready()
        agent = socket.socket(fileno=agent_fd) if agent_fd >= 0 else None
        cause = _serve(keeper, wakeup, listener, agent)
        path.unlink(missing_ok=True)
        listener.close()
        log("keeper", f"leaving: {cause}")
        return 0 if keeper.leave(cause) else 1


def hold(lock: Path, wait_s: float) -> int:
    """Takes the lock that makes a process the only one of its kind; it ends with the process.

    Raises OSError, and Unavailable if another process holds it for longer than `wait_s`.
    """
    fd = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
    for _ in range(round(wait_s / LOCK_TRY_S)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        time.sleep(LOCK_TRY_S)
    os.close(fd)
    raise Unavailable(f"another {lock.stem} holds {lock}")


def _serve(
    keeper: Keeper, wakeup: socket.socket, listener: socket.socket, agent: socket.socket | None
) -> str:
    """Answers messages and ends leases in time; returns the cause to leave with."""
    with selectors.DefaultSelector() as selector:
        for source in filter(None, (wakeup, listener, agent)):
            source.setblocking(False)
            selector.register(source, selectors.EVENT_READ, source)
        while True:
            wait_s = max(0.0, keeper.due_s() - time.monotonic())
            ready = selector.select(None if wait_s == math.inf else wait_s)
            for source in (key.data for key, _ in ready):
                if source is wakeup:
                    return "shutdown"
                if source is listener:
                    _accept(listener, selector)
                elif not _answer(keeper, source):
                    if source is agent:
                        return "agent_gone"
                    selector.unregister(source)
                    source.close()
            keeper.tick()  # after the answers, which do not wait for restores


def _accept(listener: socket.socket, selector: selectors.BaseSelector) -> None:
    with contextlib.suppress(OSError):
        client, _ = listener.accept()
        if len(selector.get_map()) > CLIENTS_MAX:
            client.close()
            return
        client.setblocking(False)
        selector.register(client, selectors.EVENT_READ, client)


def _answer(keeper: Keeper, source: socket.socket) -> bool:
    """Reads and answers one message; False if the other end is gone or sent no message."""
    try:
        raw = source.recv(protocol.REQUEST_BYTES + 1)
        if not raw:
            return False
        serial, request = protocol.decode_request(raw)
        source.send(protocol.encode_reply(keeper.handle(serial, request)))
    except ProtocolError as error:
        log("keeper", f"a client was dropped: {error}", "warning")
        with contextlib.suppress(OSError):
            source.send(protocol.encode_reply(Reply(0, 0, Bounds(), (), str(error))))
        return False
    except OSError as error:
        log("keeper", f"a client was dropped: {error}", "warning")
        return False
    return True
