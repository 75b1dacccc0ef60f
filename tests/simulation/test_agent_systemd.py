"""What systemd hears from an agent: ready, alive, stopping; from the agent alone."""

import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import commands
import pytest
from running_agent import PATIENCE_S, RunningAgent, eventually

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    with (
        tempfile.TemporaryDirectory(prefix="jc") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening,
    ):
        _listen(listening, str(Path(folder) / "notify"))
        yield listening


def _listen(manager: socket.socket, path: str) -> None:
    manager.bind(path)
    manager.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    manager.settimeout(PATIENCE_S)


def _hear(manager: socket.socket) -> tuple[str, int]:
    """One message, and the process it is from."""
    raw, ancillary, _, _ = manager.recvmsg(4096, socket.CMSG_SPACE(12))
    return raw.decode(), int.from_bytes(ancillary[0][2][:4], "little")


def _is_silent(manager: socket.socket) -> bool:
    try:
        _hear(manager)
    except TimeoutError:
        return True
    return False


def test_ready_alive_and_stopping(manager: socket.socket) -> None:
    """Over an abstract socket; the keeper's, below, has a path."""
    path = str(manager.getsockname())
    env = {**os.environ, "NOTIFY_SOCKET": f"@{path}", "WATCHDOG_USEC": "30000000"}
    with (
        closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager,
        RunningAgent(cards=2, env=env) as node,
    ):
        _listen(manager, f"\0{path}")
        node.start()
        assert _hear(manager) == (
            "READY=1\nSTATUS=2 of 2 GPUs measured, 0 under a lease", node.process.pid,
        )  # fmt: skip
        eventually("alive, and no news", lambda: _hear(manager)[0] == "WATCHDOG=1")
        assert node.apply({0: 1005})[0].accepted
        news = "WATCHDOG=1\nSTATUS=2 of 2 GPUs measured, 1 under a lease"
        eventually("the news", lambda: _hear(manager) == (news, node.process and node.process.pid))
        assert node.kill(signal.SIGTERM) == 0
        eventually("the end", lambda: _hear(manager)[0].startswith("STOPPING=1\n"))
        manager.settimeout(0.1)
        assert _is_silent(manager)


def test_a_keeper_of_its_own_is_ready_once_it_has_restored_and_feeds_the_watchdog(
    manager: socket.socket,
) -> None:
    with RunningAgent(cards=2, keeper="state/keeper.sock") as node:
        node.start_keeper()
        node.start()
        assert node.apply({0: 1005})[0].accepted
        first = node.keepers[0]
        first.kill()
        first.wait()
        assert node.locked() == {0: 1005}
        node.env = {**os.environ, "NOTIFY_SOCKET": str(manager.getsockname())}
        keeper = node.start_keeper()

        def ready() -> bool:
            text, pid = _hear(manager)
            assert pid == keeper.pid
            return text.startswith("READY=1\n")

        eventually("ready", ready)
        assert not node.locked()
        eventually("fed", lambda: _hear(manager) == ("WATCHDOG=1", keeper.pid))
        keeper.send_signal(signal.SIGSTOP)
        try:
            manager.settimeout(3.0)  # of the four that its unit waits
            eventually("silence", lambda: _is_silent(manager))
        finally:
            keeper.send_signal(signal.SIGCONT)


def test_a_keeper_that_waits_for_the_end_of_a_window_is_ready_fed_and_leaves_at_once(
    manager: socket.socket,
) -> None:
    with RunningAgent(cards=1, keeper="state/keeper.sock") as node:
        node.start_keeper()
        node.start()
        released = commands.run("release", node.address, "--for", "10m")
        assert released.returncode == 0, released.stderr
        node.kill(signal.SIGTERM)
        node.keepers[0].terminate()
        node.keepers[0].wait()
        node.env = {**os.environ, "NOTIFY_SOCKET": str(manager.getsockname())}
        keeper = node._spawn("keeper")
        node.keepers.append(keeper)
        eventually("ready", lambda: _hear(manager)[0].startswith("READY=1\nSTATUS=released"))
        eventually("fed", lambda: _hear(manager) == ("WATCHDOG=1", keeper.pid))
        keeper.terminate()
        assert keeper.wait(timeout=PATIENCE_S) == 0


def test_under_the_units_umask_everybody_reads_what_is_for_everybody() -> None:
    lines = {
        line
        for unit in ("joulecut-agent.service", "joulecut-keeper.service")
        for line in (UNITS / unit).read_text().splitlines()
        if line.startswith("UMask=")
    }
    (line,) = lines
    before = os.umask(int(line.partition("=")[2], 8))
    gone = {**os.environ, "NOTIFY_SOCKET": "/nonexistent/notify"}  # that stops nothing
    try:
        with RunningAgent(cards=1, env=gone) as node:
            node.start()
            assert node.apply({0: 1005})[0].accepted
            owners = node.state_dir / "owners"
            eventually("the file", owners.exists)
            assert owners.stat().st_mode & 0o444 == 0o444
            assert (node.home / "jobs.sock").stat().st_mode & 0o222 == 0o222
            kept = (node.state_dir / "journal", node.state_dir / "audit.jsonl")
            assert not any(path.stat().st_mode & 0o007 for path in kept)
            assert node.kill(signal.SIGTERM) == 0
            assert not node.locked()
    finally:
        os.umask(before)
