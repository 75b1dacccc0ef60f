"""The demo's service manager, tried on real processes."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from joulecut_sim.demo.supervisor import LINES_KEPT, Child, Recipe, Witness, children
from joulecut_wire.errors import Unavailable

WAIT_S = 90.0
READY = re.compile(r"ready (\d+)")


def _child(code: str, back_s: float = 0.0) -> Child:
    return Child(Recipe("thing", (sys.executable, "-u", "-c", code), READY, back_s))


def _until(condition: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit_s
        time.sleep(0.02)


WAITING = "import time; print('ready 7'); time.sleep(600)"


def test_a_killed_child_is_noticed_once_and_due_again() -> None:
    child = _child(WAITING, back_s=0.0)
    child.start()
    child.wait_ready(time.sleep)
    first = child.pid
    assert not child.due()
    os.kill(first, signal.SIGKILL)
    _until(lambda: not child.alive)
    assert child.died() == "was killed by SIGKILL"
    assert child.died() == ""
    assert child.due()
    child.start()
    child.wait_ready(time.sleep)
    assert child.pid != first
    child.stop(WAIT_S)


def test_the_last_words_of_a_child_that_fails_are_told() -> None:
    child = _child("import sys; print('thing: no such thing', file=sys.stderr); sys.exit(2)", 60.0)
    child.start()
    with pytest.raises(Unavailable, match="thing did not start: thing: no such thing"):
        child.wait_ready(time.sleep)
    assert child.died().startswith("ended with status 2")
    assert not child.due()


def test_a_deaf_child_is_killed_after_some_patience() -> None:
    child = _child(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready 1'); time.sleep(600)"
    )
    child.start()
    child.wait_ready(time.sleep)
    assert not child.stop(0.3)
    assert not child.alive


def test_a_talkative_child_neither_blocks_nor_fills_the_memory() -> None:
    child = _child("for n in range(20000): print('x' * 100)\nprint('ready 1')")
    child.start()
    child.wait_ready(time.sleep)
    child.stop(WAIT_S)
    assert len(child.last_words()) < 200
    assert len(child._life.lines) <= LINES_KEPT


def test_children_end_when_their_supervisor_is_killed() -> None:
    code = (
        "import re, sys, time\nfrom joulecut_sim.demo.supervisor import Child, Recipe\n"
        f"c = Child(Recipe('t', (sys.executable, '-u', '-c', {WAITING!r}), re.compile('ready')))\n"
        "c.start(); c.wait_ready(time.sleep); print(c.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as above:
        below = Witness.of(int(above.stdout.readline()))
        assert below.alive
        assert children(above.pid) == (below.pid,)
        above.kill()
        above.wait()
    _until(lambda: not below.alive)
