"""A node of fake GPUs for tests: builds the library once, and steers what it shows.

`pythonpath = ["tests/fake_nvml"]` in the pytest options lets any test say

    from fixture import FakeNvml

    def test_a_daemon(fake_nvml: FakeNvml) -> None:
        fake_nvml.set_load(0, 1.0)
        process = subprocess.Popen([...], env=fake_nvml.environment())
        ...
        assert fake_nvml.locks()[0] == (210, 1005)

where the folder's conftest.py has `from fixture import fake_nvml` (8 A100, a state of each test's
own); or make a `FakeNvml(tmp_path / "gpus.state", gpus=4, model="a40")` in the test itself.
NVML is loaded once
a process, so a client of the fake is a child process with `environment()`.
"""

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import layout

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / "build" / "fake_nvml"  # ignored by git
SOURCES = ("nvml.c", "physics.c", "state.c")
HEADERS = ("nvml.h", "state.h")
FLAGS = ("-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")
FOREVER = -1
EVERY_GPU = -1
GPU_IS_LOST = 15


_PROLOGUE = """
import json, time
import pynvml as n

def code(function, *arguments):
    try:
        function(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0

n.nvmlInit()
"""
_EPILOGUE = "\nprint(json.dumps(answer))\n"


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
        subprocess.run([compiler, *FLAGS, *flags, *sources, "-o", str(library), "-lm"], check=True)
        folder.mkdir(exist_ok=True)
        library.replace(folder / "libnvidia-ml.so.1")  # atomic: parallel builders agree
    return folder


def _stubs() -> str:
    """C that answers "not supported" for each symbol the binding knows and nvml.c does not."""
    import pynvml  # noqa: PLC0415 - only its source is wanted, and only here

    bound = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"', Path(pynvml.__file__).read_text()))
    own = set(re.findall(r"\b(nvml[A-Z]\w*)\(", (HERE / "nvml.c").read_text()))
    own |= set(re.findall(r"[A-Z_]+\((nvml\w+)", (HERE / "nvml.c").read_text()))
    lines = [f"int {name}(void);\nint {name}(void) {{ return 3; }}" for name in sorted(bound - own)]
    return "\n".join(["/* generated: symbols without an answer of their own */", *lines, ""])


@dataclass(frozen=True)
class Write:
    """One setter call, as the library recorded it. `code` is NVML's answer."""

    at_s: float
    pid: int
    gpu: int
    function: str
    arguments: tuple[int, int]
    code: int


class FakeNvml:
    """A node of fake GPUs: a state file, and the library that shows it to NVML's clients.

    Makes a fresh state; with `gpus=None` takes up the one that is there. Raises CompilerMissing.
    """

    def __init__(self, path: Path, gpus: int | None = 8, model: str = "a100") -> None:
        self.library_dir = build()
        self.path = path
        if gpus is not None:
            layout.create(path, gpus, layout.MODELS[model])
        self._shared = layout.Shared(path)
        with self._shared.turn() as state:
            self.uuids = tuple(gpu.uuid.decode() for gpu in state.gpus[: state.gpu_count])
        # The library's own physics, on our mapping: a change must not rewrite the past.
        self._physics = ctypes.CDLL(str(self.library_dir / "libnvidia-ml.so.1"))
        self._physics.physics_advance.argtypes = [ctypes.POINTER(layout.Gpu), ctypes.c_uint64]

    def environment(self) -> dict[str, str]:
        """This process's environment, plus what makes a child load the fake."""
        found = os.environ.get("LD_LIBRARY_PATH", "")
        return {
            **os.environ,
            "LD_LIBRARY_PATH": f"{self.library_dir}:{found}" if found else str(self.library_dir),
            "JOULECUT_FAKE_NVML_STATE": str(self.path),
        }

    def ask(self, script: str) -> Any:
        """Runs a script in a child where `n` is pynvml, initialised; what it left in `answer`.

        `code(f, *args)` there is the number of the NVMLError that f raises, or 0.
        """
        done = subprocess.run(
            [sys.executable, "-c", _PROLOGUE + script + _EPILOGUE],
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def set_load(self, gpu: int, ratio: float) -> None:
        """How busy a GPU is, 0 to 1; from now on."""
        self._change(gpu, load=ratio)

    def set_memory_used(self, gpu: int, used_bytes: int) -> None:
        self._change(gpu, memory_used_bytes=used_bytes)

    def set_mig(self, gpu: int, enabled: bool) -> None:
        self._change(gpu, mig_enabled=int(enabled))

    def set_out_of_band_limit(self, gpu: int, watts: float) -> None:
        """A limit from the management controller; 0 takes it away."""
        self._change(gpu, limit_out_of_band_mw=int(watts * 1000))

    def set_latency(self, gpu: int, seconds: float) -> None:
        """How long after a lock is accepted the clock follows."""
        self._change(gpu, set_latency_ns=int(seconds * 1e9))

    def set_permission(self, allowed: bool | None) -> None:
        """True: everybody may write; False: nobody; None: who has CAP_SYS_ADMIN."""
        with self._shared.turn() as state:
            state.permission = {True: 0, False: 1, None: 2}[allowed]

    def set_error(
        self,
        function: str,
        code: int,
        *,
        gpu: int = EVERY_GPU,
        skip: int = 0,
        count: int = FOREVER,
        delay_s: float = 0.0,
    ) -> None:
        """Makes a C function (or "field:186", or "*" for all) answer `code` after `skip` good
        calls, `count` times. `delay_s` stalls the call first; a negative one hangs it.
        """
        delay_ms = -1 if delay_s < 0 else round(delay_s * 1000)
        with self._shared.turn() as state:
            free = next((hook for hook in state.hooks if not hook.function), None)
            if free is None:
                raise ValueError(f"all {layout.HOOKS_MAX} hooks are in use")
            free.gpu, free.code, free.skip, free.count = gpu, code, skip, count
            free.delay_ms = delay_ms
            free.function = function.encode()

    def lose(self, gpu: int) -> None:
        """The GPU falls off the bus: each call about it answers GPU_IS_LOST."""
        self.set_error("*", GPU_IS_LOST, gpu=gpu)

    def clear_errors(self) -> None:
        with self._shared.turn() as state:
            for hook in state.hooks:
                hook.function = b""

    def reload_driver(self) -> None:
        """Locks and limits return to default, energy counters to zero."""
        with self._shared.turn() as state:
            now_ns = time.monotonic_ns() + state.clock_skew_ns
            for gpu in state.gpus[: state.gpu_count]:
                layout.load_driver(gpu, now_ns)

    def advance(self, seconds: float) -> None:
        """Lets time pass for the GPUs without waiting for it."""
        with self._shared.turn() as state:
            state.clock_skew_ns += int(seconds * 1e9)

    def locks(self) -> tuple[tuple[int, int] | None, ...]:
        """Each GPU's locked range in MHz as last written; None where it is not locked."""
        with self._shared.turn() as state:
            return tuple(
                (gpu.lock.min_mhz, gpu.lock.max_mhz) if gpu.lock.max_mhz else None
                for gpu in state.gpus[: state.gpu_count]
            )

    def memory_locks(self) -> tuple[tuple[int, int] | None, ...]:
        with self._shared.turn() as state:
            return tuple(
                (gpu.memory_lock.min_mhz, gpu.memory_lock.max_mhz)
                if gpu.memory_lock.max_mhz
                else None
                for gpu in state.gpus[: state.gpu_count]
            )

    def writes(self) -> tuple[Write, ...]:
        """Every setter call so far, oldest first, refused ones too."""
        with self._shared.turn() as state:
            if state.writes_total > layout.WRITES_MAX:
                raise ValueError(f"more than {layout.WRITES_MAX} writes: the first ones are lost")
            return tuple(
                Write(
                    record.at_ns / 1e9,
                    record.pid,
                    record.gpu,
                    record.function.decode(),
                    (record.arguments[0], record.arguments[1]),
                    record.code,
                )
                for record in state.writes[: state.writes_total]
            )

    def _change(self, gpu: int, **values: float) -> None:
        """Sets fields of a GPU, having let its counters catch up under the old ones."""
        with self._shared.turn() as state:
            if not 0 <= gpu < state.gpu_count:
                raise ValueError(f"GPU {gpu}: this node has {state.gpu_count}")
            now_ns = time.monotonic_ns() + state.clock_skew_ns
            self._physics.physics_advance(ctypes.byref(state.gpus[gpu]), now_ns)
            for name, value in values.items():
                setattr(state.gpus[gpu], name, value)


@pytest.fixture
def fake_nvml(tmp_path: Path) -> FakeNvml:
    """Eight fake A100 of this test's own; skips where there is no compiler."""
    try:
        return FakeNvml(tmp_path / "gpus.state")
    except CompilerMissing as missing:
        pytest.skip(str(missing))
