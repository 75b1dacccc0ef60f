"""`joulecut-agent reset-epoch`: forgets the largest epoch that this node has seen.

For a node whose epoch no controller can have reached: it refuses every real one. The permission is
that of the keeper's socket, or of its files.
"""

import sys
from pathlib import Path

from joulecut_agent.keeper import keeper, service
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.requests import ResetEpoch
from joulecut_agent.keeper.settings import Settings
from joulecut_wire.errors import Unavailable

LOCK_WAIT_S = 0.2  # the keeper has just not answered


def reset(settings: Settings, sockets: list[Path]) -> int:
    """Asks the keeper behind one of `sockets`, or rewrites its files. Raises Unavailable, OSError.

    A keeper restores every GPU first; without one no GPU may be left to restore.
    """
    if _asked(sockets):
        return _done()
    if len(sockets) > 1:  # its files are named in another configuration
        raise Unavailable(f"no keeper answers at {sockets[0]}")
    service.hold(Path(settings.state_dir) / "keeper.lock", LOCK_WAIT_S)
    journal = keeper.journal(settings)
    if not journal.is_restored:
        raise Unavailable("the journal names GPUs that are set: first run joulecut-agent restore")
    journal.forget_epochs()
    return _done()


def _asked(sockets: list[Path]) -> bool:
    """Whether a keeper answers, and has done it. Raises Unavailable where it refuses."""
    for path in sockets:
        client = KeeperClient("")
        try:
            client.connect(str(path))
            slot = client.ask(ResetEpoch()).slots[0]
        except KeeperGone:
            continue
        finally:
            client.detach()
        if not slot.accepted:
            raise Unavailable(slot.reason)
        return True
    return False


def _done() -> int:
    sys.stdout.write("epoch forgotten; the next command of a controller sets one\n")
    return 0
