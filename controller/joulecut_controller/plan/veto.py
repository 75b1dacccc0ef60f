"""Vetoes: everything that forbids a plan for a job now.

All vetoes of a step stand in one list. The strictest action of all of them is taken; the order of
KINDS decides only which sentence an operator reads first. Pure.

| action | clocks | the plan |
|---|---|---|
| suspend | default | goes on once the veto ends |
| release | default | is forgotten; what was learnt of the job stays |
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "off",  # the policy's mode
    "term",  # another controller leads
    "command",  # a person paused or restored the job
    "breaker",  # the job was slower than its policy allows
    "back-off",  # a command failed, or a GPU drifted
    "orphaned",  # leases of an earlier term are cleared first
    "pipeline",  # nothing says how the job is laid out
    "profile",  # nothing says what other clocks cost
    "layout",  # the job's GPUs are not those of its pipeline
    "silent",  # no iteration has ended for too long
    "stale",  # a GPU has not been read for too long
    "phase",  # the job does other work than the plan is for
    "baseline",  # default clocks have not been measured yet
    "unready",  # the solver is being compiled
    "default-window",  # default clocks are being measured
    "fault",  # the job's numbers cannot be planned with
]
KINDS: tuple[Kind, ...] = get_args(Kind)

# A job that is silent, in another phase or measured goes on with its plan; so does one of which an
# agent was not heard for a while. Whatever else happens, it is planned from the start.
SUSPENDS: Mapping[Kind, str] = {
    "silent": "the silence",
    "stale": "the silence of an agent",
    "layout": "the search for the job's GPUs",
    "phase": "the other phase",
    "default-window": "the window at default clocks",
}


@dataclass(frozen=True, slots=True)
class Veto:
    """Why a plan is forbidden, as a sentence."""

    kind: Kind
    text: str

    @property
    def releases(self) -> bool:
        """Whether the plan is forgotten; else it is suspended."""
        return self.kind not in SUSPENDS


def in_order(vetoes: Iterable[Veto]) -> tuple[Veto, ...]:
    """By the order of KINDS, then as given."""
    return tuple(sorted(vetoes, key=lambda veto: KINDS.index(veto.kind)))


def first(vetoes: Iterable[Veto]) -> Veto | None:
    """The one whose sentence an operator reads."""
    return next(iter(in_order(vetoes)), None)


def releases(vetoes: Iterable[Veto]) -> bool:
    """Whether the strictest of all actions is taken: the plan is forgotten."""
    return any(veto.releases for veto in vetoes)
