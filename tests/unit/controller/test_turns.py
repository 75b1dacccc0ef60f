"""Turns at the workers: none outlives the step of its job but for a question under way, none is
left unused, and late plans come first.
"""

from contextlib import suppress
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.reconcile.planning_step import Turns

JOBS = [f"job{i}" for i in range(6)]
# How a step ends: without a question, with one, with an error before or after it has asked.
Ending = Literal["decided", "asks", "fails", "asks, fails"]
endings = st.sampled_from(["decided", "asks", "fails", "asks, fails"])
steps = st.lists(st.tuples(st.sampled_from(JOBS), endings, st.booleans()))


class Cluster:
    """Jobs that step, and workers whose answers begin further steps."""

    def __init__(self, at_once: int) -> None:
        self.woken: list[str] = []  # by a turn, and not stepped since
        self.turns, self.at_once = Turns(self.woken.append, at_once), at_once
        self.asked: set[str] = set()  # a worker computes for them
        self.line: list[tuple[bool, int, str]] = []  # on time, since, job
        self.count = 0

    def step(self, job: str, ending: Ending, *, late: bool = False) -> None:
        self.count += 1
        since = next((since for _, since, one in self.line if one == job), self.count)
        self.line = [one for one in self.line if one[2] != job]
        self.woken[:] = [one for one in self.woken if one != job]
        self.asked.discard(job)  # answered
        woken = len(self.woken)
        with suppress(OSError), self.turns.step(job):
            if ending in ("asks", "asks, fails"):
                has = self.turns.ask(job, late=late)
                if ending == "asks, fails":
                    raise OSError
                self.turns.unanswered(job)
                if has:
                    self.asked.add(job)
                else:
                    self.line.append((not late, since, job))
            elif ending == "fails":
                raise OSError
        expected = sorted(self.line)
        new = self.woken[woken:]
        assert new == [one for _, _, one in expected[: len(new)]]
        self.line = expected[len(new) :]
        self.check()

    def check(self) -> None:
        having = self.asked | set(self.woken)
        assert len(having) <= self.at_once
        assert not self.line or len(having) == self.at_once
        assert self.turns.line == [job for _, _, job in sorted(self.line)]


@given(steps, st.integers(1, 3))
def test_no_turn_outlives_its_step_and_none_is_left_unused(
    steps: list[tuple[str, Ending, bool]], at_once: int
) -> None:
    cluster = Cluster(at_once)
    for job, ending, late in steps:
        cluster.step(job, ending, late=late)
    while cluster.woken or cluster.asked:
        cluster.step((cluster.woken or sorted(cluster.asked))[0], "decided")
    assert not cluster.line
    free = [f"new{i}" for i in range(at_once)]
    assert all(cluster.turns.ask(job, late=False) for job in free)
