"""Files that a user names: regular ones only, read up to a size."""

import os
import stat
from pathlib import Path

from joulecut_wire.errors import BadInput


def read(path: Path, bytes_max: int, allowed: str = "a readable file") -> bytes:
    """Content of a file, at most one byte more than `bytes_max`. Raises BadInput.

    A pipe or a device is refused: reading a pipe without a writer never returns.
    """
    try:
        # Without O_NONBLOCK opening such a pipe would wait as well.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as f:
            if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
                raise BadInput(str(path), "not a regular file", allowed)
            return f.read(bytes_max + 1)
    except BadInput:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        what = getattr(error, "strerror", None) or "cannot be read"
        raise BadInput(str(path), what, allowed) from None
