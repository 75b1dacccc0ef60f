"""Operator commands and the holds they set.

Values only: page and command line make orders, the control loop executes them, and all show the
same holds.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

Op = Literal["pause", "resume", "restore", "adopt"]
HoldKind = Literal["pause", "restore", "breaker"]

ALL = ""  # the job of a hold on every job, and of an order that names none


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a job is not controlled. `job` is empty for every job.

    `pause` and `restore` are a person's word and end with a person's. `breaker` was set by the
    breaker: it ends by itself after `until_unix_s`, or, where that is None, with a person's word.
    """

    job: str
    kind: HoldKind
    reason: str
    by: str
    since_unix_s: float
    until_unix_s: float | None = None

    @property
    def ends_itself(self) -> bool:
        return self.until_unix_s is not None

    @property
    def sentence(self) -> str:
        """Why nothing is done for the job, and what would end that."""
        why = f": {self.reason}" if self.reason else ""
        if self.kind == "breaker":
            if self.ends_itself:
                return f"the breaker released the GPUs{why}; default clocks until measured again"
            return f"the breaker ended control{why}; `joulecut resume {self.job}` arms it again"
        word = "paused" if self.kind == "pause" else "restored and paused"
        which = f"`joulecut resume {self.job}`" if self.job else "`joulecut resume --all`"
        return f"{word} by {self.by}{why}; {which} ends it"


@dataclass(frozen=True, slots=True)
class Order:
    """One command of a person. `job` and `node` are both empty for all; a node can only be
    restored, or adopt the GPUs in conflict that it shows. `by` says who, as far as it is known.
    """

    op: Op
    job: str = ALL
    node: str = ""
    reason: str = ""
    by: str = ""


Refused = Literal["", "unknown", "conflict", "standby", "failed"]


@dataclass(frozen=True, slots=True)
class Done:
    """What became of an order, in one sentence.

    `refused` says why nothing was done: there is no such job or node, something else stands
    against it, this controller does not lead, or it could not write it down. `unanswered` are
    the agents that did not take their part: what they hold runs out by its leases.
    """

    sentence: str
    refused: Refused = ""
    jobs: tuple[str, ...] = ()
    gpus: int = 0  # asked to reset to default clocks
    unanswered: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.refused and not self.unanswered


Commander = Callable[[Order], Awaitable[Done]]
