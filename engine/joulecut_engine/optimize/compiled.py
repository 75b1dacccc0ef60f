"""The one door to the compiler of inner loops; all else is plain Python.

Machine code stays on disk beside the module, or in the user's cache directory where that cannot
be written (`NUMBA_CACHE_DIR` moves it). The first plan after an install compiles for 47 s of a
processor (measured 2026-11-30); `python -m joulecut_engine.optimize.warmup` compiles everything
beforehand. Results do not depend on it. `NUMBA_DISABLE_JIT=1` runs the same functions as Python,
for a debugger.

Machine code is renewed when its own module changes, not when another does: so no compiled
function calls one of another module.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

_compiled: list[Any] = []


@contextmanager
def _little_else() -> Iterator[None]:
    """Numba imports scipy and coverage where they are installed, and needs neither."""
    absent = [name for name in ("coverage", "scipy") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent, cast("Any", None)))
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


with _little_else():
    from numba import njit
    from numba.core.caching import FunctionCache
    from numba.core.runtime.nrt import rtsys

# LLVM ignores a processor that it does not know, says so for every loop, and has no list to ask:
# of `NUMBA_CPU_NAME` only `generic` counts, for machine code that is made on another machine.
config: Any = importlib.import_module("numba.core.config")
if config.CPU_NAME != "generic":
    config.CPU_NAME = None


class _KeptCode(FunctionCache):
    """Machine code on disk. Its loading leaves the tables of the compiler alone, which take 0.2 s
    and are filled where a loop is compiled."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        return cast("Any", self)._load_overload(sig, target_context)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of an inner loop. Sums keep their order: bounds are proven with these."""
    loop: Any = njit(function, nogil=True, error_model="numpy")
    if not config.DISABLE_JIT:
        with suppress(RuntimeError):  # nowhere to write: every process compiles for itself
            loop._cache = cast("Any", _KeptCode)(function)
        _compiled.append(loop)
    return cast("Callable[P, R]", loop)


def kept() -> bool:
    """Whether an earlier run has left machine code on disk; also true where nothing compiles."""
    places = {loop.stats.cache_path for loop in _compiled}
    return not places or any(place and any(Path(place).glob("*.nbi")) for place in places)
