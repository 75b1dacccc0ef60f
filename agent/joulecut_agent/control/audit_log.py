"""Audit log: every command on this node, with caller, reason and outcome.

One JSON line each in `audit.jsonl`, rotated by size. It never blocks a command: on a full disk the
line is lost, which is counted and logged once.
"""

import contextlib
import fcntl
import json
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecut_agent.log import Warnings

FILE = "audit.jsonl"
MODE = 0o640
LINE_BYTES_MAX = 16_384  # sixteen GPUs take a fifth of it
TEXT_LENGTH_MAX = 300  # of a reason
REPEAT_S = 60.0  # a repeated refusal must not rotate everything else away
REPEATS_MAX = 256
LOCK_TRIES, LOCK_WAIT_S = 20, 0.005  # for another process that writes a line
LOGIN_UNSET = 2**32 - 1  # audit_login_uid of a process that no login started

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """`bytes_max` of one file, `files_max` files in all."""

    bytes_max: int = 1 << 20
    files_max: int = 8


class AuditLog:
    """Appends lines. Thread-safe, and safe beside other processes."""

    def __init__(
        self, folder: Path, limits: AuditLimits, line_lost: Callable[[], None] = lambda: None
    ) -> None:
        """`line_lost` is called for every line that cannot be written."""
        self._path = folder / FILE
        self._limits = limits
        self._line_lost = line_lost
        self._lock = threading.Lock()
        self._warnings = Warnings()
        self._repeats: dict[tuple[Any, ...], tuple[float, int]] = {}

    def write(self, entry: Entry, now_unix_s: float | None = None) -> None:
        """Never raises."""
        t = time.time() if now_unix_s is None else now_unix_s
        line = encode({"t": round(t, 3), **entry})
        with self._lock:
            try:
                self._append(line)
            except OSError as error:
                self._line_lost()
                what = f"audit log {self._path}: {error.strerror}; a line is lost"
                self._warnings.say(what, "error")
            else:
                self._warnings.say("")

    def write_refusal(self, entry: Entry, *key: Any) -> None:
        """As `write`, but one line per `key` in REPEAT_S, with the number left out before."""
        now_s = time.monotonic()
        with self._lock:
            since_s, left_out = self._repeats.get(key, (-math.inf, 0))
            if now_s - since_s < REPEAT_S:
                self._repeats[key] = (since_s, left_out + 1)
                return
            if len(self._repeats) >= REPEATS_MAX:
                self._repeats.pop(next(iter(self._repeats)))
            self._repeats.pop(key, None)
            self._repeats[key] = (now_s, 0)
        self.write({**entry, "repeated": left_out} if left_out else entry)

    def _append(self, line: bytes) -> None:
        file = _open(self._path)
        try:
            locked = _lock(file)
            size = os.fstat(file).st_size
            if locked and size and size + len(line) > self._limits.bytes_max:
                self._rotate()
                os.close(file)
                file = -1
                file = _open(self._path)
                size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                line = b"\n" + line  # a line cut off by a full disk stays apart
            if os.write(file, line) != len(line):
                raise OSError(28, "no space left for the whole line")
        finally:
            if file >= 0:
                os.close(file)  # releases the lock too

    def _rotate(self) -> None:
        numbers = range(self._limits.files_max - 1, 0, -1)
        for number in numbers:
            older = self._path if number == 1 else _numbered(self._path, number - 1)
            with contextlib.suppress(FileNotFoundError):
                os.replace(older, _numbered(self._path, number))
        if self._limits.files_max == 1:
            self._path.unlink(missing_ok=True)


def encode(entry: Entry) -> bytes:
    """One line, of at most LINE_BYTES_MAX."""
    cut = {key: _cut(value) for key, value in entry.items()}
    raw = json.dumps(cut, separators=(",", ":"), default=str).encode() + b"\n"
    if len(raw) > LINE_BYTES_MAX:
        few = {key: value for key, value in cut.items() if not isinstance(value, dict)}
        raw = json.dumps({**few, "cut": True}, separators=(",", ":"), default=str).encode() + b"\n"
    return raw


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value[:TEXT_LENGTH_MAX]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # not representable in JSON
    if isinstance(value, Mapping):
        return {str(key)[:TEXT_LENGTH_MAX]: _cut(item) for key, item in value.items()}
    return value


def _open(path: Path) -> int:
    """Opens for appending, creates with MODE; never follows a link."""
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        file = os.open(path, flags)
    except FileNotFoundError:
        file = os.open(path, flags | os.O_CREAT, MODE)
        with contextlib.suppress(OSError):
            os.fchmod(file, MODE)  # despite the umask
            if os.geteuid() == 0:  # a file of root would lock the agent out
                about = os.stat(path.parent)
                os.fchown(file, about.st_uid, about.st_gid)
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        os.close(file)
        raise OSError(22, "not a regular file of its own")
    return file


def _lock(file: int) -> bool:
    """Whether the lock was taken. Needed to rotate; a single append is atomic."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(LOCK_WAIT_S)
        else:
            return True
    return False


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def record_command(
    folder: Path, limits: AuditLimits, op: str, act: Callable[[], int], **asked: Any
) -> int:
    """Runs a command given on the node itself, and logs it with its outcome."""
    audit_log = AuditLog(folder, limits)
    entry = {"op": op, "who": _local_user(), "via": "node", **asked, "why": "on the node itself"}
    try:
        status = act()
    except BaseException as error:
        audit_log.write(
            {**entry, "result": "failed", "refused": str(error) or type(error).__name__}
        )
        raise
    audit_log.write({**entry, "result": "failed" if status else "accepted"})
    return status


def _local_user() -> str:
    """The user id, and the login it came from (before sudo)."""
    uid = os.getuid()
    try:
        login = int(Path("/proc/self/loginuid").read_text())
    except (OSError, ValueError):
        login = LOGIN_UNSET
    return f"local uid {uid}" if login in {uid, LOGIN_UNSET} else f"local uid {uid}, login {login}"
