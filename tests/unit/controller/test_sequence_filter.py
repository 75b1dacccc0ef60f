"""Reports out of their turn: refused and counted, and never in a window."""

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.observe.iteration_stats import IterationStats, Measured
from joulecut_controller.observe.sequence_filter import NEAR, RESTART_IN_ROW, SequenceFilter
from joulecut_controller.ports import ArrivedReport
from joulecut_controller.view import GpuView
from joulecut_wire.messages import GpuDescription, GpuSnapshot, IterationReport, OperationReport

UUIDS = ("a", "b", "c")
STAGES = tuple((uuid,) for uuid in UUIDS)
LAG_S = 0.2
TAKES_S = 0.1


def reported(uuid: str, iteration: int, at_s: float, duration_s: float = TAKES_S) -> ArrivedReport:
    work = (OperationReport("forward", 4, 0.4 * duration_s),)
    return ArrivedReport(
        IterationReport("job", uuid, UUIDS.index(uuid), iteration, duration_s, work, None), at_s
    )


def numbers(sequence: SequenceFilter, *asked: int, uuid: str = "a") -> list[int]:
    taken = sequence.taken([reported(uuid, n, 0.0) for n in asked], UUIDS)
    return [one.report.iteration for one in taken]


def looked_at(stats: IterationStats, now_s: float, reports: list[ArrivedReport]) -> Measured:
    gpus = {
        uuid: GpuView(
            GpuDescription(uuid, i, "sim", (900, 1410)),
            "n:1",
            "n",
            GpuSnapshot(uuid, energy_j=200.0 * now_s, clock_sm_mhz=1410),
            0.0,
        )
        for i, uuid in enumerate(UUIDS)
    }
    return stats.fold(STAGES, reports, gpus, now_s)[0]


def life(stats: IterationStats, seconds: range, strays: dict[int, list[ArrivedReport]]) -> Measured:
    """Ten iterations a second of all three GPUs, told in turn; `strays` come between."""
    for second in seconds:
        reports: list[ArrivedReport] = []
        for tenth in range(1, 11):
            at_s, number = second - 1 + 0.1 * tenth, 10 * second + tenth
            reports += [reported(uuid, number, at_s) for uuid in UUIDS]
            reports += strays.get(number, [])
        measured = looked_at(stats, float(second), reports)
    return measured


def test_duplicate_and_late_reports_are_refused_and_counted() -> None:
    sequence = SequenceFilter()
    assert numbers(sequence, 5, 6, 6, 5, 7) == [5, 6, 7]
    assert sequence.refused == {"duplicate": 1, "reordered": 1}


def test_a_restarted_job_counts_on_from_its_third_report() -> None:
    sequence = SequenceFilter()
    assert numbers(sequence, 900, 0, 1, 2, 3) == [900, *range(RESTART_IN_ROW - 1, 4)]
    assert numbers(sequence, 2, 2, 1) == []  # an echo does not count on


def test_gpus_have_their_own_turns_and_strangers_none() -> None:
    sequence = SequenceFilter()
    assert numbers(sequence, 5, uuid="a") == numbers(sequence, 5, uuid="b") == [5]
    assert list(sequence.taken([reported("c", 5, 0.0)], ("a", "b"))) == []
    assert not sequence.refused


@given(st.lists(st.integers(0, 40), max_size=80))
def test_each_report_is_taken_or_counted(asked: list[int]) -> None:
    sequence = SequenceFilter()
    assert len(numbers(sequence, *asked)) + sum(sequence.refused.values()) == len(asked)


def _old_again() -> Iterator[tuple[int, list[ArrivedReport]]]:
    """A queue of one GPU is told again beside its live reports: ten times as long, all over."""
    for number in range(300, 360):
        again = [reported("a", 4 * (number - 300) + k, 0.1 * number - 1.0, 1.0) for k in range(4)]
        yield number, again


def _from_the_future() -> Iterator[tuple[int, list[ArrivedReport]]]:
    for number in range(300, 360):
        yield number, [reported("a", 5_000_000 + number, 0.1 * number - 1.0, 0.01)]


def test_old_and_future_reports_of_one_gpu_change_no_window() -> None:
    for strays, reason in ((_old_again(), "reordered"), (_from_the_future(), "apart")):
        stats = IterationStats(lag_s=LAG_S)
        before = life(stats, range(1, 30), {})
        assert before.baseline is not None
        assert not before.refused
        after = life(stats, range(30, 45), dict(strays))
        for window in (after.baseline, after.current):
            assert abs(window.time_mean_s / TAKES_S - 1.0) < 1e-9
        assert dict(after.refused)[reason] > 0


def test_one_silent_gpu_and_one_lost_report_do_not_stop_the_count() -> None:
    sequence = SequenceFilter()
    for number in range(10):
        for uuid in UUIDS:
            numbers(sequence, number, uuid=uuid)
    assert not sequence.apart(5, ("a", "b"))  # c was there and is near: its report was lost
    for number in range(10, 10 + 4 * NEAR):
        for uuid in ("a", "b"):
            numbers(sequence, number, uuid=uuid)
        assert not sequence.apart(number, ("a", "b"))  # c stopped
    assert not sequence.refused


def test_a_job_may_tell_by_one_rank_alone() -> None:
    stats = IterationStats(lag_s=LAG_S)
    measured: Any = None
    for second in range(1, 20):
        reports = [reported("b", 10 * second + t, second - 1 + 0.1 * t) for t in range(1, 11)]
        measured = looked_at(stats, float(second), reports)
    assert measured.current.iterations > 30
    assert not measured.refused
