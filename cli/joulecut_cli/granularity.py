"""The granularities of commands."""

from joulecut_engine.graph.pipeline import GRANULARITIES, Granularity
from joulecut_wire.errors import BadInput

BUILT: tuple[Granularity, ...] = GRANULARITIES
ALL = "all"
SHOWN = ", ".join(BUILT)
HELP = (
    "how often clocks change: gpu, one clock per GPU; edge, a second one for the first forward "
    "and the last backward; computation, one per operation"
)


def read_granularity(word: str) -> Granularity:
    """Raises BadInput for any other word."""
    return _one(word, SHOWN)


def read_granularities(word: str) -> tuple[Granularity, ...]:
    """One of them, or all. Raises BadInput."""
    return BUILT if word == ALL else (_one(word, f"{SHOWN}, {ALL}"),)


def _one(word: str, allowed: str) -> Granularity:
    for granularity in BUILT:
        if word == granularity:
            return granularity
    raise BadInput("--granularity", f'"{word}" is none', allowed)
