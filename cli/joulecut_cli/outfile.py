"""Output files of flags: checked before the computation, replaced only when complete.

A plan may take minutes, so an unwritable path is refused first. A full disk must not leave half a
file in place of a good one.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joulecut_wire.errors import BadInput


def checked(flag: str, path: Path) -> Path:
    """The path. Raises BadInput where it cannot be written."""
    if not path.parent.is_dir():
        raise BadInput(flag, f"no folder {path.parent}", "a file in a folder that exists")
    try:
        if path.is_dir():
            raise BadInput(flag, f"{path} is a folder", "a file")
        there = path.exists()
        if not there:  # folders of the kernel look writable, and take no file
            target = Path(os.path.realpath(path))
            target.open("ab").close()
            target.unlink()
    except OSError as error:
        raise BadInput(flag, f"{path}: {error.strerror}", "a writable file") from None
    if there and not os.access(path, os.W_OK):
        raise BadInput(flag, f"{path} cannot be written", "a writable file")
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that replaces `path` when the block ends.

    An error leaves `path` as it was. Devices, pipes and files in a read-only folder are written in
    place. Raises OSError.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
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


def write(flag: str, path: Path, content: str | bytes) -> None:
    """The whole file of a flag. Raises BadInput."""
    try:
        with replacing(path) as spare:
            spare.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise BadInput(flag, f"{path}: {error.strerror}", "a writable file") from None
