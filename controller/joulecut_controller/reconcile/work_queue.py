"""Work queue: keys with due times, and at most one step of a key at a time.

A key that becomes due while its step runs is due again when that ends. Of all keys that are due the
one that has waited longest is next, so that none starves. Pure: times are arguments, in seconds of
one clock. One entry a key is all that is kept.
"""

import math


class WorkQueue:
    """Keys that wait for their due time, and keys whose step runs."""

    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}  # of keys that wait
        self._again_s: dict[str, float] = {}  # of keys whose step runs; infinite: not due again

    def add(self, key: str, due_s: float) -> None:
        """The key is due at `due_s`, or sooner where it is already."""
        known = self._again_s if key in self._again_s else self._due_s
        known[key] = min(due_s, known.get(key, math.inf))

    def take(self, now_s: float) -> str | None:
        """The next key that is due, whose step begins now; None without one."""
        if self.next_s > now_s:
            return None
        key = min(self._due_s, key=self._due_s.__getitem__)
        del self._due_s[key]
        self._again_s[key] = math.inf
        return key

    def done(self, key: str, due_s: float) -> None:
        """The key's step has ended. It is due again at `due_s` (infinite: never), or sooner where
        it was added meanwhile.
        """
        due_s = min(due_s, self._again_s.pop(key))
        if due_s < math.inf:
            self._due_s[key] = due_s

    @property
    def next_s(self) -> float:
        """When the next key is due; infinite where none waits."""
        return min(self._due_s.values(), default=math.inf)
