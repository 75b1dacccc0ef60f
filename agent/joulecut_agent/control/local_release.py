"""`joulecut-agent release` and `resume`: a release window opened on the node itself.

Needs no network and no certificate: the permission is that of the keeper's socket. The keeper
restores every GPU and drops its handles; the agent follows within a second.
"""

import sys
import time
from pathlib import Path

from joulecut_agent.control.release_file import ReleaseFile
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.keeper import BOOT_ID, RELEASE_S_MAX
from joulecut_agent.keeper.requests import Release, ResetEpoch, Resume
from joulecut_wire.errors import Unavailable

FOLLOWS_S = 1.5  # an agent polls its keeper once a second


def window(state_dir: str) -> ReleaseFile:
    return ReleaseFile(state_dir, BOOT_ID.read_text().strip())


def release(sockets: list[Path], file: ReleaseFile, duration_s: float) -> int:
    """Raises Unavailable if no keeper answers, or it could not restore every GPU."""
    left_s, gpus = file.left_s(), file.gpus()
    if 0.0 < duration_s <= RELEASE_S_MAX:
        file.write(duration_s, gpus)  # first: a keeper that restarts meanwhile must know
    try:
        _send(sockets, Release(duration_s))
    except Unavailable:
        file.revert(left_s, gpus)
        raise
    time.sleep(FOLLOWS_S)  # the next program finds no open handle
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + duration_s - FOLLOWS_S))
    sys.stdout.write(f"released until {until}: no device is read or set, no handle is open\n")
    return 0


def resume(sockets: list[Path], file: ReleaseFile) -> int:
    """Raises Unavailable if no keeper answers and no window was open."""
    waited = file.forget()
    try:
        _send(sockets, Resume())
    except Unavailable:
        if not waited:
            raise
    sys.stdout.write("resumed\n")
    return 0


def _send(sockets: list[Path], request: Release | Resume) -> None:
    if gone := ask_first(sockets, request):
        raise Unavailable(f"{gone}; an agent without a keeper is released by stopping it")


def ask_first(sockets: list[Path], request: Release | Resume | ResetEpoch) -> str:
    """Asks the first keeper that answers; why the first did not, where none does. Raises
    Unavailable with the reason of a refusal.
    """
    gone = ""
    for path in sockets:
        client = KeeperClient("")
        try:
            client.connect(str(path))
            slot = client.ask(request).slots[0]
        except KeeperGone as error:
            gone = gone or str(error)
            continue
        finally:
            client.detach()
        if not slot.accepted:
            raise Unavailable(slot.reason)
        return ""
    return gone
