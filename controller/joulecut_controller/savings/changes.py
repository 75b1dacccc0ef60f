"""Every change of a job's clocks, from the audit log: it is written before each command is sent, so
it is complete.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from joulecut_controller.ports import Event

# Kinds of audit log events that change clocks, or say why they will be changed.
KINDS = frozenset({"apply", "clear", "verify", "drift", "hold", "policy"})


@dataclass(frozen=True, slots=True)
class Change:
    """What was done to the job's clocks, or found about them, and why.

    `clocks` counts GPUs by the clock set, in MHz; 0 is default clocks. `reason` is
    the plan's own; empty where `text` says it all, or the plan's line is no longer kept.
    """

    at_unix_s: float
    kind: str
    generation: int
    text: str
    reason: str = ""
    clocks: tuple[tuple[int, int], ...] = ()


def changes(events: Iterable[Event], job: str, since_unix_s: float) -> tuple[Change, ...]:
    """The job's changes since a time, oldest first, from the audit log, newest first."""
    trail = [event for event in events if event.job == job]
    reasons: dict[int, str] = {}
    for event in reversed(trail):
        if event.kind == "plan" and event.generation:
            reasons[event.generation] = event.text
    return tuple(
        Change(
            at_unix_s=event.at_unix_s,
            kind=event.kind,
            generation=event.generation,
            text=event.text,
            reason=reasons.get(event.generation, "") if event.kind == "apply" else "",
            clocks=_clocks(event.detail) if event.kind == "apply" else (),
        )
        for event in reversed(trail)
        if event.kind in KINDS and event.at_unix_s >= since_unix_s
    )


def _clocks(detail: str) -> tuple[tuple[int, int], ...]:
    """GPUs by the clock set; empty where the line has no settings."""
    try:
        known = json.loads(detail)
        settings = known["settings"].values()
        counted = Counter(0 if clock_mhz is None else int(clock_mhz) for clock_mhz in settings)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()
    return tuple(sorted(counted.items()))
