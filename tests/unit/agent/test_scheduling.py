"""Shorter slices change nothing else of how the kernel runs us."""

import os
import subprocess
import sys

READ = """
import ctypes, os, struct
from joulecut_agent.scheduling import request_short_slices
{before}
print(request_short_slices(), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))
"""


OWN_NICE = os.getpriority(os.PRIO_PROCESS, 0)  # of a test run in the background


def _tells(before: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", READ.format(before=before)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout.split()


def test_policy_and_nice_stay() -> None:
    _, policy, nice = _tells("os.nice(7)")
    assert (int(policy), int(nice)) == (os.SCHED_OTHER, min(OWN_NICE + 7, 19))


def test_a_policy_of_the_site_stands() -> None:
    chosen = "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"
    assert _tells(chosen) == ["False", str(int(os.SCHED_BATCH)), str(OWN_NICE)]
