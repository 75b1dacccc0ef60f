"""Curves from GPUs that never ran at the same clocks as each other, or only at some."""

import math

from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.estimate.correction import aligned

SLOPE = -0.9  # of the logarithm of time over that of the clock


@given(
    offsets=st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=5),
    spacing_mhz=st.integers(15, 60),
)
def test_slower_gpus_at_higher_clocks_do_not_flatten_the_curve(
    offsets: list[float], spacing_mhz: int
) -> None:
    """All share 1410 MHz; each GPU then runs for long at a clock of its own."""
    rows = []
    for i, offset in enumerate(offsets):
        for clock, weight in ((1410, 20.0), (1380 - i * spacing_mhz, 200.0)):
            rows.append((f"GPU-{i}", clock, SLOPE * math.log(clock) + offset, weight))
    level = aligned(rows)
    for clock, value in level.items():
        exact = SLOPE * math.log(clock / 1410)
        assert abs(value - level[1410] - exact) < 1e-4
