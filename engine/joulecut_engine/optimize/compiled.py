"""The one door to the compiler of inner loops; all else is plain Python.

Machine code stays on disk beside the module, or in the user's cache directory where that cannot
be written (`NUMBA_CACHE_DIR` moves it). The first plan after an install compiles for about ten
seconds; `python -m joulecut_engine.optimize.warmup` compiles everything beforehand. Results do not
depend on it. `NUMBA_DISABLE_JIT=1` runs the same functions as Python, for a debugger.

Machine code is renewed when its own module changes, not when another does: so no compiled
function calls one of another module.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from numba import njit

P = ParamSpec("P")
R = TypeVar("R")

_compiled: list[Any] = []

# LLVM ignores a processor that it does not know, says so for every loop, and has no list to ask:
# of `NUMBA_CPU_NAME` only `generic` counts, for machine code that is made on another machine.
config: Any = importlib.import_module("numba.core.config")
if config.CPU_NAME != "generic":
    config.CPU_NAME = None

# numba looks for scipy's BLAS once, which takes 0.3 s to load. No inner loop multiplies matrices,
# so what is not loaded yet is not found.
if "scipy.linalg" not in sys.modules:
    sys.modules["scipy.linalg"] = cast("Any", None)
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        del sys.modules["scipy.linalg"]


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of an inner loop. Sums keep their order: bounds are proven with these."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        loop = njit(function, cache=True, **options)
    except RuntimeError:  # nowhere to write: then every process compiles for itself
        loop = njit(function, **options)
    _compiled.append(loop)
    return cast("Callable[P, R]", loop)


def kept() -> bool:
    """Whether an earlier run has left machine code on disk; also true where nothing compiles."""
    places = {f.stats.cache_path for f in _compiled if hasattr(f, "stats")}
    return not places or any(place and any(Path(place).glob("*.nbi")) for place in places)
