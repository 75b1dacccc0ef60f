"""Counters and queues of the agent: exact, monotonic, and bounded for ever."""

from joulecut_agent.counters import BUCKETS_S, KEYS_MAX, Counters
from joulecut_agent.jobs.report_queue import QUEUE_MAX, ReportQueue
from joulecut_wire.messages import IterationReport


def _report(number: int) -> IterationReport:
    return IterationReport("demo", "GPU-a", 0, number, 1.0)


def test_a_slow_watcher_loses_the_oldest_and_gets_their_number() -> None:
    report_queue = ReportQueue()
    slow, quick = report_queue.subscribe(), report_queue.subscribe()
    for number in range(QUEUE_MAX + 7):
        report_queue.publish(_report(number))
        assert len(quick.drain()[0]) == 1
    reports, dropped = slow.drain()
    assert (len(reports), dropped) == (QUEUE_MAX, 7)
    assert [report.iteration for report in reports] == list(range(7, QUEUE_MAX + 7))
    assert slow.drain() == ((), 0)


def test_who_has_left_gets_nothing() -> None:
    report_queue = ReportQueue()
    gone = report_queue.subscribe()
    report_queue.unsubscribe(gone)
    report_queue.publish(_report(1))
    assert gone.drain() == ((), 0)


def test_counts_are_bounded_and_durations_fall_into_their_buckets() -> None:
    counters = Counters()
    for number in range(2 * KEYS_MAX):
        counters.count("errors", str(number))
        counters.time([(f"call{number}", 0.0)])
    assert len(counters.counts("errors")) == KEYS_MAX
    assert len(counters.durations()) == KEYS_MAX
    counters = Counters()
    for seconds in (*BUCKETS_S, 99.0):
        counters.time([("read", seconds)])
    [(call, counts, total_s)] = counters.durations()
    assert (call, counts) == ("read", [1] * (len(BUCKETS_S) + 1))
    assert total_s == sum(BUCKETS_S) + 99.0
