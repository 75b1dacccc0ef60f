"""`--prove [SECONDS]`: go on after the first answer, and show how far it has come.

The flag alone; `planning` and `frontier_points` spend the seconds.
"""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from joulecut_wire.command import Parser
from joulecut_wire.flags import number

SECONDS, SECONDS_MAX = 20.0, 86_400.0
Answer = TypeVar("Answer")


def add_prove(parser: Parser) -> None:
    parser.add_argument(
        "--prove",
        nargs="?",
        type=number(0.0, SECONDS_MAX, above=True, unit="seconds"),
        const=SECONDS,
        default=0.0,
        metavar="SECONDS",
        help="go on for a better plan and a tighter bound, with progress on standard error "
        f"(default {SECONDS:g} s)",
    )


def proved(
    found: Answer, better: Iterator[Answer], seconds: float, show: Callable[[Answer], None]
) -> Answer:
    """The last answer after so many seconds; `show` gets each."""
    until_s = time.monotonic() + seconds
    show(found)
    for answer in better:
        found = answer
        show(found)
        if time.monotonic() >= until_s:
            break
    return found
