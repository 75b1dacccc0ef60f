"""A release window where a keeper ends and nobody has noticed yet: real sockets, no process."""

import socket
from pathlib import Path

from joulecut_agent.control.maintenance_window import MaintenanceWindow
from joulecut_agent.control.release_file import ReleaseFile
from joulecut_agent.keeper.client import KeeperClient
from joulecut_wire.messages import GpuDescription


class Still:
    """A reader that lets go at once."""

    gpus: tuple[GpuDescription, ...] = ()

    def pause(self) -> bool:
        return True

    def resume(self) -> None: ...


def _with_a_dead_keeper(folder: Path, *, inside: bool) -> MaintenanceWindow:
    file, keeper = ReleaseFile(str(folder), "boot"), KeeperClient("")
    if inside:
        file.write(600.0, ())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeper.attach(ours)
    theirs.close()
    assert keeper.connected, "it was not spoken to since"
    return MaintenanceWindow(Still(), keeper, file, keeper_wanted=True)


def test_a_window_is_changed_though_its_keeper_has_just_ended(tmp_path: Path) -> None:
    window = _with_a_dead_keeper(tmp_path, inside=True)
    assert window.open(900.0) == ""
    assert 600.0 < window.left_s <= 900.0


def test_none_is_opened_where_a_keeper_that_may_hold_a_handle_does_not_answer(
    tmp_path: Path,
) -> None:
    window = _with_a_dead_keeper(tmp_path, inside=False)
    assert "the keeper is gone" in window.open(900.0)
    assert window.left_s == 0.0
