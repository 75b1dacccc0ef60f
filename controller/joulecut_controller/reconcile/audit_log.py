"""The audit trail: durable in the store, and its newest lines at hand for the page.

Written before the thing it speaks of is done, so that what happened to a GPU can be read
even where the controller died in the middle of it. What may not wait for a store that fails
(clocks given back, a person's new policy) is done all the same, and its line follows.
"""

import json
from collections import deque
from collections.abc import Callable
from typing import Any

from joulecut_controller.plan.plan import Plan
from joulecut_controller.ports import Event, EventKind, Store
from joulecut_wire.errors import Unavailable

SHOWN = 100  # lines at hand; the store has the rest
WAITING_MAX = 1_000  # lines that wait for the store; the oldest are lost then


class AuditLog:
    """Writes events. `note` raises Unavailable where the store cannot keep them."""

    def __init__(self, store: Store, unix_s: Callable[[], float]) -> None:
        self._store = store
        self._unix_s = unix_s
        self._newest: deque[Event] = deque(store.events(limit=SHOWN), maxlen=SHOWN)
        self._waiting: deque[Event] = deque(maxlen=WAITING_MAX)
        self._trouble = ""

    @property
    def newest(self) -> tuple[Event, ...]:
        return tuple(self._newest)

    @property
    def trouble(self) -> str:
        """Why lines wait to be written down; empty where none do."""
        return self._trouble

    def note(
        self, kind: EventKind, job: str, text: str, *, generation: int = 0, **detail: Any
    ) -> None:
        """Records one event; `detail` is kept as JSON. Raises Unavailable."""
        event = self._event(kind, job, text, generation, detail)
        self._store.record(event)
        self._newest.appendleft(event)

    def tell(
        self, kind: EventKind, job: str, text: str, *, generation: int = 0, **detail: Any
    ) -> None:
        """As `note`, of what does not wait for the store: shown at once, and written now or by
        a later `catch_up`.
        """
        event = self._event(kind, job, text, generation, detail)
        self._newest.appendleft(event)
        self._waiting.append(event)
        if len(self._waiting) == 1:  # behind others it waits: each try may take a timeout
            self.catch_up()

    def catch_up(self) -> None:
        """Writes what waits, in its order, as far as the store takes it."""
        while self._waiting:
            try:
                self._store.record(self._waiting[0])
            except Unavailable as error:
                self._trouble = str(error)
                return
            self._waiting.popleft()
        self._trouble = ""

    def plan(self, plan: Plan) -> None:
        """Keeps a plan whole, and says so. Raises Unavailable."""
        self._store.keep_plan(plan)
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
