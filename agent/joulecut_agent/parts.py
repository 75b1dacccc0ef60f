"""Makes the parts of an agent, in the order of their dependencies, and connects them.

The only module that knows every part. A part that needs one made later gets a callback.
"""

import contextlib
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

from joulecut_agent import devices
from joulecut_agent.control.access import ROLES
from joulecut_agent.control.audit_log import AuditLog
from joulecut_agent.control.authorization import AuthorizationInterceptor
from joulecut_agent.control.clock_schedule import RESULTS, ClockSchedules
from joulecut_agent.control.drift_watch import DriftWatch
from joulecut_agent.control.health import HealthChecks
from joulecut_agent.control.iteration_starts import REPORT, IterationStarts
from joulecut_agent.control.maintenance_window import MaintenanceWindow
from joulecut_agent.control.owner_change import OwnerChange
from joulecut_agent.control.release_file import ReleaseFile
from joulecut_agent.control.server import Server
from joulecut_agent.control.service import AgentService, Node
from joulecut_agent.control.set_latency import WAIT_S_MAX, SetLatency
from joulecut_agent.counters import Counters
from joulecut_agent.export.exporter import AgentCollector
from joulecut_agent.export.http_server import Exporter
from joulecut_agent.jobs.log_tail import LogTail
from joulecut_agent.jobs.rank_count import RankCount
from joulecut_agent.jobs.registry import Registry
from joulecut_agent.jobs.report_faults import ReportFaults
from joulecut_agent.jobs.report_queue import ReportQueue
from joulecut_agent.jobs.report_socket import ReportSocket
from joulecut_agent.keeper.client import KeeperClient
from joulecut_agent.log import log
from joulecut_agent.monitor.driver_reader import DriverReader
from joulecut_agent.monitor.energy_account import EnergyFile
from joulecut_agent.monitor.sampler import Sampler
from joulecut_agent.monitor.samples import Samples
from joulecut_agent.settings import Settings
from joulecut_wire import card_facts
from joulecut_wire.card_facts import CardFacts
from joulecut_wire.errors import Unavailable
from joulecut_wire.messages import IterationReport
from joulecut_wire.metrics import (
    ACCESS_DENIED,
    AUDIT_LOST,
    CONFIG_KEYS_IGNORED,
    CONTROL_COMMANDS,
    CONTROL_STEPS,
    REPORTS,
    REQUESTS_MALFORMED,
)
from joulecut_wire.tls import rotating
from joulecut_wire.web_config import WebConfig

COMMANDS = ("apply", "renew", "clear")


class Parts:
    """Made and bound; `loop` starts and ends them."""

    def __init__(
        self, settings: Settings, reader: DriverReader, keeper: KeeperClient, *,
        boot_id: str, release: ReleaseFile, undo: contextlib.ExitStack,
    ) -> None:  # fmt: skip
        """`undo` receives what must be closed if a later part fails. Raises JoulecutError."""
        self._settings = settings
        self._keeper = keeper
        self._state_dir = Path(settings.keeper.state_dir)
        self._keeper_wanted = settings.keeper_mode != "none"
        self._counters = _zeroed(settings.keys_ignored)
        self._report_queue = ReportQueue()
        self._owner_change = OwnerChange(keeper)
        keeper.watch(self._uuids)
        self._latency = SetLatency(self._facts)
        self.starts = IterationStarts()
        self.schedules = ClockSchedules(
            keeper, self._counters, self.starts, self._latency.latencies
        )
        self.schedules.stepping = self._stepping
        self.registry = self._make_registry()
        undo.callback(self.registry.stop)
        self.faults = ReportFaults(self.registry.fault_owner)
        self.ranks = RankCount(self._uuids, self.registry.scheduled_job, self.registry.users_of)
        self.report_socket = self._make_report_socket()
        undo.callback(self.report_socket.close)
        self.logs = LogTail(settings.logs, self.report_socket, self.registry.gpus_of_job)
        self._make_sampler(reader, boot_id)
        self.drift_watch = DriftWatch(
            lambda: self.sampler.gpus, keeper, self._counters, settings.keeper.site_default
        )
        self.drift_watch.not_controlled = self.registry.not_controlled
        self.window = MaintenanceWindow(
            self.sampler, keeper, release, keeper_wanted=self._keeper_wanted
        )
        if self.window.left_s:
            self.sampler.begin_paused()
        self._certificates: dict[str, Callable[[], float | None]] = {}
        self.server = self._make_server(boot_id)
        self.health = HealthChecks(self.sampler, self.window, settings.sample_interval_s)
        self.exporter = self._make_exporter()

    def _facts(self, uuid: str) -> CardFacts | None:
        """Measured facts of a GPU, under the driver and VBIOS that it has now."""
        cards = self._settings.measured
        gpu = next((one for one in self.sampler.gpus if one.uuid == uuid), None) if cards else None
        return card_facts.valid_for(cards, gpu.uuid, gpu.driver, gpu.vbios) if gpu else None

    def _uuids(self) -> tuple[str, ...]:
        return tuple([gpu.uuid for gpu in self.sampler.gpus])

    def _stepping(self, uuid: str, clock_mhz: int, due_s: float, wanted_s: float) -> None:
        """A timed step is sent: its latency is measured where a change can be seen."""
        if self._latency.started({uuid: clock_mhz}, due_s, wanted_s):
            self.sampler.hurry(WAIT_S_MAX)

    def _reported(self, report: IterationReport) -> None:
        """An iteration ended, and the next one began. What a scheduler gave a GPU to is the job
        that holds its lease, whatever name its report carries.
        """
        uuid, job, now_s = report.uuid, report.job, time.monotonic()
        self.ranks.heard(report, now_s)
        if self.registry.scheduled_job(uuid):
            job = self._owner_change.held().get(uuid, job)
        began_s = now_s - report.age_s
        self.starts.on_start(job, uuid, began_s, report.iteration, report.source or REPORT)

    def _make_registry(self) -> Registry:
        """The owners of the GPUs. Once started it calls parts that are made after it."""
        return Registry(
            self._settings.attribution,
            gpus=lambda: self.sampler.gpus,
            seen=lambda: reading.by_uuid if (reading := self.sampler.latest()) else {},
            reports=lambda: self.report_socket.live.holding(),  # noqa: PLW0108 -- not made yet
            held=self._owner_change.held,
            changed=self._owner_change.owner_changed,
            noted=lambda *change: self.sampler.held(*change),  # noqa: PLW0108
            owners_file=self._state_dir / "owners",
        )

    def _make_report_socket(self) -> ReportSocket:
        settings = self._settings
        try:
            report_socket = ReportSocket(
                Path(settings.socket),
                self._uuids,
                self._report_queue,
                self._counters,
                self._owner_change.job_ended,
                binding=self.registry.binding if settings.attribution.bind == "owner" else None,
                on_mark=self.schedules.on_mark,
                on_report=self._reported,
                on_fault=self.faults.note,
            )
        except OSError as error:
            raise Unavailable(f"socket {settings.socket}: {error.strerror}") from None
        report_socket.live.changed = self.registry.reported
        return report_socket

    def _make_sampler(self, reader: DriverReader, boot_id: str) -> None:
        """The readers of the device: each tick, fast samples on request, and set latency."""
        settings = self._settings
        self.sampler = Sampler(
            reader,
            settings.sample_interval_s,
            self._counters,
            jobs=self.registry.jobs,
            file=EnergyFile(self._state_dir / "energy.json", boot_id),
            measured=settings.measured,
        )
        address, state_dir = devices.address(settings.device), settings.keeper.state_dir
        self._samples = Samples(lambda: DriverReader(address, settings.options, state_dir))
        self.sampler.samples = self._samples
        self.sampler.watcher = self._latency.seen
        self.sampler.needed_s = self.schedules.reading_s

    def _make_server(self, boot_id: str) -> Server:
        settings = self._settings
        service = AgentService(
            Node(settings.node, boot_id, settings.keeper.bounds.ttl_s_max),
            sampler=self.sampler,
            keeper=self._keeper,
            report_queue=self._report_queue,
            counters=self._counters,
            drift_watch=self.drift_watch,
            window=self.window,
            latency=self._latency,
            samples=self._samples,
            schedules=self.schedules,
            allocations=self.registry.allocations,
            faults=lambda: self.faults.current() + self.ranks.faults(),
        )
        service.facts = self._facts
        audit_log = AuditLog(
            self._state_dir, settings.audit, lambda: self._counters.count(AUDIT_LOST.name)
        )
        interceptor = AuthorizationInterceptor(
            settings.rules,
            audit_log,
            lambda role: self._counters.count(ACCESS_DENIED.name, role),
            lambda: self._keeper.epoch_seen,
            lambda op: self._counters.count(REQUESTS_MALFORMED.name, op),
        )
        pem = rotating(settings.tls, partial(log, "agent")) if settings.tls else None
        if pem:
            self._certificates["grpc"] = lambda: pem.current().expires_unix_s
        return Server(service, interceptor, settings.grpc, pem, settings.local_socket)

    def _make_exporter(self) -> Exporter:
        settings = self._settings
        web = WebConfig(settings.web_config, partial(log, "agent")) if settings.web_config else None
        if web:
            self._certificates["http"] = lambda: web.expires_unix_s
        collector = AgentCollector(
            node=settings.node,
            sampler=self.sampler,
            keeper=self._keeper,
            counters=self._counters,
            allocations=self.registry.allocations,
            keeper_wanted=self._keeper_wanted,
            drift_watch=self.drift_watch,
            window=self.window,
            latency=self._latency,
            schedules=self.schedules,
            ranks=self.ranks,
            certificates=self._certificates,
        )
        probes = {"/healthz": self.health.live, "/readyz": self.health.ready}
        return Exporter(collector.families, *settings.metrics, web, probes)


def _zeroed(keys_ignored: int) -> Counters:
    """Counters that exist from the start, so that the first event is an increase."""
    counters = Counters()
    counters.count(AUDIT_LOST.name, by=0)
    counters.count(CONFIG_KEYS_IGNORED.name, by=keys_ignored)
    for op, result in product(COMMANDS, ("accepted", "refused")):
        counters.count(CONTROL_COMMANDS.name, op, result, by=0)
    for metric, labels in (
        (ACCESS_DENIED, ROLES),
        (REPORTS, ("accepted", "refused", "dropped", "shed")),
        (CONTROL_STEPS, RESULTS),
        (REQUESTS_MALFORMED, COMMANDS),
    ):
        for label in labels:
            counters.count(metric.name, label, by=0)
    return counters
