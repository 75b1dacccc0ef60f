"""Reports as plain values: an interval is printed as wide as it is."""

import math

from hypothesis import given
from hypothesis import strategies as st

from joulecut_cli.report.table import spread


@given(
    mid=st.floats(-1e9, 1e9), half=st.floats(0.0, 1e9), factor=st.sampled_from([1.0, -1.0, 100.0])
)
def test_a_printed_interval_says_what_it_holds(mid: float, half: float, factor: float) -> None:
    text = spread({"mid": mid, "low": mid - half, "high": mid + half}, factor)
    middle, _, around = text.partition(" ± ")
    width = (mid + half - (mid - half)) / 2.0 * abs(factor)
    assert not middle.startswith("-0") or float(middle) != 0.0
    assert math.isclose(float(around), width, rel_tol=0.17, abs_tol=1e-6)
    assert abs(float(middle) - mid * factor) <= max(0.51 * width, abs(mid * factor) * 1e-3, 1e-6)
