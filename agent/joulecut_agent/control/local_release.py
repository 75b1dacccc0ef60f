"""`joulecut-agent release` and `resume`: a release window that needs no network and no identity.

Made for a person on the node: whoever may open the keeper's socket may ask. The keeper gives
every GPU back and lets go; the agent beside it follows within a second.
"""

import sys
import time
from pathlib import Path

from joulecut_agent.control.release_file import ReleaseFile
from joulecut_agent.keeper import lease as leases
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.keeper import BOOT_ID, RELEASE_S_MAX
from joulecut_agent.keeper.lease import Command
from joulecut_wire.errors import Unavailable

FOLLOWS_S = 1.5  # an agent asks its keeper once a second


def window(state_dir: str) -> ReleaseFile:
    return ReleaseFile(state_dir, BOOT_ID.read_text().strip())


def release(sockets: list[Path], file: ReleaseFile, duration_s: float) -> int:
    """Raises Unavailable where no keeper answers, or it could not give everything back."""
    left_s, gpus = file.left_s(), file.gpus()
    if 0.0 < duration_s <= RELEASE_S_MAX:
        file.keep(duration_s, gpus)  # first: a keeper that starts anew just then is to know
    try:
        _tell(sockets, Command(leases.RELEASE, ttl_s=duration_s))
    except Unavailable:
        file.put_back(left_s, gpus)
        raise
    time.sleep(FOLLOWS_S)  # so that what is started next finds no handle
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + duration_s - FOLLOWS_S))
    sys.stdout.write(f"released until {until}: no device is read or set, no handle is open\n")
    return 0


def resume(sockets: list[Path], file: ReleaseFile) -> int:
    """Raises Unavailable where no keeper answers, and no agent waits for the end of a window."""
    waited = file.forget()
    try:
        _tell(sockets, Command(leases.RESUME))
    except Unavailable:
        if not waited:
            raise
    sys.stdout.write("resumed\n")
    return 0


def _tell(sockets: list[Path], command: Command) -> None:
    gone = ""
    for path in sockets:
        client = KeeperClient("")
        try:
            client.connect(str(path))
            slot = client.ask(command).slots[0]
        except KeeperGone as error:
            gone = gone or str(error)
            continue
        finally:
            client.detach()
        if not slot.accepted:
            raise Unavailable(slot.reason)
        return
    raise Unavailable(f"{gone}; an agent without a keeper is released by stopping it")
