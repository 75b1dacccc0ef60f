"""Compiles the solver's kernels while the first baseline is measured.

After an install they take seconds to compile. In a pass that would delay the first plan, and in a
thread of this process everything else: another process compiles them to disk, and this one loads
them.
"""

import asyncio
import sys
from collections.abc import Callable

from joulecut_engine.optimize.compiled import kept
from joulecut_engine.optimize.warmup import warm_up

MODULE = "joulecut_engine.optimize.warmup"
WAIT = "the solver is being loaded, and once after an install compiled: no plan yet"


class SolverWarmup:
    """`wait` says why no plan can be made yet; empty once the solver is ready.

    `stored` tells whether machine code is on disk already; `load` makes the solver ready in
    this process, from disk or, where nothing can be written there, by compiling.
    """

    def __init__(
        self, stored: Callable[[], bool] = kept, load: Callable[[], None] = warm_up
    ) -> None:
        self._stored, self._load = stored, load
        self.wait = WAIT

    async def run(self) -> None:
        """Makes ready, in the background; stopped, it leaves no process behind."""
        try:
            if not self._stored():
                await _elsewhere()
            await asyncio.to_thread(self._load)
        finally:
            self.wait = ""  # whatever went wrong, the solver compiles when it is asked


async def _elsewhere() -> None:
    nothing = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", MODULE, stdin=nothing, stdout=nothing, stderr=nothing
    )
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
