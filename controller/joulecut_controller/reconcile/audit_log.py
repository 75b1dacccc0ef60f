"""Audit log: durable in the store, newest lines in memory for the page.

An event is written before its action, so that the log is complete even where the controller dies
in between. Actions that must not wait for the store (releasing clocks, a new policy) go ahead;
their lines are written later, by a thread: the event loop, which renews leases, waits for no
transaction of another controller.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from joulecut_controller.plan.plan import Plan
from joulecut_controller.ports import Event, EventKind, Store
from joulecut_wire.errors import Unavailable

SHOWN = 100  # lines in memory; the store has the rest
WAITING_MAX = 1_000  # lines waiting for the store; beyond it the oldest are lost


class AuditLog:
    """Writes events. `note` raises Unavailable where the store cannot keep them. `trouble` says why
    lines wait for it.
    """

    def __init__(self, store: Store, unix_s: Callable[[], float]) -> None:
        self._store = store
        self._unix_s = unix_s
        self._newest: deque[Event] = deque(store.events(limit=SHOWN), maxlen=SHOWN)
        self._waiting: deque[Event] = deque(maxlen=WAITING_MAX)
        self._writing = threading.Lock()
        self.trouble = ""

    def follow(self, stored: Iterable[Event]) -> None:
        """Shows the store's newest events, with those of other controllers."""
        self._newest = deque((*reversed(self._waiting), *stored), maxlen=SHOWN)

    @property
    def newest(self) -> tuple[Event, ...]:
        return tuple(self._newest)

    def note(
        self, kind: EventKind, job: str, text: str, *, generation: int = 0, **detail: Any
    ) -> None:
        """Records one event, after those that wait; `detail` is kept as JSON. Raises
        Unavailable.
        """
        event = self._event(kind, job, text, generation, detail)
        self._write(event)
        self._newest.appendleft(event)

    def post(
        self, kind: EventKind, job: str, text: str, *, generation: int = 0, **detail: Any
    ) -> None:
        """Records an event that does not wait for the store: shown at once, written by the next
        `catch_up`.
        """
        event = self._event(kind, job, text, generation, detail)
        self._newest.appendleft(event)
        self._waiting.append(event)

    def catch_up(self) -> None:
        """Writes the lines that wait. Called in a thread."""
        if self._waiting:
            try:
                self._write()
            except Unavailable as error:
                self.trouble = str(error)
                return
        self.trouble = ""

    def _write(self, *newest: Event) -> None:
        """Writes the lines that wait and `newest`, in order, in one transaction."""
        with self._writing:
            waiting = tuple(self._waiting)
            self._store.record(*waiting, *newest)
            for event in waiting:
                if self._waiting and self._waiting[0] is event:  # it was not crowded out meanwhile
                    self._waiting.popleft()

    def plan(self, plan: Plan) -> None:
        """The event of a plan. Raises Unavailable."""
        text = f"{plan.reason} -- refused: {plan.refused}" if plan.refused else plan.reason
        self.note("plan", plan.job, text, generation=plan.generation, mode=plan.mode)

    def _event(
        self, kind: EventKind, job: str, text: str, generation: int, detail: dict[str, Any]
    ) -> Event:
        return Event(
            at_unix_s=self._unix_s(),
            kind=kind,
            job=job,
            generation=generation,
            text=text,
            detail=json.dumps(detail, default=str) if detail else "",
        )
