"""The clock of a GPU that nothing uses: low until its first work, and while it is read.

Pure. What is not seen is not slowed: without a reading for UNREAD_S it is the highest clock.
"""

import math

from joulecut_agent.control.mark_schedule import Due
from joulecut_wire.assumed import UNUSED_BUSY_RATIO
from joulecut_wire.messages import GpuSnapshot, Setting

# Between readings: with the driver's own period of 0.17 s, the poll of 0.3 s and the write of a
# clock the raise is there within a second of the first work.
READ_S = 0.25
UNREAD_S = 2.0  # eight readings


def refuse_unused(setting: Setting) -> str:
    """Reason why a setting has no clock for an unused GPU, or ""."""
    if setting.clock_schedule or setting.timed_steps:
        return "both a clock for the unused GPU and a schedule; allowed: one of them"
    if setting.unused_clock_mhz >= setting.clock_max_mhz:
        return f"a clock for the unused GPU that is not below {setting.clock_max_mhz} MHz"
    return ""


class UnusedSchedule:
    """One GPU; it has been used once a reading shows work, or does not say."""

    def __init__(self, setting: Setting, now_s: float) -> None:
        self._rest_mhz, self._low_mhz = setting.clock_max_mhz, setting.unused_clock_mhz
        self._read_s = now_s
        self.used = False

    def look(self, gpu: GpuSnapshot, now_s: float) -> None:
        """Takes a reading of this time."""
        busy = gpu.utilization_gpu_ratio
        self.used = self.used or busy is None or busy > UNUSED_BUSY_RATIO
        self._read_s = max(self._read_s, now_s)

    def due(self, now_s: float, ahead_s: float = 0.0) -> Due:  # noqa: ARG002 -- as on marks
        unread_s = self._read_s + UNREAD_S
        if self.used or now_s >= unread_s:
            return Due(self._rest_mhz, rests=True)
        return Due(self._low_mhz, math.nextafter(unread_s, math.inf))
