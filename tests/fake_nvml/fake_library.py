"""Compiles the fake library, once per version of its sources.

Apart from pytest, so that a script can use it: `from fake_library import build`.
"""

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / "build" / "fake_nvml"  # ignored by git
SOURCES = (
    "calls.c",
    "clocks.c",
    "events.c",
    "modes.c",
    "nvml.c",
    "physics.c",
    "power.c",
    "state.c",
)
HEADERS = ("calls.h", "nvml.h", "state.h")
FLAGS = ("-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")


class CompilerMissing(Exception):
    """There is no gcc, so there is no fake."""


def build(cache_dir: Path = CACHE, flags: tuple[str, ...] = ()) -> Path:
    """The folder with libnvidia-ml.so.1, compiled unless these very sources are there already.

    `flags` are appended to gcc's. Raises CompilerMissing.
    """
    stubs = _stubs()
    digest = hashlib.sha256(" ".join((*FLAGS, *flags)).encode() + stubs.encode())
    for name in SOURCES + HEADERS:
        digest.update((HERE / name).read_bytes())
    folder = cache_dir / digest.hexdigest()[:16]
    if (folder / "libnvidia-ml.so.1").exists():
        return folder
    compiler = shutil.which("gcc")
    if compiler is None:
        raise CompilerMissing("gcc is not installed: it compiles the fake NVML library")
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
        (Path(scratch) / "stubs.c").write_text(stubs)
        library = Path(scratch) / "libnvidia-ml.so.1"
        sources = [str(HERE / name) for name in SOURCES] + [str(Path(scratch) / "stubs.c")]
        subprocess.run(
            [compiler, *FLAGS, *flags, f"-I{HERE}", *sources, "-o", str(library), "-lm"], check=True
        )
        folder.mkdir(exist_ok=True)
        library.replace(folder / "libnvidia-ml.so.1")  # atomic: parallel builders agree
    return folder


def bound_symbols() -> frozenset[str]:
    """Every C function that the installed nvidia-ml-py looks up."""
    import pynvml  # noqa: PLC0415 - only its source is wanted, and only here

    source = Path(pynvml.__file__).read_text()
    return frozenset(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"', source))


def own_symbols() -> frozenset[str]:
    """Every C function that the sources here define."""
    found: set[str] = set()
    for name in SOURCES:
        text = (HERE / name).read_text()
        found |= set(re.findall(r"\b(nvml[A-Z]\w*)\(", text))
        found |= set(re.findall(r"[A-Z_]+\((nvml\w+)", text))
    return frozenset(found)


def _stubs() -> str:
    """C that answers "not supported" for each symbol the binding knows and we do not."""
    lines = [
        f"int {name}(const void *first);\n"
        f"int {name}(const void *first) {{ return stub_answer(__func__, first); }}"
        for name in sorted(bound_symbols() - own_symbols())
    ]
    return "\n".join(
        ['/* generated: symbols without an answer of their own */\n#include "calls.h"', *lines, ""]
    )
