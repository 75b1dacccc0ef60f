"""The agent's process: it puts the parts together, keeps the keeper alive, and gives back.

Measuring comes first. Whatever is wrong with control -- no keeper, no permission -- is said
once, shows as `controllable: false` with its reason, and stops nothing else.
"""

import contextlib
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from joulecut_agent import devices, memory
from joulecut_agent import state as leases
from joulecut_agent.exporter import Collector, Exporter
from joulecut_agent.feed import Feed
from joulecut_agent.jobs import Jobs
from joulecut_agent.keeper_client import KeeperClient, KeeperGone
from joulecut_agent.keeper_process import KeeperProcess, wait_until_ready
from joulecut_agent.log import say
from joulecut_agent.ports.reader import DeviceReader
from joulecut_agent.sampler import Sampler
from joulecut_agent.server import Server
from joulecut_agent.service import AgentService, Node
from joulecut_agent.settings import Settings
from joulecut_agent.state import Command
from joulecut_agent.tally import Tally
from joulecut_wire.errors import Unavailable
from joulecut_wire.metrics import CONTROL_COMMANDS, REPORTS

READY_WAIT_S = 10.0  # for a keeper that waits for its predecessor and restores 16 GPUs
POLL_S_MAX = 1.0  # how long a lost keeper or an ended lease may go unseen here
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Agent:
    """All parts of one agent; `run` is its main thread."""

    def __init__(self, settings: Settings) -> None:
        """Opens the device, starts the keeper, binds every address. Raises JoulecutError.

        In this order, because where the device opens the keeper can restore what an earlier
        one left, whatever fails after that.
        """
        self._settings = settings
        wanted = settings.keeper_mode != "none"
        self._client = KeeperClient("the keeper does not answer" if wanted else "no keeper")
        self._child: KeeperProcess | None = None
        self._selector = selectors.DefaultSelector()
        backend = devices.load(settings.device)
        reader = backend.open_reader(settings.options, settings.keeper.state_dir)
        if settings.keeper_mode == "child":
            self._child = KeeperProcess(
                self._client, settings.keeper, settings.device, settings.options
            )
            self._raise_keeper()
        with contextlib.ExitStack() as undo:
            if self._child:
                undo.callback(self._child.stop)
            self._build(reader, undo)
            undo.pop_all()
        self._lost = False

    def _build(self, reader: DeviceReader, undo: contextlib.ExitStack) -> None:
        settings = self._settings
        self._tally = _zeroed()
        feed = Feed()
        gpus = reader.describe()
        uuids = [gpu.uuid for gpu in gpus]
        self._client.look_after(uuids)
        try:
            self._jobs = Jobs(Path(settings.socket), uuids, feed, self._tally, self._job_ended)
        except OSError as error:
            raise Unavailable(f"socket {settings.socket}: {error.strerror}") from None
        undo.callback(self._jobs.close)
        self._sampler = Sampler(
            reader, gpus, settings.sample_interval_s, self._tally, self._jobs.working
        )
        node = Node(settings.node, BOOT_ID.read_text().strip(), settings.keeper.bounds.ttl_s_max)
        service = AgentService(node, self._sampler, self._client, feed, self._tally)
        self._server = Server(service, *settings.grpc)
        wanted = settings.keeper_mode != "none"
        self._exporter = Exporter(
            Collector(self._sampler, self._client, self._tally, self._jobs.working, wanted),
            *settings.metrics,
        )

    def run(self) -> int:
        """Until SIGTERM or Ctrl-C. Returns 0 when every GPU was given back."""
        with _bell() as bell:
            self._start()
            self._selector.register(bell, selectors.EVENT_READ)
            self._selector.register(self._jobs, selectors.EVENT_READ)
            poll_s = min(self._settings.sample_interval_s, POLL_S_MAX)
            due_s = time.monotonic()
            while True:
                if time.monotonic() >= due_s:
                    self._poll()
                    due_s = time.monotonic() + poll_s
                wait_s = max(0.0, due_s - time.monotonic())
                for source in [key.fileobj for key, _ in self._selector.select(wait_s)]:
                    if source is bell:
                        return self._stop()
                    if source is self._jobs:
                        self._jobs.turn()
                    else:
                        self._bury()

    def _start(self) -> None:
        self._sampler.start()
        self._connect()
        if self._settings.keeper_mode != "none":
            self._lost = not wait_until_ready(self._client, READY_WAIT_S)
            if self._lost:
                say("agent", "the keeper does not answer: measuring goes on without control")
        self._say_uncontrollable()
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

    def _poll(self) -> None:
        """Starts or finds a keeper where there is none, and asks it how things stand."""
        if self._settings.keeper_mode == "none":
            return
        if self._child and self._child.pid is None:
            if time.monotonic() < self._child.due_s:
                return
            self._raise_keeper()
        self._connect()
        try:
            self._client.refresh()
        except KeeperGone as error:
            if not self._lost:
                say("agent", f"{error}; measuring goes on without control")
            self._lost = True
            return
        if self._lost:
            say("agent", "the keeper answers")
        self._lost = False

    def _raise_keeper(self) -> None:
        assert self._child is not None
        self._child.start()
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
        gpus = [g for g in self._client.described(self._sampler.gpus) if not g.controllable]
        for reason in sorted({gpu.reason for gpu in gpus}):
            count = sum(gpu.reason == reason for gpu in gpus)
            say(
                "agent", f"{count} of {len(self._sampler.gpus)} GPUs cannot be controlled: {reason}"
            )

    def _job_ended(self, job: str, uuid: str) -> None:
        command = Command(leases.CLEAR, job=job, clocks_mhz={uuid: (0, 0)}, cause="job_ended")
        status = self._client.status
        if status is None or status.slots.get(uuid) is None:
            return
        with contextlib.suppress(KeeperGone):
            self._client.ask(command)
            self._client.refresh()

    def _stop(self) -> int:
        """Gives every GPU back first; without a keeper no command can take one again."""
        done = self._child.stop() if self._child else True
        self._client.detach()
        self._server.stop()
        self._jobs.close()
        self._sampler.stop()
        say("agent", "gone" if done else "gone; not every GPU could be given back (see journal)")
        return 0 if done else 1


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


def _zeroed() -> Tally:
    """Counters that exist from the start, so that a first event is seen as an increase."""
    tally = Tally()
    for op in ("apply", "renew", "clear"):
        for result in ("accepted", "refused"):
            tally.count(CONTROL_COMMANDS.name, op, result, by=0)
    for result in ("accepted", "refused", "dropped"):
        tally.count(REPORTS.name, result, by=0)
    return tally
