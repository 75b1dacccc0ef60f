"""One GPU's energy between two looks, and whose it was.

A counter falls back to zero when the driver is loaded anew, and is silent while its exporter
is down. What it shows after a silence is still the energy that was used; only whose it was may
be lost. Pure.
"""

from dataclasses import dataclass

from joulecut_controller.audit.reading import UNSEEN, Reading

# Between two looks so many steps apart something was missed.
GAP_STEPS = 1.5
# No board draws more: a counter that says so was not one counter.
POWER_W_MAX = 5_000.0


@dataclass(frozen=True, slots=True)
class Spent:
    """Joules and seconds of one owner. `joules` is None where nothing tells them; `gap` where
    the time was not looked at.
    """

    owner: str
    seconds: float
    joules: float | None
    gap: bool = False


@dataclass(slots=True)
class Meter:
    """Remembers one GPU's last reading."""

    last: Reading | None = None
    last_s: float = 0.0
    resets: int = 0

    def step(self, now: Reading, at_s: float, span_s: float) -> tuple[Spent, ...]:
        """What was spent since the last look; nothing at the first."""
        before, since_s = self.last, at_s - self.last_s
        if before is not None and since_s <= 0.0:
            return ()
        self.last, self.last_s = now, at_s
        if before is None:
            return ()
        gap = since_s > GAP_STEPS * span_s
        joules = self._joules(before, now, since_s, gap=gap)
        if before.owner == now.owner:
            return (Spent(now.owner, since_s, joules, gap),)
        if gap:
            return (Spent(UNSEEN, since_s, joules, gap),)
        half = None if joules is None else joules / 2.0  # it changed hands somewhere in the step
        return Spent(before.owner, since_s / 2.0, half), Spent(now.owner, since_s / 2.0, half)

    def _joules(self, before: Reading, now: Reading, since_s: float, *, gap: bool) -> float | None:
        integral_j = None if gap or now.power_w is None else now.power_w * since_s
        if now.energy_j is None or before.energy_j is None:
            return integral_j
        used_j = now.energy_j - before.energy_j
        if used_j < 0.0:
            self.resets += 1
            if integral_j is not None:
                return integral_j
            used_j = now.energy_j  # since the driver was loaded; what was before is lost
        return used_j if used_j <= POWER_W_MAX * since_s else integral_j
