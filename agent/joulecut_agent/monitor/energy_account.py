"""Whose energy it was, kept as readings and changes of hands come in, and not lost with a process.

Readings come from the thread that samples, and jobs come and go in others: both meet here.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from joulecut_agent.log import say
from joulecut_agent.monitor.energy_file import EnergyFile
from joulecut_agent.monitor.job_energy import Books, JobEnergy
from joulecut_agent.ports.reader import Reading

DRIVER = "/sys/module/nvidia"  # made anew each time the driver is loaded
SAVE_S = 5.0  # how much of the books a kill may cost; a change of job saves them at once


class EnergyAccount:
    """From any thread, but for `add`, which is for the one that reads."""

    def __init__(self, file: EnergyFile, jobs: Callable[[], Mapping[str, tuple[str, ...]]]) -> None:
        """Goes on with what `file` keeps. `jobs` tells the live jobs of each GPU that has some."""
        self._file = file
        self._jobs = jobs
        self._energy = JobEnergy()
        self._file.load(self._energy, time.monotonic())
        self._lock = threading.Lock()
        self._save_s = 0.0
        self._said = ""
        self.load = ""  # of the driver, when the next readings are taken
        self.books = Books()  # what is known does not go stale

    def hold(self, uuid: str, jobs: Iterable[str], since_s: float) -> bool:
        """A GPU works for these jobs; whether that is news, and a reading is due."""
        with self._lock:
            changed = self._energy.hold(uuid, jobs, since_s)
        if changed:
            self._save_s = 0.0
        return changed

    def add(self, uuids: Iterable[str], ticks: list[list[Reading]]) -> None:
        """Readings of the GPUs that answered, tick by tick, of the node that has `uuids`."""
        now_s, jobs = time.monotonic(), self._jobs()
        with self._lock:
            self._energy.loaded(self.load)
            for uuid in uuids:
                self._energy.hold(uuid, jobs.get(uuid, ()), now_s)
            for readings in ticks:
                counters_j = {
                    reading.uuid: (reading.taken_at_s or now_s, reading.snapshot.energy_j)
                    for reading in readings
                    if reading.snapshot is not None and reading.snapshot.energy_j is not None
                }
                self._energy.add(counters_j, now_s)
            self.books = self._energy.books()
        if now_s >= self._save_s:
            self.save()

    def save(self) -> None:
        """Never raises: what cannot be kept is said once, however often that happens in a row."""
        self._save_s = time.monotonic() + SAVE_S
        with self._lock:
            saved = self._energy.saved()
        line = ""
        try:
            self._file.save(saved)
        except OSError as error:
            line = f"job energy is not kept: {error.strerror or error}"
        if line and line != self._said:
            say("agent", line)
        self._said = line


def driver_load() -> str:
    """What differs from one load of the driver to the next; "" where it cannot be told."""
    try:
        seen = os.stat(DRIVER)
    except OSError:
        return ""
    return f"{seen.st_ino}.{seen.st_ctime_ns}"
