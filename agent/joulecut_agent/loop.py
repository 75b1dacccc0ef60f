"""The agent's process: it puts the parts together, keeps the keeper alive, and gives back.

Measuring comes first. Whatever is wrong with control -- no keeper, no permission -- is said
once, shows as `controllable: false` with its reason, and stops nothing else.
"""

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from joulecut_agent import devices, drift, keeper, memory
from joulecut_agent import state as leases
from joulecut_agent.access import ROLES
from joulecut_agent.attribution.registry import Registry
from joulecut_agent.audit import Trail
from joulecut_agent.energy_file import EnergyFile
from joulecut_agent.exporter import Collector
from joulecut_agent.eye import Eye, wait_for_driver
from joulecut_agent.feed import Feed
from joulecut_agent.gate import Gate
from joulecut_agent.heartbeat import Heartbeat
from joulecut_agent.intent import IntentFile
from joulecut_agent.jobs import Jobs
from joulecut_agent.keeper_client import KeeperClient, KeeperGone
from joulecut_agent.keeper_process import KeeperProcess, wait_until_ready
from joulecut_agent.latency import SetLatency
from joulecut_agent.log import say
from joulecut_agent.notify import Notifier
from joulecut_agent.oversight import Oversight
from joulecut_agent.programs import RESULTS, Programs
from joulecut_agent.release_file import ReleaseFile
from joulecut_agent.sampler import Picture, Sampler
from joulecut_agent.samples import Samples
from joulecut_agent.scrape import Exporter
from joulecut_agent.server import Doors, Server
from joulecut_agent.service import AgentService, Node
from joulecut_agent.settings import Settings
from joulecut_agent.state import Command
from joulecut_agent.tally import Tally
from joulecut_agent.window import Window
from joulecut_wire.errors import JoulecutError, Unavailable
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

READY_WAIT_S = 10.0  # for a keeper that waits for its predecessor and restores 16 GPUs
SWITCH_S = 0.0001  # Python's own 5 ms is five times what a mark may take; a scrape can wait
POLL_IDLE_S = 0.5  # where nothing is held there is nothing to lose; a site's lock may wait
POLL_HELD_S = drift.SUSPECT_S  # no single reading is believed sooner, and each of them is seen
ALONE_WAIT_S, ALONE_TRY_S = 10.0, 0.1  # for an agent that is just restoring and leaving
POLL_S_MAX = 1.0  # how long a lost keeper or an ended lease may go unseen here
COMMANDS = ("apply", "renew", "clear")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Agent:
    """All parts of one agent; `run` is its main thread."""

    def __init__(self, settings: Settings) -> None:
        """Opens the device, starts the keeper, binds every address. Raises JoulecutError.

        In this order, because where the device opens the keeper can restore what an earlier
        one left, whatever fails after that.
        """
        memory.few_arenas()
        sys.setswitchinterval(SWITCH_S)
        self._settings = settings
        self._lock = _alone(settings.keeper.state_dir)
        self._notifier = Notifier()
        wanted = settings.keeper_mode != "none"
        self._client = KeeperClient("the keeper does not answer" if wanted else "no keeper")
        self._child: KeeperProcess | None = None
        self._selector = selectors.DefaultSelector()
        self._boot_id = BOOT_ID.read_text().strip()
        self._release = ReleaseFile(settings.keeper.state_dir, self._boot_id)
        eye = Eye(devices.address(settings.device), settings.options, settings.keeper.state_dir)
        released = self._is_released()
        if settings.keeper_mode == "child":
            self._child = KeeperProcess(
                self._client, settings.keeper, settings.device, settings.options
            )
        if released:
            eye.gpus = self._release.gpus()
        else:
            self._wait_for_driver(eye)
        if self._child and not released:
            self._raise_keeper()
        with contextlib.ExitStack() as undo:
            if self._child and not released:
                undo.callback(self._child.stop)
            self._build(eye, undo)
            undo.pop_all()
        self._lost = False

    def _wait_for_driver(self, eye: Eye) -> None:
        """Raises JoulecutError; then what an earlier keeper left was given back all the same.

        What cannot be read can be reset: the two ask the driver for different things.
        """
        try:
            wait_for_driver(eye)
        except JoulecutError:
            with contextlib.suppress(OSError):
                if self._child and keeper.journal(self._settings.keeper).held:
                    self._child.stop()
            raise

    def _is_released(self) -> bool:
        """Whether a window goes on that an earlier agent was in: then nothing is opened.

        Not where a lock of ours is left, which no window begins with: that comes first.
        """
        if not self._release.left_s():
            return False
        with contextlib.suppress(OSError):  # whoever opens it to write says what is wrong with it
            if self._release.gpus() and not keeper.journal(self._settings.keeper).held:
                return True
        self._release.forget()
        return False

    def _measure(self, eye: Eye, boot_id: str, feed: Feed, undo: contextlib.ExitStack) -> Samples:
        """Makes what reads the device, and what knows for whom it works."""
        settings = self._settings
        self._client.look_after(self._uuids)
        self._programs = Programs(self._client, self._tally)
        self._registry = self._attribute()
        undo.callback(self._registry.stop)
        try:
            self._jobs = Jobs(
                Path(settings.socket),
                self._uuids,
                feed,
                self._tally,
                self._job_ended,
                binding=self._registry.binding if settings.attribution.bind == "owner" else None,
                marked=self._programs.marked,
            )
        except OSError as error:
            raise Unavailable(f"socket {settings.socket}: {error.strerror}") from None
        undo.callback(self._jobs.close)
        self._sampler = Sampler(
            eye,
            settings.sample_interval_s,
            self._tally,
            jobs=self._registry.jobs,
            file=EnergyFile(Path(settings.keeper.state_dir) / "energy.json", boot_id),
        )
        self._jobs.held = self._registry.reported
        self._sampler.samples = samples = Samples(
            Eye(devices.address(settings.device), settings.options, settings.keeper.state_dir)
        )
        return samples

    def _uuids(self) -> tuple[str, ...]:
        return tuple([gpu.uuid for gpu in self._sampler.gpus])

    def _build(self, eye: Eye, undo: contextlib.ExitStack) -> None:
        settings = self._settings
        self._tally = _zeroed(settings.keys_ignored)
        feed = Feed()
        samples = self._measure(eye, self._boot_id, feed, undo)
        wanted = settings.keeper_mode != "none"
        latency = SetLatency()
        self._sampler.watcher = latency.seen
        self._oversight = Oversight(
            lambda: self._sampler.gpus, self._client, self._tally, settings.keeper.site_default
        )
        self._oversight.barred = self._registry.barred
        self._window = Window(self._sampler, self._client, self._release, keeper_wanted=wanted)
        if self._window.left_s:
            self._sampler.begin_paused()
        self._intent = IntentFile(Path(settings.keeper.state_dir) / "intent.json")
        undo.callback(self._intent.remove)
        node = Node(settings.node, self._boot_id, settings.keeper.bounds.ttl_s_max)
        service = AgentService(
            node,
            sampler=self._sampler,
            keeper=self._client,
            feed=feed,
            tally=self._tally,
            oversight=self._oversight,
            window=self._window,
            latency=latency,
            samples=samples,
            programs=self._programs,
            allocations=self._registry.allocations,
        )
        trail = Trail(
            Path(settings.keeper.state_dir),
            settings.audit,
            lambda: self._tally.count(AUDIT_LOST.name),
        )
        gate = Gate(
            settings.rules,
            trail,
            lambda role: self._tally.count(ACCESS_DENIED.name, role),
            lambda: self._client.epoch_seen,
            lambda op: self._tally.count(REQUESTS_MALFORMED.name, op),
        )
        pem = rotating(settings.tls, lambda line: say("agent", line)) if settings.tls else None
        self._server = Server(service, Doors(settings.grpc, pem, settings.local_socket), gate)
        collector = Collector(
            sampler=self._sampler,
            keeper=self._client,
            tally=self._tally,
            allocations=self._registry.allocations,
            keeper_wanted=wanted,
            oversight=self._oversight,
            window=self._window,
            latency=latency,
        )
        path = settings.web_config
        web = WebConfig(path, lambda line: say("agent", line)) if path else None
        self._heartbeat = beat = Heartbeat(self._sampler, self._window, settings.sample_interval_s)
        probes = {"/healthz": beat.live, "/readyz": beat.ready}
        self._exporter = Exporter(collector.text, *settings.metrics, web, probes)

    def _attribute(self) -> Registry:
        """Whose the GPUs are; it asks the parts that are made after it, once it is started."""

        shown: tuple[Picture | None, dict[str, GpuSnapshot]] = (None, {})

        def seen() -> dict[str, GpuSnapshot]:
            nonlocal shown
            picture, (before, gpus) = self._sampler.known(), shown
            if picture is not before:  # asked for each mark, and for each GPU
                gpus = {gpu.uuid: gpu for gpu in picture.snapshot.gpus} if picture else {}
                shown = (picture, gpus)
            return gpus

        return Registry(
            self._settings.attribution,
            gpus=lambda: self._sampler.gpus,
            seen=seen,
            reports=lambda: self._jobs.holding(),  # noqa: PLW0108 -- not made yet
            held=self._held,
            changed=self._owner_changed,
            noted=lambda *change: self._sampler.held(*change),  # noqa: PLW0108
            board=Path(self._settings.keeper.state_dir) / "owners",
        )

    def _held(self) -> dict[str, str]:
        """The job of each GPU under a lease."""
        status, now_s = self._client.status, time.monotonic()
        leased = {uuid: status.lease(uuid, now_s) for uuid in status.slots} if status else {}
        return {uuid: lease.job for uuid, lease in leased.items() if lease}

    def run(self) -> int:
        """Until SIGTERM or Ctrl-C. Returns 0 when every GPU was given back."""
        with _bell() as bell:
            self._start()
            self._selector.register(bell, selectors.EVENT_READ)
            due_s = ask_s = time.monotonic()
            while True:
                now_s = time.monotonic()
                if now_s >= due_s:
                    self._heartbeat.turn()
                    if now_s >= ask_s:  # the keeper looks at every device to answer
                        self._poll()
                        ask_s = now_s + POLL_S_MAX
                    self._oversee()
                    due_s = time.monotonic() + self._poll_s()
                wait_s = max(0.0, due_s - time.monotonic())
                for source in [key.fileobj for key, _ in self._selector.select(wait_s)]:
                    if source is bell:
                        return self._stop()
                    self._bury()

    def _poll_s(self) -> float:
        at_least_s = POLL_HELD_S if self._holds else POLL_IDLE_S
        return min(max(self._settings.sample_interval_s, at_least_s), POLL_S_MAX)

    @property
    def _holds(self) -> bool:
        status = self._client.status
        return status is not None and any(slot.lease for slot in status.slots.values())

    def _start(self) -> None:
        self._sampler.start()
        self._registry.start()
        self._connect()
        if self._settings.keeper_mode != "none" and not self._asleep():
            self._lost = not wait_until_ready(self._client, READY_WAIT_S)
            if self._lost:
                say("agent", "the keeper does not answer: measuring goes on without control")
        self._say_uncontrollable()
        self._jobs.start()
        self._server.start()
        self._exporter.start()
        memory.give_back()
        metrics_host, grpc_host = self._settings.metrics[0], self._settings.grpc[0]
        pid = self._child.pid if self._child else None
        sys.stdout.write(
            f"joulecut-agent ready node={self._settings.node}"
            f" metrics={metrics_host}:{self._exporter.port} grpc={grpc_host}:{self._server.port}"
            f" socket={self._settings.socket} keeper_pid={pid or '-'}\n"
        )
        sys.stdout.flush()
        self._notifier.ready(self._health())

    def _oversee(self) -> None:
        """Looks after what was set, and says how things stand."""
        self._window.follow()
        self._programs.look()
        if self._sampler.latest():
            # While something is held each picture is looked at.
            for picture in self._sampler.recent()[0 if self._holds else -1 :]:
                self._oversight.look(picture.snapshot)
        self._intent.write(self._oversight.intents())
        self._notifier.alive(self._health())

    def _health(self) -> str:
        status, now_s = self._client.status, time.monotonic()
        if self._window.left_s:
            return "released: no device is read or set"
        picture = self._sampler.known()
        read = len(picture.snapshot.gpus) if picture else 0
        held = sum(status.lease(uuid, now_s) is not None for uuid in status.slots) if status else 0
        why = f"; {status.stopped}" if status and status.stopped else ""
        return f"{read} of {len(self._sampler.gpus)} GPUs measured, {held} under a lease{why}"

    def _poll(self) -> None:
        """Starts or finds a keeper where there is none, and asks it how things stand."""
        if self._settings.keeper_mode == "none":
            return
        if self._child and self._child.pid is None:
            if self._asleep() or time.monotonic() < self._child.due_s:
                return
            self._raise_keeper()
        self._connect()
        try:
            self._client.refresh()
        except KeeperGone as error:
            if not self._lost:
                say("agent", f"{error}; measuring goes on without control")
            self._lost = True
            if self._child:
                self._child.silent()
            return
        if self._child:
            self._child.heard()
        if self._lost:
            say("agent", "the keeper answers")
        self._lost = False

    def _asleep(self) -> bool:
        """Whether no keeper is to be started yet: in a release window it would open the device."""
        return bool(self._child and self._child.pid is None and self._window.left_s)

    def _raise_keeper(self) -> None:
        assert self._child is not None
        try:
            self._child.start()
        except OSError as error:  # no process or descriptor is left; `_poll` tries again
            say("agent", f"no keeper can be started: {error.strerror}")
            return
        self._selector.register(self._child, selectors.EVENT_READ)

    def _bury(self) -> None:
        assert self._child is not None
        self._selector.unregister(self._child)
        self._child.died()
        self._lost = True
        self._poll()

    def _connect(self) -> None:
        mode = self._settings.keeper_mode
        if mode not in {"child", "none"} and not self._client.connected:
            with contextlib.suppress(KeeperGone):
                self._client.connect(mode)

    def _say_uncontrollable(self) -> None:
        gpus = [g for g in self._oversight.described(self._sampler.gpus) if not g.controllable]
        for reason in sorted({gpu.reason for gpu in gpus}):
            count = sum(gpu.reason == reason for gpu in gpus)
            say(
                "agent", f"{count} of {len(self._sampler.gpus)} GPUs cannot be controlled: {reason}"
            )

    def _job_ended(self, job: str, uuid: str) -> None:
        command = Command(leases.CLEAR, job=job, clocks_mhz={uuid: (0, 0)}, cause="job_ended")
        self._give_back(uuid, command)

    def _owner_changed(self, uuid: str) -> None:
        """Whatever job holds a lease on it: that was for the owner who has gone."""
        if uuid in self._held():
            say("agent", f"{uuid} has changed hands: its lease is given back")
        self._give_back(uuid, Command(leases.CLEAR, clocks_mhz={uuid: (0, 0)}, cause="job_ended"))

    def _give_back(self, uuid: str, command: Command) -> None:
        status = self._client.status
        if status is None or status.slots.get(uuid) is None:
            return
        with contextlib.suppress(KeeperGone):
            self._client.ask(command)
            self._client.refresh()

    def _stop(self) -> int:
        """Gives every GPU back first; without a keeper no command can take one again."""
        self._notifier.stopping()
        self._heartbeat.leaving = True
        done = self._child.stop() if self._child and not self._asleep() else True
        self._intent.remove()
        self._client.detach()
        self._server.stop()
        self._registry.stop()
        self._jobs.close()
        self._sampler.stop()
        say("agent", "gone" if done else "gone; not every GPU could be given back (see journal)")
        return 0 if done else 1


def _alone(state_dir: str) -> int:
    """Takes the lock that makes an agent the only one with these files; it ends with the process.

    Two would take turns at one intent file and one account of energy. Raises Unavailable.
    """
    path = Path(state_dir) / "agent.lock"
    try:
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
    except OSError:  # nothing else can be written there either, and measuring goes on
        return -1
    until_s = time.monotonic() + ALONE_WAIT_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        if time.monotonic() >= until_s:
            os.close(fd)
            raise Unavailable(f"another agent holds {path}")
        time.sleep(ALONE_TRY_S)


@contextlib.contextmanager
def _bell() -> Iterator[socket.socket]:
    """A socket that becomes readable when a signal asks this process to go."""
    bell, ringer = socket.socketpair()
    bell.setblocking(False)
    ringer.setblocking(False)
    before = signal.set_wakeup_fd(ringer.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        yield bell
    finally:
        signal.set_wakeup_fd(before)
        bell.close()
        ringer.close()


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
