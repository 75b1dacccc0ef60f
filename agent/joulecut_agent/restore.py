"""`joulecut-agent restore`: restores every GPU, with a keeper or without one.

For systemd's ExecStopPost and for operators: it may run at any time and repeatedly, and prints one
line for each GPU. Where the configuration does not name the journal of the keeper that is gone,
success would be a claim about GPUs that it cannot see: it fails, with the configuration to use.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from joulecut_agent.control import release_file
from joulecut_agent.keeper import keeper, service
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.requests import Clear
from joulecut_agent.keeper.settings import Settings
from joulecut_agent.keeper.writer_process import WriterProcess
from joulecut_agent.ports.writer import DeviceWriter
from joulecut_wire.errors import Unavailable

WAIT_S = 10.0  # for a keeper that is starting or leaving
LOCK_WAIT_S = 0.2  # of it, between two tries to connect


def run(
    settings: Settings, sockets: list[Path], open_writer: Callable[[], DeviceWriter], *,
    lift_power_limits: bool,
) -> int:  # fmt: skip
    """Asks the keeper behind one of `sockets`, or restores itself. Returns an exit status.

    `lift_power_limits`: also sets power limits back that were to outlive their lease.
    """
    until_s = time.monotonic() + WAIT_S
    while True:
        for path in sockets:
            client = KeeperClient("")
            try:
                client.connect(str(path))
                return _through_keeper(client, lift_power_limits=lift_power_limits)
            except KeeperGone as error:
                gone = error
            finally:
                client.detach()
        lock = Path(settings.state_dir) / "keeper.lock"
        try:
            service.hold(lock, LOCK_WAIT_S)
        except Unavailable:
            if time.monotonic() >= until_s:
                raise Unavailable(f"a keeper holds the lock, and does not answer: {gone}") from None
            continue
        unread, writer = _unread_journal(settings, sockets[0], lock), WriterProcess(open_writer)
        named, done = _directly(settings, writer, lift_power_limits=lift_power_limits)
        if unread:
            raise Unavailable(unread)
        if not named:
            _print_nothing()
        return 0 if done else 1


def _through_keeper(client: KeeperClient, *, lift_power_limits: bool) -> int:
    reply = client.ask(Clear(lift_power_limit=lift_power_limits))
    for slot in reply.slots:
        _print(slot.uuid, slot.accepted, slot.reason)
    if not reply.slots:
        _print_nothing()
    return 0 if all(slot.accepted for slot in reply.slots) else 1


def _unread_journal(settings: Settings, socket: Path, lock: Path) -> str:
    """Why the journal of this node's keeper was not read, with what to do, or ""."""
    own = Path(settings.state_dir)
    if socket.parent.resolve() != own.resolve():
        return (
            f"no keeper answers at {socket}, and this file does not name its journal: repeat with "
            "--config of the keeper (as installed /etc/joulecut/keeper.yaml)"
        )
    named = Path(os.fsdecode(lock.read_bytes()) or own / "journal")  # empty: of an earlier version
    if named.resolve() in {one.resolve() for one in (settings.journal_file, own / "journal")}:
        return ""
    return f"the last keeper's journal is {named}: repeat with journal_dir: {named.parent}"


def _directly(
    settings: Settings, writer: DeviceWriter, *, lift_power_limits: bool
) -> tuple[list[str], bool]:
    """The GPUs that the journal names, and whether each of them was restored."""
    journal = keeper.journal(settings)
    kept = journal.kept_mw if lift_power_limits else ()
    restores = {*journal.held, *kept, *(writer.uuids() if journal.damaged else ())}
    unread = {uuid for uuid, clocks_mhz in journal.clocks_mhz.items() if clocks_mhz}
    if release_file.of_this_boot(settings.state_dir).left_s():
        unread = set()  # the keeper reads them after the window
    if not restores | unread:
        return [], True  # and no handle is opened: the driver may be being replaced
    ours = keeper.Keeper(settings, writer)
    if lift_power_limits:
        ours.handle(0, Clear(lift_power_limit=True))
    done = ours.leave("keeper_start")
    named = sorted(restores | {uuid for uuid in unread if ours.state.gpu(uuid).shown})
    for uuid in named:
        _print(uuid, ours.state.gpu(uuid).is_restored, "the device refused; see standard error")
    return named, done


def _print(uuid: str, done: bool, reason: str) -> None:
    sys.stdout.write(f"{uuid} restored\n" if done else f"{uuid} NOT restored: {reason}\n")


def _print_nothing() -> None:
    sys.stdout.write("nothing to restore\n")
