"""The books of job energy on disk, so that an agent goes on where another one stopped.

Replaced whole, and not forced to the disk: it has to outlive the agent, not the machine,
whose next boot has counters of its own. What is torn or foreign is passed over: totals then
begin anew, as Prometheus expects of counters.
"""

import contextlib
import json
import zlib
from pathlib import Path
from typing import Any

from joulecut_agent.monitor.job_energy import JobEnergy

VERSION = 1
BYTES_MAX = 1_000_000  # 256 jobs with names of 253 bytes, twice, take 150,000


class EnergyFile:
    """`boot_id` names this boot, whose monotonic clock the books are in."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id

    def load(self, energy: JobEnergy, now_s: float) -> None:
        """Never raises: without a file that can be read `energy` stays as it is."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            with self._path.open("rb") as file:
                checksum, _, body = file.read(BYTES_MAX).partition(b" ")
            if checksum == b"%08x" % zlib.crc32(body):
                version, boot_id, saved = json.loads(body)
                if version == VERSION:
                    energy.restore(saved, now_s, same_boot=boot_id == self._boot_id)

    def save(self, saved: dict[str, Any]) -> None:
        """Raises OSError."""
        body = json.dumps([VERSION, self._boot_id, saved]).encode()
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(b"%08x %s" % (zlib.crc32(body), body))
        fresh.rename(self._path)
