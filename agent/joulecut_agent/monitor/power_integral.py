"""The energy of a GPU from its power readings, where its counter counts more than the GPU.

On GH200 the energy counter is the whole module's, its CPU and memory included, while power is the
GPU's. Such a GPU has no energy of its own; its power is integrated, and shown as integrated.
"""

from dataclasses import replace

from joulecut_agent.monitor.job_energy import GAP_S
from joulecut_agent.ports.reader import Reading


class PowerIntegral:
    """Joules of each GPU since its first reading, by trapezoids. Not thread-safe."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float, float]] = {}  # time, power, joules

    def counted(self, reading: Reading, now_s: float) -> Reading:
        """The same reading without the counter, and with the integral up to it. A reading without
        power adds nothing; a gap of more than GAP_S is not bridged.
        """
        shown = reading.snapshot
        assert shown is not None
        # An averaged power covers the time between two readings; an instant power does not.
        power_w = shown.power_instant_w if shown.power_average_w is None else shown.power_average_w
        at_s = reading.taken_at_s or now_s
        last_s, last_w, joules = self._last.get(reading.uuid, (at_s, 0.0, 0.0))
        if power_w is not None:
            if 0.0 < at_s - last_s <= GAP_S:
                joules += 0.5 * (last_w + power_w) * (at_s - last_s)
            self._last[reading.uuid] = (max(at_s, last_s), power_w, joules)
        known = None if reading.uuid not in self._last else joules
        return replace(reading, snapshot=replace(shown, energy_j=None, energy_integrated_j=known))
