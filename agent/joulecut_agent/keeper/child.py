"""The keeper as the agent's child: started, watched, and started again when it dies.

Both ends of one socket pair tie the two together. When the agent dies the keeper reads the
end of it and gives every GPU back; when the keeper dies the agent starts another, and that
one restores from the journal before it answers.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from joulecut_agent.keeper.client import ANSWER_WAIT_S, KeeperClient, KeeperGone
from joulecut_agent.keeper.keeper import LEAVE_WAIT_S, Settings
from joulecut_agent.log import say

BACK_OFF_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)  # at once first: a capped GPU waits for it
STOP_TRIES = 2  # a second keeper that cannot restore either needs a person
LIVED_S = 10.0  # a keeper that lived this long begins the row above anew
STOPPED_S = 20.0  # one that somebody stopped lets no lease run out; nobody looks closely so long
SILENT_S = 120.0  # 16 GPUs that hang, each with a driver to be opened anew, take half of it


class KeeperProcess:
    """`fileno` is readable when the child has died; `revive` then starts the next one."""

    def __init__(
        self, client: KeeperClient, settings: Settings, device: str, options: dict[str, Any]
    ) -> None:
        self._client = client
        self._words = json.dumps(
            {"device": device, "options": options, "keeper": asdict(settings)}, sort_keys=True
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._started_s = 0.0
        self._heard_s = 0.0
        self._deaths = 0
        self.due_s = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def fileno(self) -> int:
        return self._pidfd

    def start(self) -> None:
        """Starts a keeper and speaks to it from now on; it answers once it has restored.

        Raises OSError where the machine has no process or descriptor left; `due_s` says when to
        try again.
        """
        self.due_s = time.monotonic() + BACK_OFF_S[-1]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = theirs.fileno()
        argv = [sys.executable, "-P", "-m", "joulecut_agent.main", "keeper"]
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            # A session of its own: Ctrl-C at a terminal reaches it through the agent alone.
            process = subprocess.Popen(  # noqa: S603 -- our own module
                [*argv, "--agent-fd", str(fd), "--settings", self._words],
                pass_fds=[fd],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            undo.callback(process.wait)
            undo.callback(process.kill)
            self._pidfd = os.pidfd_open(process.pid)
            undo.pop_all()
        self._process = process
        self._started_s = self._heard_s = time.monotonic()
        self._client.attach(ours)

    def heard(self) -> None:
        """It answers."""
        self._heard_s = time.monotonic()

    def silent(self) -> None:
        """Kills a child that does not answer any more: its leases do not run out either, and the
        next one gives back what it held.
        """
        if self._process is None:
            return
        silent_s = time.monotonic() - self._heard_s
        if silent_s > (STOPPED_S if _is_stopped(self._process.pid) else SILENT_S):
            say(
                "agent", f"keeper {self._process.pid} is silent for {silent_s:.0f} s, and is killed"
            )
            self._process.kill()
            self._heard_s = time.monotonic()

    def died(self) -> None:
        """Buries the child and says when the next one is due."""
        self._client.detach()
        if self._process is None:
            return
        status = self._process.wait()
        os.close(self._pidfd)
        self._pidfd = -1
        now_s = time.monotonic()
        self._deaths = 0 if now_s - self._started_s > LIVED_S else self._deaths
        self.due_s = now_s + BACK_OFF_S[min(self._deaths, len(BACK_OFF_S) - 1)]
        self._deaths += 1
        how = f"signal {-status}" if status < 0 else f"status {status}"
        say("agent", f"keeper {self._process.pid} ended with {how}; another one is started")
        self._process = None

    def stop(self) -> bool:
        """Lets the child restore and leave; whether everything was given back.

        One that was killed, or had to be, leaves its locks to the next, which is started for
        that alone.
        """
        status = -1
        for _ in range(STOP_TRIES):
            with contextlib.suppress(OSError):  # then what is left is the next one's
                if self._process is None:
                    self.start()
                status = self._leave()
            if status >= 0:
                break
        return status == 0

    def _leave(self) -> int:
        """Asks the child to go; its exit status, negative where a signal ended it.

        A signal would kill a child that is still starting, with a journal full of locks. One
        that does not answer is told by the end of its line, which it reads when it gets there.
        """
        assert self._process is not None
        if wait_until_ready(self._client, ANSWER_WAIT_S):
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        else:
            self._client.detach()
        try:
            status = self._process.wait(timeout=LEAVE_WAIT_S + 2.0)
        except subprocess.TimeoutExpired:
            say("agent", f"keeper {self._process.pid} does not leave, and is killed")
            self._process.kill()
            status = self._process.wait()
        os.close(self._pidfd)
        self._client.detach()
        self._process = None
        return status


def _is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped it (proc(5), stat)."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
    return False


def wait_until_ready(client: KeeperClient, wait_s: float) -> bool:
    """Whether the keeper has restored and answers within `wait_s`."""
    until_s = time.monotonic() + wait_s
    while client.connected and time.monotonic() < until_s:
        with contextlib.suppress(KeeperGone):
            client.refresh()
            return True
    return False
