"""Job reports between the socket and the watchers, with a bounded queue for each watcher.

A slow watcher loses its oldest reports, and gets their number; the others are not affected.
"""

import threading
from collections import deque

from joulecut_wire.messages import IterationReport

QUEUE_MAX = 1024  # 16 GPUs at an iteration each 50 ms fill it in 3 s


class Subscription:
    """One watcher's queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[IterationReport] = deque(maxlen=QUEUE_MAX)
        self._dropped = 0

    def put(self, report: IterationReport) -> None:
        with self._lock:
            self._dropped += len(self._queue) == QUEUE_MAX
            self._queue.append(report)

    def drain(self) -> tuple[tuple[IterationReport, ...], int]:
        """Reports since the last call, oldest first, and how many were lost."""
        with self._lock:
            reports, dropped = tuple(self._queue), self._dropped
            self._queue.clear()
            self._dropped = 0
            return reports, dropped


class ReportQueue:
    """Hands each report to every subscription."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: set[Subscription] = set()

    def subscribe(self) -> Subscription:
        subscription = Subscription()
        with self._lock:
            self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.discard(subscription)

    def publish(self, report: IterationReport) -> None:
        with self._lock:
            for subscription in self._subscriptions:
                subscription.put(report)
