"""Event-time watermark for training samples.

A sample more than STALE_S behind the watermark was taken at clocks that no longer hold. One bogus
future timestamp must not make every later sample stale, so a jump ahead stays provisional until
CONFIRMED samples follow it, and CONFIRMED samples that continue from before it revoke it.
"""

from dataclasses import dataclass

STALE_S = 60.0  # twelve controller passes
CONFIRMED = 3  # one sample out of order is noise, three in a row are the true time


@dataclass(slots=True)
class Watermark:
    """Newest trusted event time, and the last jump ahead while it is provisional."""

    at_s: float | None = None
    before_jump_s: float | None = None
    after_jump: int = 0  # samples since the jump
    behind: int = 0  # consecutive samples, in order, between `before_jump_s` and the jump
    behind_s: float = 0.0  # the last of them

    def lateness_s(self, at_s: float) -> float:
        """Observe a sample; return how late it is, 0.0 if it may be learnt from."""
        if self.at_s is None:
            self.at_s = at_s
        late_s = self.at_s - at_s
        if late_s <= STALE_S:
            self._advance(at_s, late_s)
            return 0.0
        return 0.0 if self._revokes_jump(at_s) else late_s

    def _advance(self, at_s: float, late_s: float) -> None:
        jumps = late_s < -STALE_S
        if jumps and (self.before_jump_s is None or self.after_jump >= CONFIRMED):
            self.before_jump_s = self.at_s
        self.after_jump = 0 if jumps else self.after_jump + 1
        self.behind = 0
        if late_s < 0.0:
            self.at_s = at_s

    def _revokes_jump(self, at_s: float) -> bool:
        if self.before_jump_s is None or at_s < self.before_jump_s:
            return False
        in_order = self.behind > 0 and 0.0 <= at_s - self.behind_s <= STALE_S
        self.behind, self.behind_s = self.behind + 1 if in_order else 1, at_s
        if self.behind < CONFIRMED:
            return False
        self.at_s, self.before_jump_s, self.after_jump, self.behind = at_s, None, 0, 0
        return True
