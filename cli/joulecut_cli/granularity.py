"""The granularities of commands."""

from dataclasses import dataclass

from joulecut_engine.graph.pipeline import GRANULARITIES, Granularity
from joulecut_wire import flags
from joulecut_wire.command import retired
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import Fault

BUILT: tuple[Granularity, ...] = GRANULARITIES
ALL = "all"
CHANGES_MAX = 64  # of one GPU and iteration: beyond, nothing is left to gain
SHOWN = "gpu, changes, changes:K, computation"
HELP = (
    "how often clocks change: gpu, one clock per GPU; changes:K, up to K changes of each GPU "
    "per iteration, anywhere (2 if K is left out); computation, one per operation"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A granularity, and with `changes` how many, where that was said."""

    granularity: Granularity
    changes: int | None = None


def read_granularity(word: str) -> Asked:
    """Raises BadInput for any other word."""
    return _one(word, SHOWN)


def read_granularities(word: str) -> tuple[Asked, ...]:
    """One of them, or all. Raises BadInput."""
    if word == ALL:
        return tuple(Asked(granularity) for granularity in BUILT)
    return (_one(word, f"{SHOWN}, {ALL}"),)


def _one(word: str, allowed: str) -> Asked:
    if word == "edge":
        retired("--granularity edge", "means changes:2, which saves as much or more")
        word = "changes:2"
    for granularity in BUILT:
        if word == granularity:
            return Asked(granularity)
    name, _, count = word.partition(":")
    if name != "changes":
        raise BadInput("--granularity", f'"{word}" is none', allowed)
    try:
        return Asked("changes", flags.whole(1, CHANGES_MAX)(count))
    except Fault as fault:
        allowed = f"changes:K with K from 1 to {CHANGES_MAX}"
        raise BadInput("--granularity", fault.what, allowed) from None
