"""`--prove [SECONDS]`: go on after the first answer, and show how far it has come.

The flag alone; `planning` and `frontier_points` spend the seconds.
"""

import re
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from joulecut_wire.command import Parser
from joulecut_wire.errors import BadInput

SECONDS, SECONDS_MAX = 20.0, 86_400.0
Answer = TypeVar("Answer")


def add_prove(parser: Parser) -> None:
    parser.add_argument(
        "--prove",
        nargs="?",
        const="",
        metavar="SECONDS",
        help="go on for a better plan and a tighter bound, with progress on standard error "
        f"(default {SECONDS:g} s)",
    )


def prove_seconds(word: str | None) -> float:
    """0 where it was not asked for. Raises BadInput."""
    if word is None:
        return 0.0
    text = word.strip()
    if not text:
        return SECONDS
    allowed = f"seconds above 0, up to {SECONDS_MAX:g}"
    if not re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", text, re.ASCII):
        raise BadInput("--prove", f'"{word}" is not a number', allowed)
    seconds = float(text)
    if not 0.0 < seconds <= SECONDS_MAX:
        raise BadInput("--prove", f'"{word}" is out of range', allowed)
    return seconds


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
