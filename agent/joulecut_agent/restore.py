"""`joulecut-agent restore`: restores every GPU, with a keeper or without one.

For systemd's ExecStopPost and for operators: it may run at any time and repeatedly, and prints one
line for each GPU.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

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
        try:
            service.hold(Path(settings.state_dir) / "keeper.lock", LOCK_WAIT_S)
            writer = WriterProcess(open_writer)
            return _directly(settings, writer, lift_power_limits=lift_power_limits)
        except Unavailable:
            if time.monotonic() >= until_s:
                raise Unavailable(f"a keeper holds the lock, and does not answer: {gone}") from None


def _through_keeper(client: KeeperClient, *, lift_power_limits: bool) -> int:
    reply = client.ask(Clear(lift_power_limit=lift_power_limits))
    for slot in reply.slots:
        _print(slot.uuid, slot.accepted, slot.reason)
    if not reply.slots:
        _print_nothing()
    return 0 if all(slot.accepted for slot in reply.slots) else 1


def _directly(settings: Settings, writer: DeviceWriter, *, lift_power_limits: bool) -> int:
    journal = keeper.journal(settings)
    kept = journal.kept_mw if lift_power_limits else ()
    named = sorted({*journal.held, *kept, *(writer.uuids() if journal.damaged else ())})
    if not named:
        _print_nothing()  # and no handle is opened: the driver may be being replaced
        return 0
    ours = keeper.Keeper(settings, writer)
    if lift_power_limits:
        ours.handle(0, Clear(lift_power_limit=True))
    done = ours.restore_all("keeper_start")
    for uuid in named:
        _print(uuid, ours.state.gpu(uuid).is_restored, "the device refused; see standard error")
    return 0 if done else 1


def _print(uuid: str, done: bool, reason: str) -> None:
    sys.stdout.write(f"{uuid} restored\n" if done else f"{uuid} NOT restored: {reason}\n")


def _print_nothing() -> None:
    sys.stdout.write("nothing to restore\n")
