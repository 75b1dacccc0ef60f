"""The agent's process: it starts the parts, looks after what was set, and gives back.

Measuring comes first. Whatever is wrong with control -- no keeper, no permission -- is said
once, shows as `controllable: false` with its reason, and stops nothing else.
"""

import contextlib
import selectors
import sys
import time
from pathlib import Path

from joulecut_agent import devices, memory
from joulecut_agent.control import drift
from joulecut_agent.control.release_file import ReleaseFile
from joulecut_agent.keeper import keeper
from joulecut_agent.keeper_supervisor import Tether
from joulecut_agent.log import say
from joulecut_agent.monitor.driver_reader import Eye
from joulecut_agent.monitor.unresponsive import BACK_OFF_S
from joulecut_agent.notify import Notifier
from joulecut_agent.parts import Parts
from joulecut_agent.ports.failure import DeviceError
from joulecut_agent.settings import Settings
from joulecut_agent.signal_wakeup import signal_bell
from joulecut_wire.errors import JoulecutError

SWITCH_S = 0.0001  # Python's own 5 ms is five times what a mark may take; a scrape can wait
POLL_IDLE_S = 0.5  # where nothing is held there is nothing to lose; a site's lock may wait
POLL_HELD_S = drift.SUSPECT_S  # no single reading is believed sooner, and each of them is seen
ALONE_WAIT_S = 10.0  # for an agent that is just restoring and leaving
POLL_S_MAX = 1.0  # how long a lost keeper or an ended lease may go unseen here


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
        self._selector = selectors.DefaultSelector()
        boot_id, state_dir = keeper.BOOT_ID.read_text().strip(), settings.keeper.state_dir
        release = ReleaseFile(state_dir, boot_id)
        eye = Eye(devices.address(settings.device), settings.options, state_dir)
        self._tether = Tether(settings, self._selector)
        with contextlib.ExitStack() as undo:
            if _goes_on(release, settings.keeper):
                eye.gpus = release.gpus()
            else:
                self._wait_for_driver(eye)
                self._tether.start_child()
                undo.callback(self._tether.stop)
            self._parts = Parts(
                settings, eye, self._tether.client, boot_id=boot_id, release=release, undo=undo
            )
            undo.pop_all()
        self._tether.released = lambda: self._parts.window.left_s > 0.0

    def _wait_for_driver(self, eye: Eye) -> None:
        """Returns when the GPUs are known. Raises JoulecutError where there is no driver; then
        what an earlier keeper left was given back all the same.

        What cannot be read can be reset: the two ask the driver for different things.
        """
        try:
            while not _answers(eye):
                time.sleep(BACK_OFF_S)
        except JoulecutError:
            with contextlib.suppress(OSError):
                if keeper.journal(self._settings.keeper).held:
                    self._tether.stop()
            raise

    def run(self) -> int:
        """Until SIGTERM or Ctrl-C. Returns 0 when every GPU was given back."""
        with signal_bell() as bell:
            self._start()
            self._selector.register(bell, selectors.EVENT_READ)
            due_s = ask_s = time.monotonic()
            while True:
                now_s = time.monotonic()
                if now_s >= due_s:
                    self._parts.heartbeat.turn()
                    if now_s >= ask_s:  # the keeper looks at every device to answer
                        self._tether.poll()
                        ask_s = now_s + POLL_S_MAX
                    self._oversee()
                    due_s = time.monotonic() + self._poll_s()
                wait_s = max(0.0, due_s - time.monotonic())
                for source in [key.fileobj for key, _ in self._selector.select(wait_s)]:
                    if source is bell:
                        return self._stop()
                    self._tether.bury()

    def _poll_s(self) -> float:
        at_least_s = POLL_HELD_S if self._holds else POLL_IDLE_S
        return min(max(self._settings.sample_interval_s, at_least_s), POLL_S_MAX)

    @property
    def _holds(self) -> bool:
        status = self._tether.client.status
        return status is not None and any(slot.lease for slot in status.slots.values())

    def _start(self) -> None:
        parts, settings = self._parts, self._settings
        parts.sampler.start()
        parts.registry.start()
        self._tether.wait()
        self._say_uncontrollable()
        parts.jobs.start()
        parts.server.start()
        parts.exporter.start()
        memory.give_back()
        sys.stdout.write(
            f"joulecut-agent ready node={settings.node}"
            f" metrics={settings.metrics[0]}:{parts.exporter.port}"
            f" grpc={settings.grpc[0]}:{parts.server.port}"
            f" socket={settings.socket} keeper_pid={self._tether.pid or '-'}\n"
        )
        sys.stdout.flush()
        self._notifier.ready(self._health())

    def _oversee(self) -> None:
        """Looks after what was set, and says how things stand."""
        parts = self._parts
        parts.window.follow()
        parts.programs.look()
        if parts.sampler.latest():
            # While something is held each picture is looked at.
            for picture in parts.sampler.recent()[0 if self._holds else -1 :]:
                parts.oversight.look(picture.snapshot)
        parts.intent.write(parts.oversight.intents())
        self._notifier.alive(self._health())

    def _health(self) -> str:
        parts, status, now_s = self._parts, self._tether.client.status, time.monotonic()
        if parts.window.left_s:
            return "released: no device is read or set"
        picture = parts.sampler.known()
        read = len(picture.snapshot.gpus) if picture else 0
        held = sum(status.lease(uuid, now_s) is not None for uuid in status.slots) if status else 0
        why = f"; {status.stopped}" if status and status.stopped else ""
        return f"{read} of {len(parts.sampler.gpus)} GPUs measured, {held} under a lease{why}"

    def _say_uncontrollable(self) -> None:
        gpus = self._parts.sampler.gpus
        barred = [g for g in self._parts.oversight.described(gpus) if not g.controllable]
        for reason in sorted({gpu.reason for gpu in barred}):
            count = sum(gpu.reason == reason for gpu in barred)
            say("agent", f"{count} of {len(gpus)} GPUs cannot be controlled: {reason}")

    def _stop(self) -> int:
        """Gives every GPU back first; without a keeper no command can take one again."""
        parts = self._parts
        self._notifier.stopping()
        parts.heartbeat.leaving = True
        done = self._tether.stop()
        parts.intent.remove()
        self._tether.client.detach()
        parts.server.stop()
        parts.registry.stop()
        parts.jobs.close()
        parts.sampler.stop()
        say("agent", "gone" if done else "gone; not every GPU could be given back (see journal)")
        return 0 if done else 1


def _answers(eye: Eye) -> bool:
    """Whether the driver told its GPUs. Raises JoulecutError where there is none.

    One that hangs is waited for: ending would only begin the same again, and each end leaves
    another process in the driver.
    """
    try:
        eye.describe()
    except DeviceError as error:
        if error.code == "driver_unresponsive":
            return False
        eye.close()
        raise
    except BaseException:
        eye.close()
        raise
    return True


def _goes_on(release: ReleaseFile, settings: keeper.Settings) -> bool:
    """Whether a window goes on that an earlier agent was in: then nothing is opened.

    Not where a lock of ours is left, which no window begins with: that comes first.
    """
    if not release.left_s():
        return False
    with contextlib.suppress(OSError):  # whoever opens it to write says what is wrong with it
        if release.gpus() and not keeper.journal(settings).held:
            return True
    release.forget()
    return False


def _alone(state_dir: str) -> int:
    """Takes the lock that makes an agent the only one with these files: two would take turns at
    one intent file and one account of energy. Raises Unavailable.
    """
    path = Path(state_dir) / "agent.lock"
    with contextlib.suppress(OSError):  # nothing else can be written there either
        return keeper.hold(path, ALONE_WAIT_S)
    return -1  # and measuring goes on
