"""The audit trail: durable in the store, and its newest lines at hand for the page.

Written before the thing it speaks of is done, so that what happened to a GPU can be read
even where the controller died in the middle of it.
"""

import json
from collections import deque
from collections.abc import Callable
from typing import Any

from joulecut_controller.plan.plan import Plan
from joulecut_controller.ports import Event, EventKind, Store

SHOWN = 100  # lines at hand; the store has the rest


class Audit:
    """Writes events. Raises Unavailable where the store cannot keep them."""

    def __init__(self, store: Store, unix_s: Callable[[], float]) -> None:
        self._store = store
        self._unix_s = unix_s
        self._newest: deque[Event] = deque(store.events(limit=SHOWN), maxlen=SHOWN)

    @property
    def newest(self) -> tuple[Event, ...]:
        return tuple(self._newest)

    def note(
        self, kind: EventKind, job: str, text: str, *, generation: int = 0, **detail: Any
    ) -> None:
        """Records one event; `detail` is kept as JSON."""
        event = Event(
            at_unix_s=self._unix_s(),
            kind=kind,
            job=job,
            generation=generation,
            text=text,
            detail=json.dumps(detail, default=str) if detail else "",
        )
        self._store.record(event)
        self._newest.appendleft(event)

    def plan(self, plan: Plan) -> None:
        """Keeps a plan whole, and says so."""
        self._store.keep_plan(plan)
        text = f"{plan.reason} -- refused: {plan.refused}" if plan.refused else plan.reason
        self.note("plan", plan.job, text, generation=plan.generation, mode=plan.mode)
