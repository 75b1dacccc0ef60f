"""The work queue: one step of a key at a time, none before its time, forgotten or starved."""

import math

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.reconcile.work_queue import WorkQueue

KEYS = ["a", "b", "c", "d"]
waits_s = st.sampled_from([0.0, 0.5, 3.0, 10.0])
events = st.lists(
    st.tuples(
        st.sampled_from(["add", "take", "done", "pass"]),
        st.sampled_from(KEYS),
        st.one_of(waits_s, st.just(math.inf)),
    ),
    max_size=60,
)


@given(events)
def test_the_queue_does_what_a_list_of_wishes_does(story: list[tuple[str, str, float]]) -> None:
    """Brute force beside it: every wish for a step is kept until a step begins after it."""
    queue, now_s = WorkQueue(), 0.0
    wishes: dict[str, list[float]] = {key: [] for key in KEYS}
    running: dict[str, None] = {}
    for what, key, wait_s in story:
        if what == "add" and math.isfinite(wait_s):
            queue.add(key, now_s + wait_s)
            wishes[key].append(now_s + wait_s)
        elif what == "done" and key in running:
            queue.done(key, now_s + wait_s)
            del running[key]
            wishes[key] += [now_s + wait_s] if math.isfinite(wait_s) else []
        elif what == "pass":
            now_s += min(wait_s, 20.0)
        elif what == "take":
            due = {
                one: min(times)
                for one, times in wishes.items()
                if times and one not in running and min(times) <= now_s
            }
            taken = queue.take(now_s)
            assert (taken is None) == (not due)
            if taken is not None:
                assert due[taken] == min(due.values()), "the longest wait comes first"
                wishes[taken].clear()
                running[taken] = None
        waiting = [min(times) for one, times in wishes.items() if times and one not in running]
        assert queue.next_s == min(waiting, default=math.inf)


@given(st.permutations(KEYS))
def test_a_key_that_always_has_news_starves_no_other(order: list[str]) -> None:
    queue, taken = WorkQueue(), []
    for key in order:
        queue.add(key, 0.0)
    for now_s in range(1, 2 * len(KEYS) + 1):
        queue.add(order[0], 0.0 + now_s)
        key = queue.take(float(now_s))
        assert key is not None
        taken.append(key)
        queue.done(key, float(now_s))
    assert all(taken.count(key) == 2 for key in KEYS)
