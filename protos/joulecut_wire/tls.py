"""Certificate files that may be rotated at runtime; a half-written one is never used.

Changed files are read as a whole and validated before use. Until they are valid, the previous
certificates stay in force.
"""

import os
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from joulecut_wire import user_file
from joulecut_wire.errors import BadInput

FILE_BYTES_MAX = 1 << 20  # every public root together is a fifth of this
POLL_S = 1.0  # between two readings of the files: a burst of connections costs one
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Own certificate chain and key, and the CA certificate of the peers. All PEM."""

    cert: Path
    key: Path
    ca: Path

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.cert, self.key, self.ca)


@dataclass(frozen=True, slots=True)
class Pem:
    """Validated contents of `TlsFiles`."""

    cert: bytes
    key: bytes
    ca: bytes
    expires_unix_s: float


def read(files: TlsFiles) -> Pem:
    """Raises BadInput with the file that is missing, broken, or of another key."""
    cert, key, ca = contents(files.cert), contents(files.key), contents(files.ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_chain(context, (files.cert, cert), (files.key, key))
    load_ca(context, files.ca, ca)
    return Pem(cert, key, ca, expires_unix_s(files.cert, cert))


def contents(path: Path) -> bytes:
    """Raises BadInput for a file that cannot be read or is too large."""
    return user_file.read(path, FILE_BYTES_MAX)


def load_chain(context: ssl.SSLContext, cert: tuple[Path, bytes], key: tuple[Path, bytes]) -> None:
    """Loads bytes that were read, not the files, which may change meanwhile. Raises BadInput."""
    with _held(cert[1]) as chain, _held(key[1]) as secret:
        names = (f"/proc/self/fd/{chain.fileno()}", f"/proc/self/fd/{secret.fileno()}")
        try:
            # The library takes file names only; without a password it would prompt for one.
            context.load_cert_chain(*names, password=lambda: b"")
        except (ssl.SSLError, OSError, ValueError) as error:
            if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
                what = f"is not the key of {cert[0]}"
                raise BadInput(str(key[0]), what, "the key of that certificate") from None
            broken = key if _has_certificate(cert[1]) else cert
            allowed = "a certificate chain and its key, both PEM, the key without a password"
            raise BadInput(str(broken[0]), "does not load", allowed) from None


def load_ca(context: ssl.SSLContext, path: Path, raw: bytes) -> None:
    """Raises BadInput."""
    try:
        context.load_verify_locations(cadata=raw.decode("ascii", errors="replace"))
    except (ssl.SSLError, ValueError):
        raise BadInput(str(path), "has no valid certificate", "PEM certificates") from None


def expires_unix_s(path: Path, raw: bytes) -> float:
    """Unix time at which the first certificate of a chain ends. Raises BadInput."""
    try:
        with _held(raw) as file:
            # The only parser of certificates in the standard library that needs no connection.
            about = ssl._ssl._test_decode_cert(  # type: ignore[attr-defined]
                f"/proc/self/fd/{file.fileno()}"
            )
        return float(ssl.cert_time_to_seconds(about["notAfter"]))
    except (OSError, ValueError, KeyError):
        allowed = "a PEM certificate with an end of its validity"
        raise BadInput(str(path), "has no certificate that can be read", allowed) from None


class Rotating(Generic[T]):
    """The last valid value read from files that may change. Thread-safe."""

    def __init__(
        self,
        read_all: Callable[[], tuple[T, Sequence[Path]]],
        complain: Callable[[str], None],
        poll_s: float = POLL_S,
    ) -> None:
        """`read_all` returns the value and its files, or raises BadInput, also here."""
        self._read_all = read_all
        self._complain = complain
        self._poll_s = poll_s
        self._lock = threading.Lock()
        self._value, self._paths = read_all()
        self._marks = _marks(self._paths)
        self._looked_s = time.monotonic()
        self._complaint = ""
        self.version = 0  # grows with every new value

    def current(self) -> T:
        """The newest valid value; checks the files at most every `look_s`."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._looked_s >= self._poll_s:
                self._looked_s = now_s
                self._look()
            return self._value

    def peek(self) -> T:
        """The value in force, without a check; also during one."""
        return self._value

    def _look(self) -> None:
        paths = self._paths
        marks = _marks(paths)  # before reading: a change during it is read again
        if marks == self._marks and not self._complaint:
            return
        try:
            self._value, self._paths = self._read_all()
        except BadInput as error:
            if str(error) != self._complaint:
                self._complain(f"{error}; the previous files stay in force")
            self._complaint = str(error)
            self._marks = marks
            return
        self._marks = marks if self._paths == paths else _marks(self._paths)
        self._complain(f"reloaded: {', '.join(path.name for path in self._paths)}")
        self._complaint = ""
        self.version += 1


def rotating(files: TlsFiles, complain: Callable[[str], None]) -> Rotating[Pem]:
    """Raises BadInput where the files are not valid now."""
    return Rotating(lambda: (read(files), files.paths), complain)


def _marks(paths: Sequence[Path]) -> tuple[object, ...]:
    marks: list[object] = []
    for path in paths:
        try:
            about = os.stat(path)
            marks.append((about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns))
        except (OSError, ValueError):
            marks.append(None)
    return tuple(marks)


def _has_certificate(raw: bytes) -> bool:
    try:
        load_ca(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), Path(), raw)
    except BadInput:
        return False
    return True


def _held(raw: bytes) -> BinaryIO:
    """An anonymous file: a key must not be on disk."""
    file = os.fdopen(os.memfd_create("pem", os.MFD_CLOEXEC), "w+b")
    file.write(raw)
    file.flush()
    file.seek(0)
    return file
