"""A clock that a test moves, in the place of a module's `time`: how quick this machine is, and
whether it stood still for a while, makes no difference to what has run out and what has not.

    clock = HeldClock()
    monkeypatch.setattr(module, "time", clock)
    clock.pass_s(2.0)
"""

import time


class HeldClock:
    """Stands as `time.monotonic` did when it was made, until time passes."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self.now_s = time.monotonic()

    def monotonic(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
