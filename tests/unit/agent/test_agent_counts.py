"""Counters, queues and joules of the agent: exact, monotonic, and bounded for ever."""

from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.feed import QUEUE_MAX, Feed
from joulecut_agent.job_energy import JOBS_MAX, JobEnergy
from joulecut_agent.tally import BUCKETS_S, KEYS_MAX, Tally
from joulecut_wire.messages import IterationReport


def _report(number: int) -> IterationReport:
    return IterationReport("demo", "GPU-a", 0, number, 1.0)


def test_a_slow_watcher_loses_the_oldest_and_is_told_how_many() -> None:
    feed = Feed()
    slow, quick = feed.subscribe(), feed.subscribe()
    for number in range(QUEUE_MAX + 7):
        feed.publish(_report(number))
        assert len(quick.drain()[0]) == 1
    reports, dropped = slow.drain()
    assert (len(reports), dropped) == (QUEUE_MAX, 7)
    assert [report.iteration for report in reports] == list(range(7, QUEUE_MAX + 7))
    assert slow.drain() == ((), 0)


def test_who_has_left_gets_nothing() -> None:
    feed = Feed()
    gone = feed.subscribe()
    feed.unsubscribe(gone)
    feed.publish(_report(1))
    assert gone.drain() == ((), 0)


counters = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e6), min_size=0), max_size=20
)
owners = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["red", "blue"]))


@given(counters, owners)
def test_joules_never_fall_and_a_reload_adds_none(
    ticks: list[dict[str, float]], jobs: dict[str, str]
) -> None:
    energy, before = JobEnergy(), {"red": 0.0, "blue": 0.0}
    last: dict[str, float] = {}
    grown = 0.0
    for tick in ticks:
        energy.add(tick, jobs)
        grown += sum(max(0.0, tick[u] - last[u]) for u in tick if u in last and u in jobs)
        last = tick
        now = {**before, **energy.joules()}
        assert all(now[job] >= before[job] for job in before)
        before = now
    assert abs(sum(before.values()) - grown) <= 1e-6 * max(1.0, grown)


def test_jobs_without_end_are_forgotten_in_order() -> None:
    energy = JobEnergy()
    for number in range(3 * JOBS_MAX):
        energy.add({"a": float(number)}, {"a": f"job{number}"})
    assert list(energy.joules()) == [f"job{n}" for n in range(2 * JOBS_MAX, 3 * JOBS_MAX)]


def test_counts_are_bounded_and_durations_fall_into_their_buckets() -> None:
    tally = Tally()
    for number in range(2 * KEYS_MAX):
        tally.count("errors", str(number))
        tally.time(f"call{number}", 0.0)
    assert len(tally.counts("errors")) == KEYS_MAX
    assert len(tally.durations()) == KEYS_MAX
    tally = Tally()
    for seconds in (*BUCKETS_S, 99.0):
        tally.time("read", seconds)
    [(call, counts, total_s)] = tally.durations()
    assert (call, counts) == ("read", [1] * (len(BUCKETS_S) + 1))
    assert total_s == sum(BUCKETS_S) + 99.0
