"""Averages over whole iterations, from counters that are read when each begins."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_sim.results import Record, Window


def _records(durations_s: list[float], energies_j: list[float], first: int = 0) -> list[Record]:
    made, begin_s, counter_j = [], 100.0, 5000.0
    for number, (duration_s, energy_j) in enumerate(zip(durations_s, energies_j, strict=True)):
        counters = (0.25 * counter_j, 0.75 * counter_j)
        made.append(
            Record(first + number, begin_s, duration_s, duration_s, energy_j, (1410,), counters)
        )
        begin_s += duration_s
        counter_j += energy_j
    return made


@given(st.lists(st.tuples(st.floats(0.1, 2.0), st.floats(1.0, 1e4)), min_size=2, max_size=40))
def test_the_mean_of_all_but_the_last_which_has_not_ended(made: list[tuple[float, float]]) -> None:
    durations, energies = [d for d, _ in made], [e for _, e in made]
    window = Window()
    for record in _records(durations, energies):
        window.add(record)
    count = len(made) - 1
    assert window.iterations == count
    assert window.end_s - window.begin_s == pytest.approx(sum(durations[:-1]))
    assert window.time_s == pytest.approx(sum(durations[:-1]) / count)
    assert window.energy_j == pytest.approx(sum(energies[:-1]) / count, rel=1e-6)


def test_nothing_is_claimed_before_a_whole_iteration() -> None:
    window = Window()
    assert (window.time_s, window.energy_j) == (None, None)
    window.add(_records([1.0], [10.0])[0])
    assert (window.time_s, window.energy_j) == (None, None)


def test_what_boards_used_while_the_machine_stood_still_is_no_iterations() -> None:
    window = Window()
    before = _records([1.0, 1.0, 1.0], [10.0, 10.0, 10.0])
    after = [
        replace(one, begin_s=one.begin_s + 5.0, counters_j=(one.counters_j[0] + 700.0, 0.0))
        for one in _records([1.0, 1.0], [10.0, 10.0], first=3)
    ]
    for record in (*before, *after):
        window.add(record)
    assert window.iterations == 3
    assert window.time_s == pytest.approx(1.0)
    assert window.energy_j == pytest.approx((10.0 + 10.0 + 2.5) / 3)


def test_a_gap_is_not_bridged() -> None:
    window = Window()
    for record in _records([1.0, 1.0, 1.0], [10.0, 10.0, 10.0]):
        window.add(record)
    window.cut()
    for record in _records([9.0, 2.0], [90.0, 20.0], first=50):
        window.add(record)
    assert window.iterations == 3
    assert window.time_s == pytest.approx((1.0 + 1.0 + 9.0) / 3)
    for record in _records([2.0, 2.0], [20.0, 20.0], first=0):  # a restarted job
        window.add(record)
    assert window.iterations == 4
