"""The solver is made ready beside the passes, whatever becomes of it."""

import asyncio

import pytest

from joulecut_controller.solver_warmup import SolverWarmup


def test_a_failure_leaves_the_solver_to_itself() -> None:
    def fail() -> None:
        raise OSError("disk full")

    warming = SolverWarmup(stored=lambda: True, load=fail)
    with pytest.raises(OSError, match="disk full"):
        asyncio.run(warming.run())
    assert warming.wait == ""


def test_stopped_early_it_leaves_no_process_behind() -> None:
    async def go() -> None:
        warming = SolverWarmup(stored=lambda: False)
        task = asyncio.create_task(warming.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert warming.wait == ""

    asyncio.run(go())
