"""The audit trail: every command on this node, with who gave it, why, and what came of it.

One JSON line each in `audit.jsonl`, rotated by size. It never stands in a command's way: on
a full disk the line is lost, which is counted and said once, and the command goes on.
"""

import contextlib
import fcntl
import json
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecut_agent.log import say

FILE = "audit.jsonl"
MODE = 0o640
LINE_BYTES_MAX = 16_384  # sixteen GPUs with their numbers are a fifth of this
TEXT_LENGTH_MAX = 300  # of a reason somebody gave
REPEAT_S = 60.0  # a refusal that repeats itself must not wash the rest out of the files
REPEATS_MAX = 256
LOCK_TRIES, LOCK_WAIT_S = 20, 0.005  # for another process in the middle of a line

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """`bytes_max` a file, `files_max` files in all."""

    bytes_max: int = 1 << 20
    files_max: int = 8


class Trail:
    """Appends lines. Safe from every thread, and beside other processes."""

    def __init__(
        self, folder: Path, limits: Limits, lost: Callable[[], None] = lambda: None
    ) -> None:
        """`lost` is called for every line that could not be written."""
        self._path = folder / FILE
        self._limits = limits
        self._lost = lost
        self._lock = threading.Lock()
        self._said = ""
        self._repeats: dict[tuple[Any, ...], tuple[float, int]] = {}

    def write(self, entry: Entry, now_unix_s: float | None = None) -> None:
        """Never raises."""
        t = time.time() if now_unix_s is None else now_unix_s
        line = encode({"t": round(t, 3), **entry})
        with self._lock:
            try:
                self._append(line)
                self._said = ""
            except OSError as error:
                self._lost()
                if str(error) != self._said:
                    say("agent", f"audit trail {self._path}: {error.strerror}; a line is lost")
                self._said = str(error)

    def write_refusal(self, entry: Entry, *key: Any) -> None:
        """As `write`, but one line of a kind in REPEAT_S, with how many were left out before."""
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
                line = b"\n" + line  # what a full disk cut off stays a broken line of its own
            if os.write(file, line) != len(line):
                raise OSError(28, "no space left for the whole line")
        finally:
            if file >= 0:
                os.close(file)  # and with it goes the lock

    def _rotate(self) -> None:
        numbers = range(self._limits.files_max - 1, 0, -1)
        for number in numbers:
            older = self._path if number == 1 else _numbered(self._path, number - 1)
            with contextlib.suppress(FileNotFoundError):
                os.replace(older, _numbered(self._path, number))
        if self._limits.files_max == 1:
            self._path.unlink(missing_ok=True)


def encode(entry: Entry) -> bytes:
    """One line, whatever is in it, within LINE_BYTES_MAX."""
    cut = {key: _cut(value) for key, value in entry.items()}
    raw = json.dumps(cut, separators=(",", ":"), default=str).encode() + b"\n"
    if len(raw) > LINE_BYTES_MAX:
        few = {key: value for key, value in cut.items() if not isinstance(value, dict)}
        raw = json.dumps({**few, "cut": True}, separators=(",", ":"), default=str).encode() + b"\n"
    return raw


def decode(line: bytes) -> dict[str, Any] | None:
    """None for what is no line of ours."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    t = entry.get("t")
    if isinstance(t, bool) or not isinstance(t, int | float):
        return None
    if not (0 <= t < 1e11 and isinstance(entry.get("op"), str)):
        return None
    return entry


def read(folder: Path) -> Iterator[dict[str, Any] | None]:
    """Every line of every file, oldest first; None for one that is broken."""
    path = folder / FILE
    files = sorted(
        (int(number), found)
        for found in folder.glob(f"{FILE}.*")
        if (number := found.name.removeprefix(f"{FILE}.")).isascii() and number.isdigit()
    )
    for _, found in [*reversed(files), (0, path)]:
        try:
            with found.open("rb") as file:
                yield from _lines(file)
        except FileNotFoundError:
            continue


def _lines(file: Any) -> Iterator[dict[str, Any] | None]:
    while line := file.readline(LINE_BYTES_MAX + 1):
        whole = line.endswith(b"\n") and len(line) <= LINE_BYTES_MAX
        yield decode(line) if whole else None
        while not line.endswith(b"\n") and line:
            line = file.readline(LINE_BYTES_MAX + 1)  # the rest of one that nobody of us wrote


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value[:TEXT_LENGTH_MAX]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    if isinstance(value, Mapping):
        return {str(key)[:TEXT_LENGTH_MAX]: _cut(item) for key, item in value.items()}
    return value


def _open(path: Path) -> int:
    """Appending, made with MODE where it is not there; never through a link."""
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        file = os.open(path, flags)
    except FileNotFoundError:
        file = os.open(path, flags | os.O_CREAT, MODE)
        with contextlib.suppress(OSError):
            os.fchmod(file, MODE)  # whatever the umask
            if os.geteuid() == 0:  # a person in a hurry must not lock the agent out
                about = os.stat(path.parent)
                os.fchown(file, about.st_uid, about.st_gid)
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        os.close(file)
        raise OSError(22, "is no file of its own")
    return file


def _lock(file: int) -> bool:
    """Whether nobody else writes; a line alone is whole anyway, only turning files over is not."""
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
