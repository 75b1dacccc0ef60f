"""Shortens a walk that broke a promise, for as long as it still breaks it.

First the steps before the violation alone, from few to many; then halves, quarters and single
steps of these are left out. A walk of real processes does not repeat exactly: what is left broke
the promise at least once.
"""

import time
from collections.abc import Callable

from steps import Step

LAST = (15, 40, 120, 400)  # how many steps before the violation are tried alone


def shrunk(
    steps: list[Step], at: int, fails: Callable[[list[Step]], bool], for_s: float
) -> list[Step]:
    """The shortest walk found within `for_s`; `at` steps had begun at the violation."""
    end_s = time.monotonic() + for_s
    found = steps[:at]
    for count in (count for count in LAST if count < at):
        if time.monotonic() > end_s:
            return found
        if fails(steps[at - count : at]):
            found = steps[at - count : at]
            break
    size = max(1, len(found) // 2)
    while time.monotonic() < end_s:
        for begin in range(0, len(found), size):
            shorter = found[:begin] + found[begin + size :]
            if time.monotonic() > end_s or not shorter:
                return found
            if fails(shorter):
                found = shorter
                break
        else:
            if size == 1:
                return found
            size = max(1, size // 2)
    return found
