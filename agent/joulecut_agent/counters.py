"""Counters of the agent: raised by any thread, read by the exporter."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

KEYS_MAX = 1024  # label sets of one counter; labels never come from a job
BUCKETS_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)  # a read to a hang


class Counters:
    """Each count has a name and its label values; durations fall into BUCKETS_S."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[tuple[str, ...]]] = {}
        self._durations: dict[str, tuple[list[int], float]] = {}

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        with self._lock:
            counts = self._counts.setdefault(name, Counter())
            if labels in counts or len(counts) < KEYS_MAX:
                counts[labels] += by

    def counts(self, name: str) -> list[tuple[tuple[str, ...], int]]:
        with self._lock:
            return sorted(self._counts.get(name, Counter()).items())

    def time(self, durations_s: Iterable[tuple[str, float]]) -> None:
        with self._lock:
            for call, seconds in durations_s:
                if call not in self._durations and len(self._durations) >= KEYS_MAX:
                    continue
                buckets, total_s = self._durations.get(call, ([0] * (len(BUCKETS_S) + 1), 0.0))
                buckets[bisect_left(BUCKETS_S, seconds)] += 1
                self._durations[call] = (buckets, total_s + seconds)

    def durations(self) -> list[tuple[str, list[int], float]]:
        """Call, counts by bucket (the last is above all bounds, none is cumulative), sum."""
        with self._lock:
            return sorted((call, list(b), total) for call, (b, total) in self._durations.items())
