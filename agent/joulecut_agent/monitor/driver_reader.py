"""Reads the driver through a process that can be killed, so that a call that hangs can be left.

A thread that hangs in a driver cannot be ended. Here a call that does not return costs its
own GPU: that one is left out for a growing while, and a fresh process reads the others. The
same cure serves a driver that was reloaded or replaced, which an open process cannot follow.
"""

import json
import select
import socket
import time
from typing import Any

from joulecut_agent.log import say
from joulecut_agent.monitor import reader_protocol as words
from joulecut_agent.monitor.known_gpus import absent, merged, unresponsive
from joulecut_agent.monitor.reader_child import Undead, Worker, ended, started
from joulecut_agent.monitor.reader_protocol import DRIVER, IDLE, PACKET_BYTES_MAX
from joulecut_agent.monitor.unresponsive import BACK_OFF_S_MAX, Troubles
from joulecut_agent.ports.failure import DeviceError, Gone, Transient
from joulecut_agent.ports.reader import Burst, Reading
from joulecut_wire.messages import GpuDescription

READ_WAIT_S = 1.0  # for one GPU, which takes milliseconds; a busy driver some hundreds
LOOK_S = 0.1  # how often its progress is looked at where there is no answer
OPEN_WAIT_S = 10.0  # loading the driver takes a second or two where nothing keeps it loaded
CLOSE_WAIT_S = 1.0
ABSENT_S_MAX = 10.0  # asking a driver that is not loaded costs nothing, and it may come back
DESCRIBE_S = 30.0  # how long MIG may be on before the description says so
RENEW_S = 60.0  # a lost GPU that was reset is seen by a process that opens the driver anew
LATE_S = 0.5  # without a reading that was due: then it is asked for one
TRIES = 2  # in one tick: the second reads what the first did not get to
VOID = frozenset(("uninitialized", "driver_not_loaded", "lib_rm_version_mismatch"))


class _Hung(Exception):
    """A call about this GPU (or DRIVER) did not return in time."""

    def __init__(self, index: int) -> None:
        self.index = index


class Eye:
    """For one thread, but for `cut`, `unresponsive` and `gpus`."""

    def __init__(self, address: str, options: dict[str, Any], state_dir: str) -> None:
        """`address` is the back end's `module:name`; nothing is opened yet."""
        self._given = json.dumps([address, options, state_dir])
        self._worker: Worker | None = None
        self._undead = Undead()
        self._trouble = Troubles()
        self._describe_s = 0.0
        self._unseen: frozenset[int] = frozenset()  # not even looked up by this process
        self._renew_s = 0.0
        self.gpus: tuple[GpuDescription, ...] = ()

    def start(self) -> None:
        """Lets the process load while its owner does other things."""
        if self._worker is None:
            self._spawn()

    def describe(self) -> tuple[GpuDescription, ...]:
        """All GPUs that ever answered. Raises JoulecutError where the driver does not."""
        self._describe_s = 0.0
        for _ in range(TRIES):
            try:
                self._ready()
                break
            except _Hung as hung:
                self._give_up(hung.index)
        else:
            raise unresponsive("the driver")
        return self.gpus

    def read(self, each_s: float = 0.0) -> tuple[Reading, ...]:
        """Every GPU that ever answered, once. Never raises, and returns in bounded time.

        From then on it reads by itself each `each_s`, see `arrived`; 0: no more.
        """
        failed: DeviceError = unresponsive("the driver")
        for _ in range(TRIES):
            try:
                self._ready()
                left_out = self._left_out()
                number, rows = self._ask("read", list(left_out), each_s)
                readings = words.decode_readings(rows)
                self._goes_on(each_s, left_out, number, readings)
                self._trouble.well(left_out)
                return self._judged(readings, left_out)
            except _Hung as hung:
                self._give_up(hung.index)
            except DeviceError as error:
                failed = error
                self._open_anew(error)
                if error.code != "reader_died":
                    break
        return tuple(Reading(gpu.uuid, None, failed) for gpu in self.gpus)

    def arrived(self) -> list[tuple[float, tuple[Reading, ...]]]:
        """When (monotonic) and what it has read by itself since the last time. Never waits."""
        worker, found = self._worker, list[tuple[float, tuple[Reading, ...]]]()
        while worker is not None and worker.each_s:
            try:
                raw = worker.line.recv(PACKET_BYTES_MAX, socket.MSG_DONTWAIT)
                at_s, number, rows = words.decode(raw)
            except BlockingIOError:
                break
            except (OSError, ValueError, EOFError, TypeError):  # it died; who reads next finds out
                worker.sound = False
                break
            worker.heard_s = at_s
            if (readings := worker.seen(at_s, number, rows)) is not None:
                found.append((at_s, readings + absent(self.gpus, readings, worker.left_out)))
        return found

    def is_reading(self, each_s: float) -> bool:
        """Whether it reads by itself, so often, and there is no reason to ask how it is."""
        worker, now_s = self._worker, time.monotonic()
        if worker is None or worker.each_s != each_s or not worker.sound:
            return False
        left_out, late_s = self._left_out(), max(LATE_S, 2.0 * each_s)
        told = now_s < self._describe_s and self._unseen.issubset(left_out)
        return told and worker.left_out == left_out and now_s - worker.heard_s < late_s

    def burst(self, index: int) -> Burst:
        """Raises DeviceError."""
        try:
            self._ready()
            if index in self._left_out():
                raise unresponsive(f"GPU {index}")
            burst = words.decode_burst(self._ask("burst", index))
        except _Hung as hung:
            self._give_up(hung.index)
            raise unresponsive(f"GPU {index}") from None
        except DeviceError as error:
            if error.code in VOID:
                self.close()
            raise
        return burst

    @property
    def unresponsive(self) -> frozenset[int]:
        """Indices of the GPUs whose calls did not return, and DRIVER where none does."""
        return self._trouble.hung

    def cut(self) -> None:
        """From any thread: whoever waits for the driver waits no longer."""
        if worker := self._worker:
            worker.process.kill()

    def close(self) -> None:
        """Drops every handle; the next call opens the driver again."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.line.close()
        if not ended(worker.process, CLOSE_WAIT_S):
            self._undead.kill(worker.process, DRIVER)
        worker.mark.close()

    # -- one exchange --------------------------------------------------------------------

    def _ready(self) -> None:
        """A process that has the driver open, and has told its GPUs not long ago."""
        self._undead.bury()
        now_s = time.monotonic()
        if driver := self._trouble.resting().get(DRIVER):
            raise unresponsive("the driver") if driver.hung else Gone("driver", "no driver")
        if self._worker is None:
            self._spawn()
        assert self._worker is not None
        if not self._worker.open:
            self._open(self._worker)
        left_out = self._left_out()
        if now_s >= self._describe_s or not self._unseen.issubset(left_out):
            told = words.decode_described(self._ask("describe", list(left_out)))
            self.gpus = merged(self.gpus, told, left_out)
            self._describe_s, self._unseen = now_s + DESCRIBE_S, frozenset(left_out)

    def _open(self, worker: Worker) -> None:
        try:
            self._ask("open", wait_s=OPEN_WAIT_S)
        except DeviceError as error:
            self.close()
            times = self._trouble.note(DRIVER, ABSENT_S_MAX, hung=False)
            if times == 1 and self.gpus:  # at the start whoever started it says so
                say("agent", f"{error}; nothing is measured until it is back")
            raise
        if self._trouble.over(DRIVER):
            say("agent", "the driver answers")
        worker.open = True
        self._describe_s = 0.0

    def _ask(self, call: str, *arguments: Any, wait_s: float | None = None) -> Any:
        """The answer. Raises JoulecutError, and _Hung."""
        worker = self._worker
        assert worker is not None
        try:
            worker.line.send(words.encode([call, *arguments]))
            packet: Any = ()
            while isinstance(packet, tuple):  # what it had read by itself is older than the answer
                self._wait(worker, READ_WAIT_S if wait_s is None else wait_s)
                packet = words.decode(worker.line.recv(PACKET_BYTES_MAX))
            error, answer = packet
        except (
            OSError,
            ValueError,
            EOFError,
            TypeError,
        ):  # it died: of a signal, of memory, or it was cut
            at = max(worker.mark.seen()[1], DRIVER) if worker.open else DRIVER
            self.close()
            if self._trouble.note(at, BACK_OFF_S_MAX, hung=False) == 2:  # once may be chance
                whom = "opening the driver" if at == DRIVER else f"reading GPU {at}"
                say("agent", f"the reading process dies {whom}, which is left alone")
            raise Transient("reader_died", f"{call}: the reading process died") from None
        if error:
            raise words.decode_error(error)
        return answer

    def _wait(self, worker: Worker, wait_s: float) -> None:
        """Until there is an answer; each step gives the next GPU its own time."""
        poll = select.poll()
        poll.register(worker.line, select.POLLIN)
        before, until_s = worker.mark.seen(), time.monotonic() + wait_s
        if worker.each_s and before[1] != IDLE:  # a call was under way before it was asked
            until_s = before[2] + wait_s
        while not poll.poll(LOOK_S * 1000.0):
            now = worker.mark.seen()
            if now != before:
                before, until_s = now, time.monotonic() + wait_s
            elif time.monotonic() >= until_s:
                raise _Hung(max(now[1], DRIVER) if worker.open else DRIVER)

    # -- what went wrong -----------------------------------------------------------------

    def _left_out(self) -> tuple[int, ...]:
        resting = self._trouble.resting().keys()
        return tuple(sorted((resting | self._undead.at) - {DRIVER}))

    def _give_up(self, index: int) -> None:
        """Leaves a call that hangs, and the process that made it."""
        worker, self._worker = self._worker, None
        assert worker is not None
        worker.line.close()
        self._undead.kill(worker.process, index)
        worker.mark.close()
        if self._trouble.note(index, BACK_OFF_S_MAX, hung=True) == 1:
            whom = "the driver" if index == DRIVER else f"GPU {index}"
            say("agent", f"driver_unresponsive: {whom} does not answer, and is left alone")

    def _open_anew(self, error: DeviceError) -> None:
        """Where the whole driver was lost in any call, or the process fails for no reason told."""
        now_s = time.monotonic()
        if error.code in VOID or (error.code == "reader_failed" and now_s >= self._renew_s):
            self._renew_s = now_s + RENEW_S
            self.close()

    def _judged(
        self, readings: tuple[Reading, ...], left_out: tuple[int, ...]
    ) -> tuple[Reading, ...]:
        codes = {reading.error.code for reading in readings if reading.error}
        now_s = time.monotonic()
        told = {reading.uuid for reading in readings}
        missing = absent(self.gpus, readings, left_out)
        lost = [r for r in readings if isinstance(r.error, Gone)]
        if codes & VOID:
            self.close()
        elif not lost and len(missing) <= len(left_out):
            self._renew_s = now_s + RENEW_S
        elif now_s >= self._renew_s:
            self._renew_s = now_s + RENEW_S
            self.close()
        if not told <= {gpu.uuid for gpu in self.gpus}:
            self._describe_s = 0.0  # another GPU sits there now
        return readings + missing

    def _goes_on(
        self, each_s: float, left_out: tuple[int, ...], number: int, readings: tuple[Reading, ...]
    ) -> None:
        """It has just read, and now does so by itself."""
        assert self._worker is not None
        worker = self._worker
        worker.know(number, readings)
        worker.each_s, worker.left_out = each_s, left_out
        worker.heard_s, worker.sound = time.monotonic(), True

    # -- processes -----------------------------------------------------------------------

    def _spawn(self) -> None:
        if self._undead.are_many:
            raise unresponsive("the driver")
        try:
            self._worker = started(self._given)
        except OSError as error:  # of memory or descriptors; the device has nothing to do with it
            what = f"the reading process cannot be started: {error.strerror or error}"
            raise Transient("no_process", what) from None
