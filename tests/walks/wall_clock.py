"""Compiles the library that shifts a process's wall clock, once per version of its source."""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from fake_library import CACHE, FLAGS, CompilerMissing

SOURCE = Path(__file__).with_name("wall_clock.c")


def build_wall_clock() -> Path:
    """The library to preload. Raises CompilerMissing."""
    library = CACHE / f"wall-clock-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if library.exists():
        return library
    compiler = shutil.which("gcc")
    if compiler is None:
        raise CompilerMissing("gcc is not installed: it compiles the wall clock of a walk")
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        fresh = Path(scratch) / library.name
        subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(fresh), "-ldl"], check=True)
        fresh.replace(library)
    return library
