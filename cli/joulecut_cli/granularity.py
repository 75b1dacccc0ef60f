"""Which granularities a command takes, and what has to wait for a later version."""

from argparse import Namespace

from joulecut_controller.workload import GRANULARITIES, Granularity
from joulecut_wire.errors import BadInput

BUILT: tuple[Granularity, ...] = ("gpu", "computation")


def read_granularity(word: str, later: tuple[str, ...] = ("edge",)) -> Granularity:
    """Raises BadInput for what is unknown or, by name, for what is `later`."""
    for granularity in BUILT:
        if word == granularity:
            return granularity
    known = word in GRANULARITIES or word in later
    what = f"{word} is not available yet" if known else f'"{word}" is none'
    raise BadInput("--granularity", what, ", ".join(BUILT))


def not_yet(options: Namespace, *flags: str) -> None:
    """Refuses flags that are part of the command but not built."""
    for flag in flags:
        if getattr(options, flag) is not None:
            raise BadInput(f"--{flag}", "not available yet", "--json")
