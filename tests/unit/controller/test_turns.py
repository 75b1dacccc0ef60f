"""Turns at the workers: whole decisions, and jobs that hold clocks before others."""

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.reconcile.planning_step import Turns

JOBS = [f"job{i}" for i in range(6)]
steps = st.lists(st.tuples(st.sampled_from(JOBS), st.sampled_from(["ask", "late", "end"])))


@given(steps, st.integers(1, 3))
def test_every_turn_is_used_and_none_is_given_twice(steps: list[tuple[str, str]], n: int) -> None:
    called: list[str] = []
    turns = Turns(called.append, n)
    having, waiting = set[str](), list[str]()
    for job, step in steps:
        called.clear()
        if step == "end":
            turns.end(job)
            having.discard(job)
            waiting = [one for one in waiting if one != job]
            assert called == waiting[: len(called)]
            having.update(called)
            waiting = waiting[len(called) :]
        elif turns.ask(job, first=step == "late"):
            having.add(job)
        elif job not in waiting:
            waiting.insert(0 if step == "late" else len(waiting), job)
        assert len(having) <= n
        assert not waiting or len(having) == n
        assert not having & set(waiting)
