"""Text of `/metrics`: a leader's series or a standby's, and those of the process (`process_*`)."""

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from joulecut_controller.board import Board
from joulecut_controller.election.leadership import Leadership
from joulecut_controller.metrics.collector import BoardCollector, CertificateCollector
from joulecut_controller.reconcile.reconciler import Reconciler


class MetricsEndpoint:
    """One collector at a time; no series before the first board."""

    def __init__(
        self, certificates: Mapping[str, Callable[[], float | None]] = MappingProxyType({})
    ) -> None:
        """`certificates` are the ends of those in use, in unix seconds, by use."""
        self._certificates = CertificateCollector(certificates)
        self._registry = CollectorRegistry()
        self._process = ProcessCollector(registry=None)
        self._one_at_a_time = threading.Lock()  # scrapes share the high-water marks of counters

    def show(self, reconciler: Reconciler, leadership: Leadership) -> None:
        self._collect(
            BoardCollector(
                lambda: reconciler.board,
                reconciler.metrics,
                epoch=lambda: reconciler.epoch,
                leads=lambda: reconciler.leads and reconciler.claims.leads and leadership.proven,
            )
        )

    def stand_by(self, board: Board) -> None:
        self._collect(BoardCollector(lambda: board))

    def text(self, as_openmetrics: bool) -> bytes:
        """In the format of Prometheus, or of OpenMetrics."""
        write = openmetrics.generate_latest if as_openmetrics else generate_latest
        with self._one_at_a_time:
            return bytes(write(self._registry))

    def _collect(self, collector: Collector) -> None:
        registry = CollectorRegistry()  # a new one: a scrape in another thread keeps the old
        registry.register(collector)
        registry.register(self._certificates)
        registry.register(self._process)
        self._registry = registry
