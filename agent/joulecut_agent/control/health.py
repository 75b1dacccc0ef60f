"""Answers of `/healthz` and `/readyz`: whether the agent is alive, and whether it measures.

An agent whose loops stand still must be restarted. One whose driver hangs must not: the next would
hang too, and leave another process in the driver. So no driver is called here, and its state is
reported without failing `/healthz`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from joulecut_agent.control.maintenance_window import MaintenanceWindow
from joulecut_agent.monitor.sampler import Sampler

LOOP_SILENT_S = 30.0  # as systemd's watchdog; the main loop never waits longer than 5 s
# One reading: two tries of opening (10 s each) and of 16 GPUs that take just under their second.
READ_SILENT_S = 2.0 * (10.0 + 16.0) + 20.0
SILENT_TICKS = 3


@dataclass(frozen=True, slots=True)
class Health:
    """Answer of a probe, with remarks of one line each."""

    well: bool
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


@dataclass(eq=False)
class HealthChecks:
    """`turn` is for the main loop, everything else for any thread."""

    sampler: Sampler
    window: MaintenanceWindow
    interval_s: float  # the sampler's own
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._silent_s = max(SILENT_TICKS * self.interval_s, READ_SILENT_S)
        self._turned_s = self.clock()
        self.leaving = False

    def turn(self) -> None:
        self._turned_s = self.clock()

    def live(self) -> Health:
        """Whether both loops of this process run."""
        now_s = self.clock()
        loops = (
            ("the main loop", self._turned_s, LOOP_SILENT_S),
            ("the sampler", self.sampler.turned_s, self._silent_s),
        )
        stuck = [
            f"{what} has not run for {now_s - turned_s:.0f} s"
            for what, turned_s, most_s in loops
            if now_s - turned_s > most_s
        ]
        return Health(not stuck, (*(stuck or ["ok"]), *self._remarks()))

    def ready(self) -> Health:
        """Whether it measures, or is in a release window, as requested."""
        if self.leaving:
            return Health(False, ("leaving",))
        if left_s := self.window.left_s:
            return Health(True, ("ok", f"released for {left_s:.0f} s more"))
        reading = self.sampler.latest()
        if reading is None or not reading.snapshot.gpus:
            return Health(False, ("no GPU was read recently", *self._remarks()))
        return Health(True, ("ok", *self._remarks()))

    def _remarks(self) -> tuple[str, ...]:
        silent = [uuid or "the driver" for uuid in self.sampler.unresponsive]
        lines = [f"driver_unresponsive: {', '.join(silent)}"] if silent else []
        unread = ", ".join(map(str, self.sampler.unread))
        return (*lines, *([f"counted, and cannot be opened: GPU {unread}"] if unread else ()))
