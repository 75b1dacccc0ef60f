"""The agent's process: starts the parts, watches what is set, restores at the end.

Measuring comes first. A fault of control (no keeper, no permission) is logged once, shows as
`controllable: false` with its reason, and stops nothing else.
"""

import contextlib
import selectors
import sys
import time
from pathlib import Path

from joulecut_agent import devices, memory
from joulecut_agent.control import drift
from joulecut_agent.control.release_file import ReleaseFile
from joulecut_agent.driver_process import BACKOFF_S
from joulecut_agent.keeper import keeper, service
from joulecut_agent.keeper.settings import Settings as KeeperSettings
from joulecut_agent.keeper.supervisor import KeeperSupervisor
from joulecut_agent.log import log
from joulecut_agent.monitor.driver_reader import DriverReader
from joulecut_agent.notify import Notifier
from joulecut_agent.parts import Parts
from joulecut_agent.ports.failure import DeviceError
from joulecut_agent.settings import Settings
from joulecut_agent.signal_wakeup import signal_wakeup
from joulecut_wire.errors import JoulecutError

SWITCH_S = 0.0001  # Python's own 5 ms is five times what a mark may take; a scrape can wait
POLL_IDLE_S = 0.5  # without a lease; a lock of the site is noticed soon enough
POLL_HELD_S = drift.SUSPECT_S  # drift is not reported sooner, and no reading is missed
ALONE_WAIT_S = 10.0  # for an agent that is restoring and leaving
POLL_S_MAX = 1.0  # how long a lost keeper or an ended lease may go unnoticed here


class Agent:
    """All parts of one agent; `run` is its main thread."""

    def __init__(self, settings: Settings) -> None:
        """Opens the device, starts the keeper, binds every address. Raises JoulecutError.

        In this order: once the device opens, the keeper can restore what an earlier one left,
        whatever fails after that.
        """
        memory.limit_arenas()
        sys.setswitchinterval(SWITCH_S)
        self._settings = settings
        self._lock = _hold_lock(settings.keeper.state_dir)
        self._notifier = Notifier()
        self._selector = selectors.DefaultSelector()
        boot_id, state_dir = keeper.BOOT_ID.read_text().strip(), settings.keeper.state_dir
        release = ReleaseFile(state_dir, boot_id)
        reader = DriverReader(devices.address(settings.device), settings.options, state_dir)
        self._supervisor = KeeperSupervisor(
            settings.keeper_mode,
            settings.keeper,
            settings.device,
            settings.options,
            self._selector,
        )
        with contextlib.ExitStack() as undo:
            if _window_is_open(release, settings.keeper):
                reader.gpus = release.gpus()
            else:
                self._wait_for_driver(reader)
                self._supervisor.start()
                undo.callback(self._supervisor.stop)
            client = self._supervisor.client
            self._parts = Parts(
                settings, reader, client, boot_id=boot_id, release=release, undo=undo
            )
            undo.pop_all()
        self._supervisor.released = lambda: self._parts.window.left_s > 0.0

    def _wait_for_driver(self, reader: DriverReader) -> None:
        """Returns when the GPUs are known. Raises JoulecutError if there is no driver.

        Then a keeper restores what an earlier one left all the same: a GPU that cannot be read
        may still be reset.
        """
        try:
            while not _answers(reader):
                time.sleep(BACKOFF_S)
        except JoulecutError:
            with contextlib.suppress(OSError):
                if not keeper.journal(self._settings.keeper).is_clean:
                    self._supervisor.stop()
            raise

    def run(self) -> int:
        """Until SIGTERM or Ctrl-C. Returns 0 if every GPU was restored."""
        with signal_wakeup() as wakeup:
            self._start()
            self._selector.register(wakeup, selectors.EVENT_READ)
            due_s = keeper_due_s = time.monotonic()
            while True:
                now_s = time.monotonic()
                if now_s >= due_s:
                    self._parts.health.turn()
                    if now_s >= keeper_due_s:  # the keeper checks every device to answer
                        self._supervisor.poll()
                        keeper_due_s = now_s + POLL_S_MAX
                    self._watch()
                    due_s = time.monotonic() + self._poll_s()
                wait_s = max(0.0, due_s - time.monotonic())
                for source in [key.fileobj for key, _ in self._selector.select(wait_s)]:
                    if source is wakeup:
                        return self._stop()
                    self._supervisor.reap()

    def _poll_s(self) -> float:
        at_least_s = POLL_HELD_S if self._holds else POLL_IDLE_S
        read_s = min(self._settings.sample_interval_s, self._parts.schedules.reading_s())
        return min(max(read_s, at_least_s), POLL_S_MAX)

    @property
    def _holds(self) -> bool:
        """Whether any GPU is under a lease."""
        status = self._supervisor.client.status
        return status is not None and any(slot.lease for slot in status.slots.values())

    def _start(self) -> None:
        parts, settings = self._parts, self._settings
        parts.sampler.start()
        parts.registry.start()
        self._supervisor.wait_ready()
        self._log_uncontrollable()
        parts.schedules.start()
        parts.report_socket.start()
        if settings.logs:
            parts.logs.start()
        parts.server.start()
        parts.exporter.start()
        memory.give_back()
        sys.stdout.write(
            f"joulecut-agent ready node={settings.node}"
            f" metrics={settings.metrics[0]}:{parts.exporter.port}"
            f" grpc={settings.grpc[0]}:{parts.server.port}"
            f" socket={settings.socket} keeper_pid={self._supervisor.pid or '-'}"
            f" grpc_socket={parts.server.local_path or '-'}\n"
        )
        sys.stdout.flush()
        self._notifier.ready(self._status_line())

    def _watch(self) -> None:
        """Checks what is set against what the devices show, and reports the status."""
        parts = self._parts
        parts.window.follow()
        parts.schedules.follow_leases()
        if parts.sampler.latest():
            # Under a lease every reading is checked.
            for reading in parts.sampler.recent()[0 if self._holds else -1 :]:
                parts.drift_watch.check(reading.snapshot)
                parts.schedules.on_reading(reading.snapshot)
        self._notifier.alive(self._status_line())

    def _status_line(self) -> str:
        parts, status, now_s = self._parts, self._supervisor.client.status, time.monotonic()
        if parts.window.left_s:
            return "released: no device is read or set"
        reading = parts.sampler.latest()
        read = len(reading.snapshot.gpus) if reading else 0
        held = sum(status.lease(uuid, now_s) is not None for uuid in status.slots) if status else 0
        why = f"; {status.stopped}" if status and status.stopped else ""
        return f"{read} of {len(parts.sampler.gpus)} GPUs measured, {held} under a lease{why}"

    def _log_uncontrollable(self) -> None:
        gpus = self._parts.sampler.gpus
        described = self._parts.drift_watch.described(gpus)
        uncontrollable = [gpu for gpu in described if not gpu.controllable]
        for reason in sorted({gpu.reason for gpu in uncontrollable}):
            count = sum(gpu.reason == reason for gpu in uncontrollable)
            log("agent", f"{count} of {len(gpus)} GPUs cannot be controlled: {reason}", "warning")

    def _stop(self) -> int:
        """Restores every GPU first; without a keeper no command can set one again."""
        parts = self._parts
        self._notifier.stopping()
        parts.health.leaving = True
        done = self._supervisor.stop()
        self._supervisor.client.detach()
        parts.server.stop()
        parts.registry.stop()
        parts.logs.close()
        parts.report_socket.close()
        parts.schedules.stop()
        parts.sampler.stop()
        if done:
            log("agent", "stopped")
        else:
            log("agent", "stopped; not every GPU was restored (see journal)", "error")
        return 0 if done else 1


def _answers(reader: DriverReader) -> bool:
    """Whether the driver described its GPUs. Raises JoulecutError if there is no driver.

    A driver that hangs is waited for: each restart would leave another process in it.
    """
    try:
        reader.describe()
    except DeviceError as error:
        if error.code == "driver_unresponsive":
            return False
        reader.close()
        raise
    except BaseException:
        reader.close()
        raise
    return True


def _window_is_open(release: ReleaseFile, settings: KeeperSettings) -> bool:
    """Whether a release window of an earlier agent is still open; then nothing is opened.

    A window begins without a lock of ours. If the journal names one, it is restored first.
    """
    if not release.left_s():
        return False
    with contextlib.suppress(OSError):  # the keeper reports what is wrong with the journal
        if release.gpus() and keeper.journal(settings).is_restored:
            return True
    release.forget()
    return False


def _hold_lock(state_dir: str) -> int:
    """Takes the lock of the only agent with these files. Raises Unavailable.

    Two agents would overwrite each other's account of energy.
    """
    with contextlib.suppress(OSError):  # nothing else can be written there either
        return service.hold(Path(state_dir) / "agent.lock", ALONE_WAIT_S)
    return -1
