"""The parts of an agent, made in the order in which they need each other, and tied together.

Here alone every part is known by name. Some know each other only through a call that is tied
here: what is made first cannot be given what is made last.
"""

import contextlib
from pathlib import Path

from joulecut_agent import devices
from joulecut_agent.control.access import ROLES
from joulecut_agent.control.audit_log import Trail
from joulecut_agent.control.authorization import Gate
from joulecut_agent.control.clock_schedule import RESULTS, Programs
from joulecut_agent.control.drift_watch import Oversight
from joulecut_agent.control.heartbeat import Heartbeat
from joulecut_agent.control.maintenance_window import Window
from joulecut_agent.control.owner_change import Custody
from joulecut_agent.control.release_file import ReleaseFile
from joulecut_agent.control.server import Doors, Server
from joulecut_agent.control.service import AgentService, Node
from joulecut_agent.control.set_latency import SetLatency
from joulecut_agent.control.slowdown_notice import IntentFile
from joulecut_agent.counters import Tally
from joulecut_agent.export.exporter import Collector
from joulecut_agent.export.http_server import Exporter
from joulecut_agent.jobs.registry import Registry
from joulecut_agent.jobs.report_queue import Feed
from joulecut_agent.jobs.report_socket import Jobs
from joulecut_agent.keeper.client import KeeperClient
from joulecut_agent.log import say
from joulecut_agent.monitor.driver_reader import Eye
from joulecut_agent.monitor.energy_file import EnergyFile
from joulecut_agent.monitor.sampler import Picture, Sampler
from joulecut_agent.monitor.samples import Samples
from joulecut_agent.settings import Settings
from joulecut_wire.errors import Unavailable
from joulecut_wire.messages import GpuSnapshot
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
    """Made and bound, not started: `loop` starts them, and ends them."""

    def __init__(
        self, settings: Settings, eye: Eye, keeper: KeeperClient, *,
        boot_id: str, release: ReleaseFile, undo: contextlib.ExitStack,
    ) -> None:  # fmt: skip
        """`undo` is told how to take back what was made. Raises JoulecutError."""
        self._settings = settings
        self._keeper = keeper
        self._state_dir = Path(settings.keeper.state_dir)
        self._keeper_wanted = settings.keeper_mode != "none"
        self._tally = _zeroed(settings.keys_ignored)
        self._feed = Feed()
        self._custody = Custody(keeper)
        keeper.look_after(self._uuids)
        self.programs = Programs(keeper, self._tally)
        self.registry = self._attribute()
        undo.callback(self.registry.stop)
        self.jobs = self._listen()
        undo.callback(self.jobs.close)
        self._measure(eye, boot_id)
        self.oversight = Oversight(
            lambda: self.sampler.gpus, keeper, self._tally, settings.keeper.site_default
        )
        self.oversight.barred = self.registry.barred
        self.window = Window(self.sampler, keeper, release, keeper_wanted=self._keeper_wanted)
        if self.window.left_s:
            self.sampler.begin_paused()
        self.intent = IntentFile(self._state_dir / "intent.json")
        undo.callback(self.intent.remove)
        self.server = self._serve(boot_id)
        self.heartbeat = Heartbeat(self.sampler, self.window, settings.sample_interval_s)
        self.exporter = self._export()

    def _uuids(self) -> tuple[str, ...]:
        return tuple([gpu.uuid for gpu in self.sampler.gpus])

    def _attribute(self) -> Registry:
        """Whose the GPUs are; it asks the parts that are made after it, once it is started."""

        shown: tuple[Picture | None, dict[str, GpuSnapshot]] = (None, {})

        def seen() -> dict[str, GpuSnapshot]:
            nonlocal shown
            picture, (before, gpus) = self.sampler.known(), shown
            if picture is not before:  # asked for each mark, and for each GPU
                gpus = {gpu.uuid: gpu for gpu in picture.snapshot.gpus} if picture else {}
                shown = (picture, gpus)
            return gpus

        return Registry(
            self._settings.attribution,
            gpus=lambda: self.sampler.gpus,
            seen=seen,
            reports=lambda: self.jobs.live.holding(),  # noqa: PLW0108 -- not made yet
            held=self._custody.held,
            changed=self._custody.owner_changed,
            noted=lambda *change: self.sampler.held(*change),  # noqa: PLW0108
            board=self._state_dir / "owners",
        )

    def _listen(self) -> Jobs:
        settings = self._settings
        try:
            jobs = Jobs(
                Path(settings.socket),
                self._uuids,
                self._feed,
                self._tally,
                self._custody.job_ended,
                binding=self.registry.binding if settings.attribution.bind == "owner" else None,
                marked=self.programs.marked,
            )
        except OSError as error:
            raise Unavailable(f"socket {settings.socket}: {error.strerror}") from None
        jobs.live.changed = self.registry.reported
        return jobs

    def _measure(self, eye: Eye, boot_id: str) -> None:
        """Makes what reads the device: once a tick, as fast as it can, and after an order."""
        settings = self._settings
        self.sampler = Sampler(
            eye,
            settings.sample_interval_s,
            self._tally,
            jobs=self.registry.jobs,
            file=EnergyFile(self._state_dir / "energy.json", boot_id),
        )
        address, state_dir = devices.address(settings.device), settings.keeper.state_dir
        self._samples = Samples(Eye(address, settings.options, state_dir))
        self.sampler.samples = self._samples
        self._latency = SetLatency()
        self.sampler.watcher = self._latency.seen

    def _serve(self, boot_id: str) -> Server:
        settings = self._settings
        service = AgentService(
            Node(settings.node, boot_id, settings.keeper.bounds.ttl_s_max),
            sampler=self.sampler,
            keeper=self._keeper,
            feed=self._feed,
            tally=self._tally,
            oversight=self.oversight,
            window=self.window,
            latency=self._latency,
            samples=self._samples,
            programs=self.programs,
            allocations=self.registry.allocations,
        )
        trail = Trail(self._state_dir, settings.audit, lambda: self._tally.count(AUDIT_LOST.name))
        gate = Gate(
            settings.rules,
            trail,
            lambda role: self._tally.count(ACCESS_DENIED.name, role),
            lambda: self._keeper.epoch_seen,
            lambda op: self._tally.count(REQUESTS_MALFORMED.name, op),
        )
        pem = rotating(settings.tls, _say) if settings.tls else None
        return Server(service, Doors(settings.grpc, pem, settings.local_socket), gate)

    def _export(self) -> Exporter:
        settings = self._settings
        collector = Collector(
            sampler=self.sampler,
            keeper=self._keeper,
            tally=self._tally,
            allocations=self.registry.allocations,
            keeper_wanted=self._keeper_wanted,
            oversight=self.oversight,
            window=self.window,
            latency=self._latency,
        )
        web = WebConfig(settings.web_config, _say) if settings.web_config else None
        probes = {"/healthz": self.heartbeat.live, "/readyz": self.heartbeat.ready}
        return Exporter(collector.text, *settings.metrics, web, probes)


def _say(line: str) -> None:
    say("agent", line)


def _zeroed(keys_ignored: int) -> Tally:
    """Counters that exist from the start, so that a first event is seen as an increase."""
    tally = Tally()
    for op in COMMANDS:
        for result in ("accepted", "refused"):
            tally.count(CONTROL_COMMANDS.name, op, result, by=0)
    tally.count(AUDIT_LOST.name, by=0)
    tally.count(CONFIG_KEYS_IGNORED.name, by=keys_ignored)
    for role in ROLES:
        tally.count(ACCESS_DENIED.name, role, by=0)
    for result in ("accepted", "refused", "dropped"):
        tally.count(REPORTS.name, result, by=0)
    for result in RESULTS:
        tally.count(CONTROL_STEPS.name, result, by=0)
    for op in COMMANDS:
        tally.count(REQUESTS_MALFORMED.name, op, by=0)
    return tally
