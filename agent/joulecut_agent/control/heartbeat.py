"""Whether this agent lives, and whether it is of use: two questions with two answers.

An agent that no longer turns must be started anew. One whose driver hangs must not: the next
would hang too, and leave one more process in the driver. So a driver is never asked here, and
whatever is wrong with it is told and costs no life.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from joulecut_agent.control.maintenance_window import Window
from joulecut_agent.monitor.sampler import Sampler

LOOP_SILENT_S = 30.0  # as systemd's watchdog; the main loop waits for nothing longer than 5 s
# One reading: two tries of opening (10 s each) and of 16 GPUs that take just under their second.
READ_SILENT_S = 2.0 * (10.0 + 16.0) + 20.0
SILENT_TICKS = 3


@dataclass(frozen=True, slots=True)
class Health:
    """Whether all is well, and in one line each what there is to say."""

    well: bool
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


class Heartbeat:
    """`turn` is for the main loop; everything else may be asked from any thread."""

    def __init__(
        self,
        sampler: Sampler,
        window: Window,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`interval_s` is the sampler's own."""
        self._sampler = sampler
        self._window = window
        self._silent_s = max(SILENT_TICKS * interval_s, READ_SILENT_S)
        self._clock = clock
        self._turned_s = clock()
        self.leaving = False

    def turn(self) -> None:
        self._turned_s = self._clock()

    def live(self) -> Health:
        """Whether both loops of this process turn."""
        now_s = self._clock()
        loops = (
            ("the main loop", self._turned_s, LOOP_SILENT_S),
            ("the sampler", self._sampler.turned_s, self._silent_s),
        )
        stuck = [
            f"{what} has not turned for {now_s - turned_s:.0f} s"
            for what, turned_s, most_s in loops
            if now_s - turned_s > most_s
        ]
        return Health(not stuck, (*(stuck or ["ok"]), *self._remarks()))

    def ready(self) -> Health:
        """Whether it measures; in a release window it does not, as it was told."""
        if self.leaving:
            return Health(False, ("leaving",))
        if left_s := self._window.left_s:
            return Health(True, ("ok", f"released for {left_s:.0f} s more"))
        picture = self._sampler.known()
        if picture is None or not picture.snapshot.gpus:
            return Health(False, ("no GPU was read lately", *self._remarks()))
        return Health(True, ("ok", *self._remarks()))

    def _remarks(self) -> tuple[str, ...]:
        silent = [uuid or "the driver" for uuid in self._sampler.unresponsive]
        return (f"driver_unresponsive: {', '.join(silent)}",) if silent else ()
