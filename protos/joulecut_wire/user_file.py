"""Files that a user names: regular ones only, read up to a size."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from joulecut_wire.errors import BadInput

READABLE = "a readable file"
LINE_BYTES_MAX = 1 << 16  # tokens of clouds have some thousand


def read(path: Path, bytes_max: int, allowed: str = READABLE) -> bytes:
    """Content of a file of up to `bytes_max`. Raises BadInput."""
    with open_regular(path, allowed) as file:
        try:
            raw = file.read(bytes_max + 1)
        except OSError as error:
            raise _unreadable(path, error, allowed) from None
    if len(raw) > bytes_max:
        raise BadInput(str(path), "too large", f"at most {bytes_max} bytes")
    return raw


def line(path: Path) -> str:
    """The one line of a file: a password, a token or an address. Raises BadInput."""
    text = read(path, LINE_BYTES_MAX).decode(errors="replace").strip("\r\n")
    if not text.isprintable() or not text or "\ufffd" in text:
        raise BadInput(str(path), "not one printable line", "one line of text")
    return text


def open_regular(path: Path, allowed: str = READABLE) -> BinaryIO:
    """A file open for reading. Raises BadInput.

    A pipe or a device is refused: reading a pipe without a writer never returns.
    """
    try:
        file = open(path, "rb", opener=_unblocked)  # noqa: SIM115 - the caller closes it
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unreadable(path, error, allowed) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise BadInput(str(path), "not a regular file", allowed)
    return file


def _unblocked(name: str, flags: int) -> int:
    """Opens a pipe without a writer at once too."""
    return os.open(name, flags | os.O_NONBLOCK)


def _unreadable(path: Path, error: Exception, allowed: str) -> BadInput:
    return BadInput(str(path), getattr(error, "strerror", None) or "cannot be read", allowed)
