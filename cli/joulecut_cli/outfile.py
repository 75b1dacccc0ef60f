"""A file that a flag asks for: refused before anything is computed, whole once it is there.

A plan may take minutes; whoever waited for it must not learn at the end that its picture has
no place. And a disk that fills up must not leave half a file where a good one was.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joulecut_wire.errors import BadInput


def checked(flag: str, path: Path) -> Path:
    """Raises BadInput where nothing can be written under this name."""
    if not path.parent.is_dir():
        raise BadInput(flag, f"no folder {path.parent}", "a file in a folder that exists")
    if path.is_dir():
        raise BadInput(flag, f"{path} is a folder", "a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadInput(flag, f"{path} cannot be written", "a writable file")
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The name to write to; what is written there takes the place of `path` when the block ends.

    If it ends by an error, `path` is as it was. Devices and pipes, and files in a folder that
    takes no new ones, are written in place. Raises OSError.
    """
    target = path.resolve()  # a link goes on pointing where it did
    whole = not target.exists() or target.is_file()
    if not whole or not os.access(target.parent, os.W_OK):
        yield path
        return
    spare = target.with_name(f".joulecut-{os.getpid()}{target.suffix}")
    try:
        yield spare
        if target.exists():
            shutil.copymode(target, spare)
        spare.replace(target)
    finally:
        spare.unlink(missing_ok=True)
