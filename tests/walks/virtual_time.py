"""A virtual clock for several controllers in one process.

An event loop whose time jumps to what is due next. What a controller does carries the controller
it belongs to, in its context: one that is stopped (as by SIGSTOP) runs nothing until it goes on.
Work for threads is done at once, and its answer may come late.
"""

import asyncio
import contextlib
import contextvars
import heapq
import selectors
import time
from collections.abc import Callable, Iterator
from typing import Any

from at_once import AtOnce

UNIX_S = 1.8e9  # the wall clock at the beginning


class Clock:
    """The time of a world. `wall_s` is how far the wall clock was set wrong."""

    def __init__(self) -> None:
        self.now_s, self.wall_s = 1000.0, 0.0
        self.late_s = 0.0  # of the answer of the work that a thread does now

    @contextlib.contextmanager
    def rules(self) -> Iterator[None]:
        """The clock of the whole process."""
        real = time.monotonic, time.time, time.clock_gettime
        time.monotonic = lambda: self.now_s + Owner.of_now().ahead_s
        time.time = lambda: UNIX_S + self.now_s + self.wall_s + Owner.of_now().wall_s
        time.clock_gettime = lambda _: time.monotonic()
        try:
            yield
        finally:
            time.monotonic, time.time, time.clock_gettime = real


class Busy(AtOnce):
    """Workers that answer one question in `each`, and the others never."""

    def __init__(self, each: int) -> None:
        super().__init__()
        self._each, self._asked = each, 0

    def is_busy(self) -> bool:
        self._asked += 1
        return self._asked % self._each != 0


class Owner:
    """What belongs together and can be stopped together: a controller's callbacks. Its clocks are
    `ahead_s` and `wall_s` off the world's.
    """

    current: contextvars.ContextVar["Owner | None"] = contextvars.ContextVar("owner", default=None)

    def __init__(self) -> None:
        self.stopped = False
        self.ahead_s, self.wall_s = 0.0, 0.0
        self.signals: dict[int, Callable[[], None]] = {}
        self._held: list[tuple[list[asyncio.Handle], Callable[[], None]]] = []

    @classmethod
    def of_now(cls) -> "Owner":
        """The owner of the callback that runs; outside all of them, the world itself."""
        return cls.current.get() or WORLD

    def leap(self, loop: "Loop", seconds: float) -> None:
        """Its monotonic clock alone jumps: its timers are due so much earlier."""
        self.ahead_s += seconds
        for timer in loop._scheduled:
            if timer._context.get(Owner.current) is self:
                timer._when -= seconds
        heapq.heapify(loop._scheduled)

    def run(self, handle: list[asyncio.Handle], callback: Callable[[], None]) -> None:
        if self.stopped:
            self._held.append((handle, callback))
        else:
            callback()

    def go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stopped, held, self._held = False, self._held, []
        for handle, callback in held:
            if not handle[0].cancelled():
                loop.call_soon(callback)


WORLD = Owner()


class _Jumping(selectors.SelectSelector):
    """Nothing comes from outside: waiting is a jump of the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing is left to happen")
        # A turn takes some time: a timer that is due within a rounding error is due at last.
        self._clock.now_s += max(1e-6, timeout)
        return []


class Loop(asyncio.SelectorEventLoop):
    """See above."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__(_Jumping(clock))

    def time(self) -> float:
        return self._clock.now_s

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return self._held(super().call_soon, callback, args, context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        def at(*what: Any, context: Any) -> asyncio.Handle:
            return asyncio.SelectorEventLoop.call_at(self, when, *what, context=context)

        return self._held(at, callback, args, context)

    def _held(self, call: Any, callback: Any, args: Any, context: Any) -> Any:
        context = context or contextvars.copy_context()
        owner = context.get(Owner.current)
        if owner is None:
            return call(callback, *args, context=context)
        handle: list[asyncio.Handle] = []
        handle.append(call(owner.run, handle, lambda: callback(*args), context=context))
        return handle[0]

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        answer, self._clock.late_s = self.create_future(), 0.0
        if isinstance(executor, Busy) and executor.is_busy():
            return answer
        try:
            give, what = answer.set_result, func(*args)
        except Exception as error:
            give, what = answer.set_exception, error
        if self._clock.late_s:
            self.call_later(self._clock.late_s, lambda: answer.done() or give(what))
        else:
            give(what)
        return answer

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        owner = Owner.current.get()
        owner.signals[sig] = lambda: callback(*args)
