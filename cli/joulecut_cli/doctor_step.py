"""One step of `joulecut doctor`: what is there, and what to do where it is not."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """`found` says what is there, `mend` what to do where that is not enough."""

    name: str
    done: bool
    found: str
    mend: str = ""
