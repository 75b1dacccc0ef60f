"""`joulecut-agent restore`: restores every GPU, with a keeper or without one.

For systemd's ExecStopPost and for operators: it may run at any time and repeatedly, and prints one
line for each GPU.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from joulecut_agent.keeper import keeper
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.lease import Command, Op
from joulecut_agent.keeper.writer_process import WriterProcess
from joulecut_agent.ports.writer import DeviceWriter
from joulecut_wire.errors import Unavailable

WAIT_S = 10.0  # for a keeper that is starting or leaving
LOCK_WAIT_S = 0.2  # of it, between two tries to connect


def run(
    settings: keeper.Settings, sockets: list[Path], open_writer: Callable[[], DeviceWriter]
) -> int:
    """Asks the keeper behind one of `sockets`, or restores itself. Returns an exit status."""
    until_s = time.monotonic() + WAIT_S
    while True:
        for path in sockets:
            client = KeeperClient("")
            try:
                client.connect(str(path))
                return _through_keeper(client)
            except KeeperGone as error:
                gone = error
            finally:
                client.detach()
        try:
            keeper.hold(Path(settings.state_dir) / "keeper.lock", LOCK_WAIT_S)
            return _directly(settings, WriterProcess(open_writer))
        except Unavailable:
            if time.monotonic() >= until_s:
                raise Unavailable(f"a keeper holds the lock, and does not answer: {gone}") from None


def _through_keeper(client: KeeperClient) -> int:
    reply = client.ask(Command(Op.CLEAR))
    for slot in reply.slots:
        _print(slot.uuid, slot.accepted, slot.reason)
    if not reply.slots:
        _print_nothing()
    return 0 if all(slot.accepted for slot in reply.slots) else 1


def _directly(settings: keeper.Settings, writer: DeviceWriter) -> int:
    journal = keeper.journal(settings)
    named = sorted({*journal.held, *(writer.uuids() if journal.damaged else ())})
    if not named:
        _print_nothing()  # and no handle is opened: the driver may be being replaced
        return 0
    ours = keeper.Keeper(settings, writer)
    done = ours.restore_all("keeper_start")
    for uuid in named:
        pending = ours.state.gpu(uuid).pending_restore
        _print(uuid, pending is None, "the device refused; see standard error" if pending else "")
    return 0 if done else 1


def _print(uuid: str, done: bool, reason: str) -> None:
    sys.stdout.write(f"{uuid} restored\n" if done else f"{uuid} NOT restored: {reason}\n")


def _print_nothing() -> None:
    sys.stdout.write("nothing to restore\n")
