"""Owners of GPUs in Slurm, from the files that a prolog writes: one a GPU, one job id a line.

The same directory as for other exporters. Write permission there gives control of clocks, so a
world-writable directory is not read. The directory of the same name with `-jobs` has one record a
job (`joulecut_wire.slurm`).
"""

import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from joulecut_agent.jobs.inventory import Inventory
from joulecut_agent.jobs.owner import SLURM, Claims, Owner, printable
from joulecut_agent.log import Warnings
from joulecut_wire import slurm

FILES_MAX = 256  # 16 GPUs of 7 instances, and what else lies there
FILE_BYTES_MAX = 8192  # an older prolog wrote a comment of 4096 letters beside the other lines
FRESH_S = 1.0  # a file may change twice within one step of its time stamp
OWNERS_MAX = 64  # of one GPU
_Stamp = tuple[int, int, int]


class MappingDirectory:
    """For one thread."""

    def __init__(self, folder: Path) -> None:
        self._gpus = _Folder(folder)
        self._records = _Folder(folder.with_name(f"{folder.name}-jobs"))
        self._folder = folder
        self._warnings = Warnings()

    def poll(self, inventory: Inventory) -> Claims:
        """The owners by GPU; reads only files that have changed."""
        found: dict[str, list[Owner]] = {}
        unknown: list[str] = []
        files = self._gpus.read()
        records = self._records.read()  # later: a record is there before its mapping files
        for name, text in files.items():
            device = inventory.ordinal(name)
            if device is None:
                unknown += [name] * name[0].isdigit()
                continue
            uuid, sliced = device
            owners = found.setdefault(uuid, [])
            lines = [line.split() for line in text.splitlines()]
            jobs = printable([words[0] for words in lines if words])
            for job in jobs[: OWNERS_MAX - len(owners)]:
                labels = slurm.of_record(job, records.get(job, "")).labels()
                owners.append(Owner(SLURM, job, sliced=sliced, labels=labels))
        names = ", ".join(unknown[:4])
        what = "no GPU of this node has that number; allowed: N, N.INSTANCE, N-INSTANCE, UUID"
        self._warnings.say(f"Slurm mapping files: {self._folder}: {names}: {what}" if names else "")
        return {uuid: tuple(owners) for uuid, owners in found.items()}


class _Folder:
    """The small files of one directory that root alone writes, by name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[str, tuple[_Stamp, str]] = {}
        self._warnings = Warnings()

    def read(self) -> Mapping[str, str]:
        """Their text; opens only files that have changed."""
        try:
            if os.stat(self._path).st_mode & stat.S_IWOTH:
                self._warnings.say(f"Slurm mapping files: {self._path}: world-writable: not read")
                return {}
            with os.scandir(self._path) as entries:
                names = sorted(entry.name for _, entry in zip(range(FILES_MAX), entries))  # noqa: B905
        except FileNotFoundError:  # no GPU job since boot
            names = []
        except OSError as error:
            self._warnings.say(f"Slurm mapping files: {self._path}: {error.strerror}")
            return {}
        self._read = {name: one for name in names if (one := self._file(name)) is not None}
        return {name: text for name, (_, text) in self._read.items()}

    def _file(self, name: str) -> tuple[_Stamp, str] | None:
        # No link out of the directory, and no pipe without a writer.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        path = self._path / name
        try:
            seen = path.lstat()
            stamp = (seen.st_mtime_ns, seen.st_size, seen.st_ino)
            known = self._read.get(name)
            fresh = abs(time.time() - seen.st_mtime) < FRESH_S
            if known is not None and known[0] == stamp and not fresh:
                return known
            if not stat.S_ISREG(seen.st_mode):
                return None
            fd = os.open(path, flags)
        except (OSError, ValueError):
            return None
        try:
            raw = os.read(fd, FILE_BYTES_MAX)
        except OSError:
            return None
        finally:
            os.close(fd)
        return stamp, raw.decode(errors="replace")
