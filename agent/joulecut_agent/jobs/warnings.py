"""Warnings of a thread that reads on: a line that repeats itself in each turn is logged once."""

from collections.abc import Callable

from joulecut_agent.log import log


class Warnings:
    """For one thread. `last` is "" where nothing is wrong."""

    def __init__(self) -> None:
        self.last = ""

    def say(self, line: str) -> None:
        if line and line != self.last:
            log("agent", line, "warning")
        self.last = line

    def attempt(self, turn: Callable[[], object], failed: str) -> None:
        """Takes a turn; a failure is logged, since the other sources go on."""
        try:
            turn()
        except Exception as error:
            self.say(f"{failed}: {type(error).__name__}: {error}")
