"""The judge of a cluster's walk: what was seen on the wire, against what is promised.

Standard library alone; it knows no code of the controller. An event is a JSON object with `at_s`
and `what`; see `violations` for what is read of each.
"""

from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]
MEMORY_MIB_MAX = 250.0  # of growth, from the end of the first settling on
MEASURED_S = 45.0  # a baseline of 30 iterations, or a window of 12, at default clocks
CLAIMED_S = 15.0  # the database ends a silent session after 8 s, and a reading is every 2 s
EVEN_S = 75.0  # a controller that reaches the agents of a job again may have it a minute later
REVOKED_S = 2.0  # a look a second, and a command that is under way
RELOAD_S = 2.0  # besides two intervals, for limits after a driver reload
DRAWN_RATIO, DRAWN_S = 1.02, 1.0  # of the budget, and for how long more may be drawn


def violations(events: Iterable[Event], contract: Event) -> list[str]:
    """What was broken, in order; empty for a good walk. The contract has `gpus` (UUIDs by node),
    `protected` (nodes that no lie may reach), `budget_w`, `liar_w` (of it, what the others leave at
    least to a node that lies), `interval_s`, `ttl_s`.
    """
    judge = Judge(contract)
    for event in events:
        getattr(judge, event["what"])(event)
    return judge.found


class Judge:
    """Looks at one event after the other; `found` is what was broken."""

    def __init__(self, contract: Event) -> None:
        self.found: list[str] = []
        self._gpus = {node: set(uuids) for node, uuids in contract["gpus"].items()}
        self._protected = set(contract["protected"])
        self._budget_w, self._interval_s = contract["budget_w"], contract["interval_s"]
        self._liar_w, self._ttl_s = contract["liar_w"], contract["ttl_s"]
        self._starts, self._calm, self._revoked_s = 0, False, -float("inf")
        self._held_s = self._claimed_s = self._even_s = 0.0
        self._memory_mib: dict[int, float] = {}
        self._excused_s = float("inf")  # limits may exceed the budget until then
        self._within_s = 0.0  # when no more than the budget was drawn, or it was excused
        self._reloaded = True  # in a storm, while no controller may be able to set the limits again

    def _break(self, event: Event, text: str) -> None:
        self.found.append(f"{event['at_s']:.2f} s: {text}")

    def started(self, _: Event) -> None:
        """A controller was started."""
        self._starts += 1

    def ended(self, event: Event) -> None:
        """A controller ended: `wanted` where the walk killed it."""
        if not event["wanted"]:
            self._break(event, f"a controller ended by itself, status {event['status']}")

    def calm(self, event: Event) -> None:
        """From now on (`on`) only the liar misbehaves, and all is settled."""
        self._calm = event["on"]
        self._reloaded = self._reloaded and not event["on"]
        if event["on"] and self._excused_s == float("inf"):
            self._excused_s = event["at_s"]

    def command(self, event: Event) -> None:
        """A command reached a node: `epoch`, `uuids`, `clear` with its `reason`."""
        strange = set(event["uuids"]) - self._gpus[event["node"]]
        if strange and event["node"] in self._protected:
            self._break(event, f"{event['node']} is told of GPUs that it has not: {strange}")
        if event["epoch"] > self._starts:
            self._break(event, f"epoch {event['epoch']} after {self._starts} starts")
        others = self._gpus.keys() - self._protected
        wrong = event["clear"] and any(name in event["reason"] for name in others)
        if self._calm and wrong and event["node"] in self._protected:
            self._break(event, f"{event['node']} is cleared: {event['reason']}")

    def sent(self, event: Event) -> None:
        """A controller sent a command: whether it `leads`, or has the job by the rows; and
        the `ttl_s` of the lease.
        """
        if not event["leads"] and event["at_s"] > self._revoked_s + REVOKED_S:
            self._break(event, f"{event['node']} is sent a command by one that does not lead")
        if not 0.0 <= event["ttl_s"] <= self._ttl_s:
            self._break(event, f"a lease of {event['ttl_s']} s, {self._ttl_s:g} s allowed")

    def claims(self, event: Event) -> None:
        """Whether every job is `held` by a living controller, and how many each has (`shares`)."""
        even = max(event["shares"], default=0) <= 1 + min(event["shares"], default=0)
        if not self._calm or event["held"]:
            self._claimed_s = event["at_s"]
        if not self._calm or even:
            self._even_s = event["at_s"]
        if event["at_s"] > min(self._claimed_s + CLAIMED_S, self._even_s + EVEN_S):
            self._break(event, f"jobs are not divided for {CLAIMED_S:g} s: {event['shares']}")
            self._claimed_s = self._even_s = event["at_s"]

    def revoked(self, event: Event) -> None:
        """The leader lock was taken from its holder, who hears of it at its next look."""
        self._revoked_s = event["at_s"]

    def crashed(self, event: Event) -> None:
        """A part of a controller ended by an error that nobody took: `text`."""
        self._break(event, f"a part of a controller ended: {event['text']}")

    def expired(self, event: Event) -> None:
        """A lease on a node ran out."""
        if self._calm and event["node"] in self._protected:
            self._break(event, f"a lease on {event['node']} ran out while others lie")

    def unsettled(self, event: Event) -> None:
        """The job of the protected nodes did not come back: `after_s`."""
        self._break(event, f"the job is not held {event['after_s']:.0f} s after the last fault")

    def reloaded(self, event: Event) -> None:
        """The driver of a node was loaded again, and forgot its limits."""
        allowed_s = event["at_s"] + 2.0 * self._interval_s + RELOAD_S
        self._excused_s = max(self._excused_s, allowed_s)
        self._reloaded = not self._calm

    def limits(self, event: Event) -> None:
        """Power limits of the honest nodes together: `sum_w`; what they draw: `drawn_w`; and
        whether the job of the protected ones is `held` by a plan. It may be at default clocks to
        be measured. Limits outlive controllers, so they bound power in a storm as well.
        """
        within = event["drawn_w"] <= DRAWN_RATIO * self._budget_w
        if within or self._reloaded or event["at_s"] <= self._excused_s:
            self._within_s = event["at_s"]
        elif event["at_s"] > self._within_s + DRAWN_S:
            self._break(event, f"{event['drawn_w']:g} W, {self._budget_w:g} W allowed")
            self._within_s = event["at_s"]
        if not self._calm or event["held"]:
            self._held_s = event["at_s"]
        elif event["at_s"] > self._held_s + MEASURED_S:
            self._break(event, f"the job is not held for {MEASURED_S:g} s while others lie")
            self._held_s = event["at_s"]
        allowed_w = self._budget_w - (self._liar_w if self._calm else 0.0)
        judged = event["at_s"] > self._excused_s and not self._reloaded
        if judged and event["sum_w"] > allowed_w:
            self._break(event, f"limits of {event['sum_w']:g} W, {allowed_w:g} W allowed")

    def memory(self, event: Event) -> None:
        """Resident memory of a controller: `pid`, `mib`."""
        if not self._calm:
            return
        first = self._memory_mib.setdefault(event["pid"], event["mib"])
        if event["mib"] > first + MEMORY_MIB_MAX:
            self._break(event, f"{event['mib']:.0f} MiB, {first:.0f} MiB at first")
            self._memory_mib[event["pid"]] = event["mib"]
