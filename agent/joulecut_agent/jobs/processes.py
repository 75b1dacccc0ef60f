"""Pod, Slurm job or systemd unit of a process, from the kernel.

The control group is trusted; the environment is written by the process itself and is at most a
hint. Users name control groups below their own freely, so only the outermost levels count, where
users cannot write.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

TEXT_BYTES_MAX = 1 << 16  # of a control group or an environment; more is left unread
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"  # the last: static pods
_POD = re.compile(rf"(?:[a-z0-9-]*kubepods[a-z0-9-]*-)?pod({_UID})(?:\.slice)?")
_KUBEPODS = re.compile(r"(kubelet|kubelet\.slice|kubepods|[a-z0-9-]*kubepods[a-z0-9-]*\.slice)")
_SLURM_JOB = re.compile(r"job_(\d{1,12})")
_SLURM_PARENT = re.compile(r"(?:[A-Za-z0-9.-]+_)?slurmstepd\.scope")
_SLURM_V1 = re.compile(r"slurm(?:_[A-Za-z0-9.-]+)?")


@dataclass(frozen=True, slots=True)
class Belonging:
    """Where a process belongs; `unit` is its systemd service, if any."""

    uid: int = -1
    pod_uid: str = ""
    slurm_job: str = ""
    unit: str = ""
    cgroup: str = ""


class Processes:
    """The processes under one `/proc`."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc

    def belonging(self, pid: int) -> Belonging | None:
        """None without a visible process."""
        if pid <= 0:
            return None
        try:
            uid = (self._proc / str(pid)).stat().st_uid
        except OSError:
            return None
        return read_cgroup(self._text(pid, "cgroup"), uid)

    def stamp(self, pid: int) -> tuple[int, int]:
        """Changes when another process has this pid; (0, 0) without one."""
        try:
            seen = (self._proc / str(pid)).stat()
        except OSError:
            return (0, 0)
        return (seen.st_ino, seen.st_ctime_ns)

    def command(self, pid: int) -> str:
        return self._text(pid, "comm").strip()

    def variable(self, pid: int, name: str) -> str:
        """A variable of a process's environment, "" if it cannot be read."""
        for word in self._text(pid, "environ").split("\0"):
            key, _, value = word.partition("=")
            if key == name:
                return value
        return ""

    def _text(self, pid: int, file: str) -> str:
        try:
            fd = os.open(self._proc / str(pid) / file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return ""
        try:
            return os.read(fd, TEXT_BYTES_MAX).decode(errors="replace")
        except OSError:
            return ""
        finally:
            os.close(fd)


def read_cgroup(text: str, uid: int = -1) -> Belonging:
    """Parses `/proc/PID/cgroup` of either version."""
    pod = job = unit = path = ""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        parts, relative = _parts(place)
        pod = pod or _pod_of(parts, relative)
        job = job or _slurm_of(parts)
        if controllers in {"", "name=systemd"}:
            unit = unit or _unit_of(parts)
            path = path or place
    return Belonging(uid, pod, job, unit, path)


def _parts(place: str) -> tuple[list[str], bool]:
    """Path components below the visible root, and whether that is inside another."""
    parts = [part for part in place.split("/") if part]
    relative = bool(parts) and parts[0] == ".."
    while parts and parts[0] == "..":
        parts = parts[1:]
    return parts, relative


def _pod_of(parts: list[str], relative: bool) -> str:
    if not parts or not (_KUBEPODS.fullmatch(parts[0]) or (relative and _POD.fullmatch(parts[0]))):
        return ""
    for part in parts[:4]:  # kubelet, kubepods, class, pod
        if match := _POD.fullmatch(part):
            return match[1].replace("_", "-")
    return ""


def _slurm_of(parts: list[str]) -> str:
    if parts and parts[0] == "system.slice":
        parts = parts[1:]
    if len(parts) > 1 and _SLURM_PARENT.fullmatch(parts[0]):
        match = _SLURM_JOB.fullmatch(parts[1])
    elif len(parts) > 2 and _SLURM_V1.fullmatch(parts[0]) and parts[1].startswith("uid_"):
        match = _SLURM_JOB.fullmatch(parts[2])
    else:
        return ""
    return match[1] if match else ""


def _unit_of(parts: list[str]) -> str:
    """The outermost service; whatever runs below belongs to it."""
    if parts and parts[0] == "system.slice" and len(parts) > 1 and parts[1].endswith(".service"):
        return parts[1].removesuffix(".service")
    return ""
