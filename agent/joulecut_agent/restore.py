"""`joulecut-agent restore`: gives every GPU back, whatever is alive and whatever is not.

Made for systemd's ExecStopPost and for a person in a hurry: it may run at any time, twice,
and with or without a keeper, and says one line for each GPU.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from joulecut_agent.keeper import keeper
from joulecut_agent.keeper import lease as leases
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.lease import Command
from joulecut_agent.keeper.writer_process import Hand
from joulecut_agent.ports.writer import DeviceWriter
from joulecut_wire.errors import Unavailable

WAIT_S = 10.0  # for a keeper that is just starting or leaving
LOCK_WAIT_S = 0.2  # of it, before the next look for a keeper that answers


def run(
    settings: keeper.Settings, sockets: list[Path], open_writer: Callable[[], DeviceWriter]
) -> int:
    """Asks the keeper behind one of `sockets`, or does it itself. Returns an exit status."""
    until_s = time.monotonic() + WAIT_S
    while True:
        for path in sockets:
            client = KeeperClient("")
            try:
                client.connect(str(path))
                return _told(client)
            except KeeperGone as error:
                gone = error
            finally:
                client.detach()
        try:
            keeper.hold(Path(settings.state_dir) / "keeper.lock", LOCK_WAIT_S)
            return _by_hand(settings, Hand(open_writer))
        except Unavailable:
            if time.monotonic() >= until_s:
                raise Unavailable(f"a keeper holds the lock, and does not answer: {gone}") from None


def _told(client: KeeperClient) -> int:
    reply = client.ask(Command(leases.CLEAR))
    for slot in reply.slots:
        _say(slot.uuid, slot.accepted, slot.reason)
    if not reply.slots:
        _nothing()
    return 0 if all(slot.accepted for slot in reply.slots) else 1


def _by_hand(settings: keeper.Settings, writer: DeviceWriter) -> int:
    named = sorted(keeper.journal(settings).held)
    if not named:
        _nothing()  # and no handle is opened: somebody may be replacing the driver
        return 0
    ours = keeper.Keeper(settings, writer)
    done = ours.give_back("keeper_start")
    for uuid in named:
        owed = ours.state.gpu(uuid).owed
        _say(uuid, owed is None, "the device refused; see standard error" if owed else "")
    return 0 if done else 1


def _say(uuid: str, done: bool, reason: str) -> None:
    sys.stdout.write(f"{uuid} restored\n" if done else f"{uuid} NOT restored: {reason}\n")


def _nothing() -> None:
    sys.stdout.write("nothing to restore\n")
