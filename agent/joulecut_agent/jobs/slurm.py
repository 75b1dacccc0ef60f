"""Owners of GPUs in Slurm, from the files that a prolog writes: one a GPU, one job id a line.

The same directory as for other exporters. Write permission there gives control of clocks, so a
world-writable directory is not read. The directory of the same name with `-comments` has the
comments of jobs, one file each, whose words may say what a job asks for.
"""

import os
import re
import stat
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from joulecut_agent.jobs.inventory import Inventory
from joulecut_agent.jobs.owner import JOB_CHARS_MAX, SLURM, Claims, Owner, printable
from joulecut_agent.log import log

FILES_MAX = 256  # 16 GPUs of 7 instances, and what else lies there
FILE_BYTES_MAX = 4096
FRESH_S = 1.0  # a file may change twice within one step of its time stamp
OWNERS_MAX = 64  # of one GPU
# Words of a comment, and the labels that they become; as annotations of a pod.
WORDS = {
    "joulecut.policy": "joulecut.dev/policy",
    "joulecut.max-slowdown": "joulecut.dev/max-slowdown",
}
_Stamp = tuple[int, int, int]


class MappingDirectory:
    """For one thread. `comments` is the directory of the jobs' comments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.comments = Comments(folder.with_name(f"{folder.name}-comments"))
        self._read: dict[str, tuple[_Stamp, tuple[str, ...]]] = {}
        self._logged = ""

    def poll(self, inventory: Inventory) -> Claims:
        """The owners by GPU; reads only files that have changed."""
        found: dict[str, list[Owner]] = {}
        for name, jobs in self._files().items():
            device = inventory.ordinal(name)
            if device is None:
                continue
            uuid, sliced = device
            owners = found.setdefault(uuid, [])
            room = OWNERS_MAX - len(owners)
            owners += [
                Owner(SLURM, job, sliced=sliced, labels={"slurm_job_id": job, **self.comments(job)})
                for job in jobs[:room]
            ]
        self.comments.keep({owner.job for owners in found.values() for owner in owners})
        return {uuid: tuple(owners) for uuid, owners in found.items()}

    def _files(self) -> Mapping[str, tuple[str, ...]]:
        try:
            if os.stat(self._folder).st_mode & stat.S_IWOTH:
                self._log_once(f"{self._folder}: world-writable, so it is not read")
                return {}
            with os.scandir(self._folder) as entries:
                names = sorted(entry.name for _, entry in zip(range(FILES_MAX), entries))  # noqa: B905
        except FileNotFoundError:  # no GPU job since boot
            names = []
        except OSError as error:
            self._log_once(f"{self._folder}: {error.strerror}")
            return {}
        kept = {}
        for name in names:
            if (found := self._file(name)) is not None:
                kept[name] = found
        self._read = kept
        return {name: jobs for name, (_, jobs) in kept.items()}

    def _file(self, name: str) -> tuple[_Stamp, tuple[str, ...]] | None:
        # No link out of the directory, and no pipe without a writer.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        path = self._folder / name
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
        lines = [line.strip() for line in raw.decode(errors="replace").splitlines()]
        return stamp, printable([line.split()[0] for line in lines if line])

    def _log_once(self, line: str) -> None:
        if line != self._logged:
            log("agent", f"Slurm mapping files: {line}", "warning")
        self._logged = line


class Comments:
    """What jobs ask for by `sbatch --comment`. A comment is read once: it is there before the
    mapping files are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Mapping[str, str]] = {}

    def __call__(self, job: str) -> Mapping[str, str]:
        """The labels that follow from a job's comment."""
        if job not in self._known:
            self._known[job] = words_of(self._read(job))
        return self._known[job]

    def keep(self, jobs: Collection[str]) -> None:
        """Forgets the others: an id comes again."""
        self._known = {job: words for job, words in self._known.items() if job in jobs}

    def _read(self, job: str) -> str:
        if not job.isdigit():
            return ""
        try:
            if os.stat(self._folder).st_mode & stat.S_IWOTH:
                return ""
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            fd = os.open(self._folder / job, flags)
        except OSError:
            return ""
        try:
            return os.read(fd, FILE_BYTES_MAX).decode(errors="replace")
        except OSError:
            return ""
        finally:
            os.close(fd)


def words_of(comment: str) -> dict[str, str]:
    """The WORDS of a comment, as labels; separated by spaces, commas or semicolons."""
    pairs = (word.partition("=") for word in re.split(r"[\s,;]+", comment))
    return {
        WORDS[key]: value[:JOB_CHARS_MAX]
        for key, _, value in pairs
        if key in WORDS and value and value.isprintable()
    }
