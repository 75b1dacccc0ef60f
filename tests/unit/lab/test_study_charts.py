"""The study's charts: every measured point is drawn, and a best clock at an end is said."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from study_rows import ROW

from joulecut_engine.panel import POINTS_MAX, Line, Mark, Panel, figure
from joulecut_lab.study.charts import best_clocks, u_curves
from joulecut_lab.study.row import Row

CLOCKS = (600, 750, 900, 1050, 1200)


def _curve(sequence: int, best_mhz: int) -> list[Row]:
    """Faster with every clock; of least energy at one of them."""
    found = []
    for clock in CLOCKS:
        time_s = 0.001 * sequence / clock
        energy_j = 0.2 * (1.0 + abs(clock - best_mhz) / 1000.0)
        one = replace(ROW, sequence=sequence, clock_asked_mhz=clock, clock_mhz=float(clock))
        power_w = energy_j / time_s
        found.append(replace(one, time_s=time_s, power_w=power_w, energy_j=energy_j))
    return found


@pytest.mark.parametrize("best", CLOCKS)
def test_a_best_clock_at_an_end_of_the_sweep_is_marked(best: int) -> None:
    rows = _curve(128, best) + _curve(512, 900)
    (panel,) = best_clocks(rows)
    assert panel.x_ticks == (128, 512)
    marks = [item.at for item in panel.items if isinstance(item, Mark)]
    assert marks == ([(128.0, float(best))] if best in {CLOCKS[0], CLOCKS[-1]} else [])


def test_many_lengths_are_not_all_named() -> None:
    rows = [row for sequence in range(100, 1000, 100) for row in _curve(sequence, 900)]
    (panel,) = best_clocks(rows)
    assert panel.x_ticks == ()


@given(best=st.sampled_from(CLOCKS))
def test_every_point_of_a_curve_is_drawn_and_both_clocks_are_marked(best: int) -> None:
    (panel,) = u_curves(_curve(512, best))
    (axes,) = figure([panel]).axes
    curve, *marks = axes.lines
    assert len(curve.get_xdata()) == len(CLOCKS)
    assert curve.get_marker() == "."
    assert [mark.get_xdata()[0] for mark in marks] == [CLOCKS[-1], best]  # fastest, least energy


@given(count=st.integers(2, 3 * POINTS_MAX))
@settings(max_examples=25)
def test_points_of_a_dense_curve_are_left_to_the_line(count: int) -> None:
    points = tuple((float(i), float(i % 7)) for i in range(count))
    (axes,) = figure([Panel("t", "x", "y", (Line("a", "ours", points),))]).axes
    assert axes.lines[0].get_marker() == ("." if count <= POINTS_MAX else "")
