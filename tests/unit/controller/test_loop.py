"""The loop: a key that fails, hangs or has news all the time costs no other key anything."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.reconcile.loop import Loop
from joulecut_controller.reconcile.loop_metrics import Histogram
from joulecut_wire.errors import Unavailable

INTERVAL_S = 5.0
ROUNDS = 40
Step = Callable[[], Awaitable[None]]


async def fine() -> None:
    await asyncio.sleep(0)


async def broken() -> None:
    raise ZeroDivisionError("a fault of ours")


async def away() -> None:
    raise Unavailable("the store is away")


class Clock:
    """A loop on a clock of its own, and the steps that it began."""

    def __init__(self, steps: dict[str, Step]) -> None:
        self.now_s, self.begun, self.said = 0.0, list[tuple[float, str]](), list[str]()
        self._steps = steps
        self.loop = Loop(
            self._step,
            lambda: None,
            failed=lambda key, error: self.said.append(f"{key}: {error}"),
            interval_s=INTERVAL_S,
            durations=Histogram(),
            now_s=lambda: self.now_s,
        )
        for key in steps:
            self.loop.add(key)

    async def _step(self, key: str) -> float:
        self.begun.append((self.now_s, key))
        await self._steps[key]()
        return INTERVAL_S

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            await self.loop.run_due()
            self.now_s += INTERVAL_S


@given(st.lists(st.sampled_from([fine, broken, away]), min_size=1, max_size=6))
def test_a_key_that_cannot_be_reconciled_delays_no_other(steps: list[Step]) -> None:
    clock = Clock({f"job{number}": step for number, step in enumerate(steps)})
    asyncio.run(clock.rounds(ROUNDS))
    counts = Counter(key for _, key in clock.begun)
    for number, step in enumerate(steps):
        key = f"job{number}"
        if step is fine:
            assert counts[key] == ROUNDS
            assert clock.loop.silent_s(key) == INTERVAL_S
        else:
            assert 5 <= counts[key] < ROUNDS / 2, "tried again, and less and less often"
            assert clock.loop.silent_s(key) == ROUNDS * INTERVAL_S
            assert key in clock.loop.troubles
    assert len(clock.said) == sum(step is not fine for step in steps), "each is said once"


def test_an_error_of_ours_names_its_place_and_ends_with_the_next_success() -> None:
    steps: dict[str, Step] = {"job": broken}
    clock = Clock(steps)
    asyncio.run(clock.rounds(1))
    error = clock.loop.troubles["job"]
    assert error.startswith("ZeroDivisionError at test_loop.py:")
    assert error.endswith(": a fault of ours")
    steps["job"] = fine
    asyncio.run(clock.rounds(1))
    assert not clock.loop.troubles


def test_steps_run_side_by_side_and_each_keys_one_at_a_time() -> None:
    """A key whose agents do not answer waits alone; what it missed meanwhile is one step more."""

    async def story() -> None:
        answered, running = asyncio.Event(), Counter[str]()

        async def hangs() -> None:
            running["slow"] += 1
            assert running["slow"] == 1
            await answered.wait()
            running["slow"] -= 1

        clock = Clock({"slow": hangs, "other": fine})
        going = asyncio.create_task(clock.loop.run())
        for number in range(1, 4):
            clock.now_s = number * INTERVAL_S
            clock.loop.add("slow")
            clock.loop.add("other")
            async with asyncio.timeout(60.0):
                while [key for _, key in clock.begun].count("other") < number:
                    await asyncio.sleep(0.01)
        assert [key for _, key in clock.begun].count("slow") == 1
        assert clock.loop.silent_s("slow") > clock.loop.silent_s("other")
        answered.set()
        async with asyncio.timeout(60.0):
            while [key for _, key in clock.begun].count("slow") < 2:
                await asyncio.sleep(0.01)
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
        await clock.loop.stop(60.0)

    asyncio.run(story())


def test_an_answer_from_a_thread_begins_a_step_at_once() -> None:
    """The clock stands still: only the answer makes the key due."""

    async def story() -> None:
        clock = Clock({"job": fine})
        going = asyncio.create_task(clock.loop.run())
        async with asyncio.timeout(60.0):
            while not clock.begun:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(clock.loop.answered, "job")
            while len(clock.begun) < 2:
                await asyncio.sleep(0.01)
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)

    asyncio.run(story())
