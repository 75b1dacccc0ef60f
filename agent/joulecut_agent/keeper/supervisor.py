"""The agent's side of its keeper's life: starts it, finds it, watches it, replaces it.

The keeper is the agent's child, or a service behind a socket. The agent measures with and without
one. A child and the agent share a socket pair: when the agent dies the keeper reads its end and
restores every GPU; when the keeper dies the next one restores from the journal before it answers.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from joulecut_agent.keeper.client import ANSWER_WAIT_S, KeeperClient, KeeperGone, is_stopped
from joulecut_agent.keeper.keeper import LEAVE_WAIT_S
from joulecut_agent.keeper.settings import Settings
from joulecut_agent.log import log
from joulecut_wire import log_line
from joulecut_wire.messages import NO_KEEPER

BACKOFF_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)  # at once first: a capped GPU waits for it
LIVED_S = 10.0  # a keeper that lived this long starts the backoff again
STOP_TRIES = 2  # a second keeper that cannot restore either needs an operator
STOPPED_S = 2.0  # a stopped keeper ends no lease; longer than a look by strace or gcore
SILENT_S = 120.0  # twice what 16 hung GPUs take, each with a driver to open again
RETRY_S = 0.1  # after a refusal that took no time
READY_WAIT_S = 10.0  # for a keeper that waits for its predecessor and restores 16 GPUs


class KeeperSupervisor:
    """For the main thread alone; `client` is for any thread.

    `mode` is child, none, or the path of a keeper's socket. A child that runs is registered with
    `selector`, which reports its death.
    """

    def __init__(
        self, mode: str, settings: Settings, device: str, options: dict[str, Any],
        selector: selectors.BaseSelector,
    ) -> None:  # fmt: skip
        """Starts nothing yet."""
        self._mode = mode
        self._selector = selector
        self._arguments = json.dumps(
            {"device": device, "options": options, "keeper": asdict(settings)}, sort_keys=True
        )
        self.client = KeeperClient(NO_KEEPER if mode == "none" else "the keeper does not answer")
        self.released: Callable[[], bool] = lambda: False  # whether a release window is open
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._started_s = 0.0
        self._answered_s = 0.0
        self._deaths = 0
        self._start_due_s = 0.0
        self._lost = False

    @property
    def pid(self) -> int | None:
        """Of a child that runs."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Starts the keeper if it is to be a child. Never raises: `poll` tries again."""
        if self._mode != "child":
            return
        try:
            self._spawn()
        except OSError as error:  # no process or descriptor left
            log("agent", f"no keeper can be started: {error.strerror}", "error")
            return
        self._selector.register(self._pidfd, selectors.EVENT_READ)

    def wait_ready(self) -> None:
        """Waits for the keeper's first answer, at most READY_WAIT_S."""
        self._connect()
        if self._mode != "none" and not self._waits_for_window():
            self._lost = not self._answers(READY_WAIT_S)
            if self._lost:
                log("agent", "the keeper does not answer: measuring goes on without control")

    def poll(self) -> None:
        """Starts or finds a keeper if there is none, and asks it for its status."""
        if self._mode == "none":
            return
        if self._mode == "child" and self._process is None:
            if self._waits_for_window() or time.monotonic() < self._start_due_s:
                return
            self.start()
        self._connect()
        try:
            self.client.refresh()
        except KeeperGone as error:
            if not self._lost:
                log("agent", f"{error}; measuring goes on without control")
            self._lost = True
            self._kill_if_silent()
            return
        self._answered_s = time.monotonic()
        if self._lost:
            log("agent", "the keeper answers")
        self._lost = False

    def reap(self) -> None:
        """Takes note of a child that has died, and starts the next one when it is due."""
        self.client.detach()
        assert self._process is not None
        status = self._process.wait()
        self._selector.unregister(self._pidfd)
        os.close(self._pidfd)
        now_s = time.monotonic()
        self._deaths = 0 if now_s - self._started_s > LIVED_S else self._deaths
        self._start_due_s = now_s + BACKOFF_S[min(self._deaths, len(BACKOFF_S) - 1)]
        self._deaths += 1
        how = f"signal {-status}" if status < 0 else f"status {status}"
        log("agent", f"keeper {self._process.pid} ended with {how}; another one is started")
        self._process = None
        self._lost = True
        self.poll()

    def stop(self) -> bool:
        """Lets a child restore every GPU and leave; whether all restores succeeded.

        A child that was killed leaves its locks to the next, which is started to restore them.
        """
        if self._mode != "child" or self._waits_for_window():
            return True
        status = -1
        for _ in range(STOP_TRIES):
            with contextlib.suppress(OSError):
                if self._process is None:
                    self._spawn()
                status = self._leave()
            if status >= 0:
                break
        return status == 0

    def _spawn(self) -> None:
        """Starts a child, which answers once it has restored. Raises OSError."""
        self._start_due_s = time.monotonic() + BACKOFF_S[-1]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = theirs.fileno()
        argv = [sys.executable, "-P", "-m", "joulecut_agent.main", "keeper"]
        argv += ["--log-format", log_line.in_use()]
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            # A session of its own: Ctrl-C at a terminal reaches it through the agent alone.
            process = subprocess.Popen(  # noqa: S603 -- our own module
                [*argv, "--agent-fd", str(fd), "--settings", self._arguments],
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
        self._started_s = self._answered_s = time.monotonic()
        self.client.attach(ours, process.pid)

    def _kill_if_silent(self) -> None:
        """Kills a child that no longer answers: it ends no lease, and its successor restores."""
        if self._process is None:
            return
        pid, silent_s = self._process.pid, time.monotonic() - self._answered_s
        if silent_s > (STOPPED_S if is_stopped(pid) else SILENT_S):
            log("agent", f"keeper {pid} has not answered for {silent_s:.0f} s: it is killed")
            self._process.kill()
            self._answered_s = time.monotonic()

    def _leave(self) -> int:
        """Asks the child to leave; its exit status, negative if a signal ended it.

        A signal would kill a child that is still starting, with its journal full of locks. One
        that does not answer finds the end of its socket when it gets there. A stopped one sees
        neither.
        """
        assert self._process is not None
        if is_stopped(self._process.pid):
            log("agent", f"keeper {self._process.pid} is stopped: it is killed")
            self._process.kill()
        elif self._answers(ANSWER_WAIT_S):
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        else:
            self.client.detach()
        try:
            status = self._process.wait(timeout=LEAVE_WAIT_S + 2.0)
        except subprocess.TimeoutExpired:
            log("agent", f"keeper {self._process.pid} does not leave: it is killed")
            self._process.kill()
            status = self._process.wait()
        os.close(self._pidfd)
        self.client.detach()
        self._process = None
        return status

    def _answers(self, wait_s: float) -> bool:
        """Whether the keeper has restored and answers within `wait_s`."""
        until_s = time.monotonic() + wait_s
        while self.client.connected and time.monotonic() < until_s:
            with contextlib.suppress(KeeperGone):
                self.client.refresh()
                return True
            time.sleep(RETRY_S)
        return False

    def _waits_for_window(self) -> bool:
        """Whether a release window is open and no child runs: a new one would open the device."""
        return self._mode == "child" and self._process is None and self.released()

    def _connect(self) -> None:
        if self._mode not in {"child", "none"} and not self.client.connected:
            with contextlib.suppress(KeeperGone):
                self.client.connect(self._mode)
