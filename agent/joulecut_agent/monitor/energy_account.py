"""Energy of each job, updated by readings and by changes of owner, and kept across restarts.

Readings come from the sampler's thread, changes of owner from others.
"""

import contextlib
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from joulecut_agent.log import Warnings
from joulecut_agent.monitor.job_energy import Books, JobEnergy
from joulecut_agent.ports.reader import Reading

DRIVER = "/sys/module/nvidia"  # created at each load of the driver
SAVE_S = 5.0  # how much of the account a kill may cost; a change of job saves it at once
VERSION = 1
BYTES_MAX = 1_000_000  # 256 jobs with names of 253 bytes, twice, take 150,000


class EnergyFile:
    """The account on disk, from which the next agent continues.

    Times are in the monotonic clock of the boot `boot_id`. Replaced as a whole and not synced: it
    must outlive the agent, not the machine. A torn or foreign file is ignored; totals then begin at
    zero, as Prometheus expects of counters.
    """

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id

    def load(self, energy: JobEnergy, now_s: float, integrals: JobEnergy | None = None) -> None:
        """Never raises: without a valid file the books are unchanged."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            with self._path.open("rb") as file:
                checksum, _, body = file.read(BYTES_MAX).partition(b" ")
            if checksum == b"%08x" % zlib.crc32(body):
                version, boot_id, saved = json.loads(body)
                if version == VERSION:
                    same_boot = boot_id == self._boot_id
                    energy.restore(saved, now_s, same_boot=same_boot)
                    if integrals is not None:
                        integrals.restore(saved["integrals"], now_s, same_boot=same_boot)

    def save(self, saved: dict[str, Any]) -> None:
        """Raises OSError."""
        body = json.dumps([VERSION, self._boot_id, saved]).encode()
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(b"%08x %s" % (zlib.crc32(body), body))
        fresh.rename(self._path)


class EnergyAccount:
    """Thread-safe, except `add`, which is for the sampler's thread."""

    def __init__(self, file: EnergyFile, jobs: Callable[[], Mapping[str, tuple[str, ...]]]) -> None:
        """Continues from `file`. `jobs` returns the live jobs by GPU."""
        self._file = file
        self._jobs = jobs
        self._energy, self._of_integrals = JobEnergy(), JobEnergy()
        self._file.load(self._energy, time.monotonic(), self._of_integrals)
        # GPUs whose power is integrated, since their counter counts more than they: their energy
        # has books of its own.
        self.integrated: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._save_s = 0.0
        self._warnings = Warnings()
        self.load = ""  # the driver load of the next readings
        self.books, self.books_of_integrals = Books(), Books()

    def hold(self, uuid: str, jobs: Iterable[str], since_s: float) -> bool:
        """A GPU works for these jobs; whether that is a change, and a reading is due."""
        with self._lock:
            changed = self._of(uuid).hold(uuid, jobs, since_s)
        if changed:
            self._save_s = 0.0
        return changed

    def add(self, uuids: Iterable[str], readings: Iterable[Reading]) -> None:
        """Readings of one tick, of the GPUs that answered; the node has `uuids`."""
        now_s, jobs = time.monotonic(), self._jobs()
        seen = [(r.uuid, r.taken_at_s or now_s, r.snapshot) for r in readings if r.snapshot]
        counted = {u: (s, one.energy_j) for u, s, one in seen if one.energy_j is not None}
        integrals = {
            uuid: (at_s, one.energy_integrated_j)
            for uuid, at_s, one in seen
            if one.energy_integrated_j is not None
        }
        with self._lock:
            self._energy.loaded(self.load)
            for uuid in uuids:
                self._of(uuid).hold(uuid, jobs.get(uuid, ()), now_s)
            self._energy.add(counted, now_s)
            self._of_integrals.add(integrals, now_s)
            self.books, self.books_of_integrals = self._energy.books(), self._of_integrals.books()
        if now_s >= self._save_s:
            self.save()

    def save(self) -> None:
        """Never raises: a failure is logged once."""
        self._save_s = time.monotonic() + SAVE_S
        with self._lock:
            saved = self._energy.saved() | {"integrals": self._of_integrals.saved()}
        try:
            self._file.save(saved)
        except OSError as error:
            self._warnings.say(f"job energy is not kept: {error.strerror or error}")
        else:
            self._warnings.say("")

    def _of(self, uuid: str) -> JobEnergy:
        return self._of_integrals if uuid in self.integrated else self._energy


def driver_load() -> str:
    """An identifier of the driver load; "" if unknown."""
    try:
        seen = os.stat(DRIVER)
    except OSError:
        return ""
    return f"{seen.st_ino}.{seen.st_ctime_ns}"
