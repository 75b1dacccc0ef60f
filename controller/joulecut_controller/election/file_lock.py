"""The leader lock of controllers that share one SQLite file: a lock on a file beside it.

The kernel releases it when the process ends, however it ends, and not before: a controller
that was only stopped keeps it. Works on one machine only, not on a network file system.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from joulecut_wire.errors import Unavailable

SUFFIX = ".leader"
NAME_BYTES_MAX = 200


class FileLock:
    """Implements `leader_lock.LeaderLock`. `name` is written into the file, for other
    controllers and for people.
    """

    def __init__(self, store: Path, name: str) -> None:
        self._path = store.with_name(store.name + SUFFIX)
        self._name = name
        self._file: int | None = None
        self._holder = ""

    number = 0

    def join(self) -> bool:
        return False

    @property
    def holder(self) -> str:
        return self._holder

    @property
    def lost(self) -> bool:
        return self._file is None

    def acquire(self) -> bool:
        self.release()
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Unavailable(f"leader lock {self._path}: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._holder = os.read(file, NAME_BYTES_MAX).decode("utf-8", "replace").strip()
            os.close(file)
            if isinstance(error, BlockingIOError):
                return False
            raise Unavailable(f"leader lock {self._path}: {error.strerror}") from None
        self._file = file
        with contextlib.suppress(OSError):  # a full disk: the lock is what counts
            os.ftruncate(file, 0)
            os.pwrite(file, self._name.encode()[:NAME_BYTES_MAX] + b"\n", 0)
        return self.check()

    def check(self) -> bool:
        """False where the file was deleted: another controller could then lock a new one."""
        if self._file is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except OSError:
            return False

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
