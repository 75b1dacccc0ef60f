"""What ties the agent to its keeper: it starts one, finds it, hears it, and replaces it.

The agent measures with a keeper and without one. What is wrong with it is said once, and is
tried to be mended for as long as the agent lives.
"""

import contextlib
import selectors
import time
from collections.abc import Callable

from joulecut_agent.keeper.child import KeeperProcess, wait_until_ready
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.log import say
from joulecut_agent.settings import Settings

READY_WAIT_S = 10.0  # for a keeper that waits for its predecessor and restores 16 GPUs


class Tether:
    """For the main thread alone; `client` is everybody's."""

    def __init__(self, settings: Settings, selector: selectors.BaseSelector) -> None:
        """Nothing is started yet. A child that lives is in `selector`, which tells its death."""
        self._mode = mode = settings.keeper_mode
        self._selector = selector
        self.client = KeeperClient("no keeper" if mode == "none" else "the keeper does not answer")
        self._child: KeeperProcess | None = None
        if mode == "child":
            self._child = KeeperProcess(
                self.client, settings.keeper, settings.device, settings.options
            )
        self._lost = False
        self.released: Callable[[], bool] = lambda: False  # whether a release window goes on

    @property
    def pid(self) -> int | None:
        """Of a child that lives."""
        return self._child.pid if self._child else None

    def start_child(self) -> None:
        """Where it is to be one. Never raises: `poll` tries again."""
        if self._child is None:
            return
        try:
            self._child.start()
        except OSError as error:  # no process or descriptor is left
            say("agent", f"no keeper can be started: {error.strerror}")
            return
        self._selector.register(self._child, selectors.EVENT_READ)

    def wait(self) -> None:
        """Until the keeper answers for the first time, or READY_WAIT_S are over."""
        self._connect()
        if self._mode != "none" and not self._asleep():
            self._lost = not wait_until_ready(self.client, READY_WAIT_S)
            if self._lost:
                say("agent", "the keeper does not answer: measuring goes on without control")

    def poll(self) -> None:
        """Starts or finds a keeper where there is none, and asks it how things stand."""
        if self._mode == "none":
            return
        if self._child and self._child.pid is None:
            if self._asleep() or time.monotonic() < self._child.due_s:
                return
            self.start_child()
        self._connect()
        try:
            self.client.refresh()
        except KeeperGone as error:
            if not self._lost:
                say("agent", f"{error}; measuring goes on without control")
            self._lost = True
            if self._child:
                self._child.silent()
            return
        if self._child:
            self._child.heard()
        if self._lost:
            say("agent", "the keeper answers")
        self._lost = False

    def bury(self) -> None:
        """The child has died."""
        assert self._child is not None
        self._selector.unregister(self._child)
        self._child.died()
        self._lost = True
        self.poll()

    def stop(self) -> bool:
        """Lets a child give every GPU back and leave; whether nothing is owed by it."""
        return self._child.stop() if self._child and not self._asleep() else True

    def _asleep(self) -> bool:
        """Whether no keeper is to be started yet: in a release window it would open the device."""
        return bool(self._child and self._child.pid is None and self.released())

    def _connect(self) -> None:
        if self._mode not in {"child", "none"} and not self.client.connected:
            with contextlib.suppress(KeeperGone):
                self.client.connect(self._mode)
