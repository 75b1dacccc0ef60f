"""Progress of a long computation, on standard error of a terminal."""

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

PATIENCE_S = 2.0  # a quicker computation shows none
TICK_S = 0.5


def solving(what: str) -> str:
    """The progress text of the solver, which compiles its inner loops once per installation."""
    from joulecut_engine.optimize.compiled import kept

    return what if kept() else f"compiling the solver, once; then {what}"


class Progress:
    """A line with the elapsed time and steps done, erased at the end.

    Silent where the stream is not a terminal. It runs in a thread of its own, since a solver
    holds the main one.
    """

    def __init__(
        self, what: str, stream: TextIO | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        self._what = what
        self._patience_s = patience_s
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._done: tuple[int, int] | None = None
        self._note = ""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Progress":
        if self._stream is not None and self._stream.isatty():  # None: closed by the parent
            self._thread = threading.Thread(target=self._show, args=(self._stream,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def advance(self, done: int, of: int) -> None:
        self._done = (done, of)

    def note(self, text: str) -> None:
        """What is known so far."""
        self._note = text

    def _show(self, stream: TextIO) -> None:
        began_s = time.monotonic()
        if self._over.wait(self._patience_s):
            return
        while True:
            done = f", {self._done[0]} of {self._done[1]}" if self._done else ""
            note = f", {self._note}" if self._note else ""
            line = f"{self._what}{done}{note}, {time.monotonic() - began_s:.0f} s"
            stream.write(f"\r\x1b[K{line}")
            stream.flush()
            if self._over.wait(TICK_S):
                break
        stream.write("\r\x1b[K")
        stream.flush()
