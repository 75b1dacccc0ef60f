"""A fit that contradicts what windows showed at higher clocks is not what a window is dared on."""

import numpy as np

from joulecut_controller.plan.evidence import OVER_RATIO, Evidence, Facts
from joulecut_controller.policy.policy import Slo
from joulecut_controller.predict.rate import Ground, RateModel, Reading
from joulecut_controller.predict.rate_paths import Paths
from joulecut_controller.workload import Pipeline

TOP, CLOCKS = 1830, tuple(range(900, 1831, 15))
PIPELINE = Pipeline("1f1b", 4, 24)
# A simulated job of four stages with 108, 107, 94 and 121 % of the work: windows of 50 iterations,
# and how much longer they took than the first. The likeliest fit to all of them takes stage 1 for
# one that waits, and its rivals do so too.
WINDOWS = (
    ((1830, 1830, 1830, 1830), 0.0),
    ((1830, 1800, 1800, 1830), 0.0009),
    ((1800, 1770, 1770, 1830), 0.0021),
    ((1770, 1740, 1740, 1830), 0.0033),
    ((1725, 1695, 1695, 1830), 0.0051),
    ((1695, 1665, 1665, 1830), 0.0067),
    ((1665, 1635, 1635, 1830), 0.0080),
    ((1650, 1620, 1620, 1830), 0.0087),
    ((1620, 1590, 1590, 1800), 0.0209),
    ((1590, 1560, 1560, 1830), 0.0117),
    ((1560, 1545, 1530, 1830), 0.0200),
    ((1575, 1545, 1545, 1830), 0.0149),
    ((1620, 1590, 1515, 1800), 0.0222),
    ((1620, 1590, 1515, 1785), 0.0276),
    ((1650, 1515, 1620, 1830), 0.0223),
    ((1545, 1590, 1590, 1800), 0.0230),
    ((1620, 1590, 1500, 1800), 0.0221),
    ((1620, 1590, 1485, 1800), 0.0225),
    ((1620, 1590, 1470, 1785), 0.0281),
)
ASKED = (1635, 1500, 1485, 1815)  # takes 3.38 % longer; nowhere above (1650, 1515, 1620, 1830)
BASE_S, SPREAD, BUDGET = 0.16, 0.0007, 0.03


def test_what_took_long_at_higher_clocks_is_not_taken_to_be_quick_at_lower_ones() -> None:
    readings = tuple(
        Reading(clocks, 50, BASE_S * (1.0 + slower), SPREAD * BASE_S, (40.0,) * 4)
        for clocks, slower in WINDOWS
    )
    ground = Ground(PIPELINE, (TOP,) * 4, TOP, 90.0)
    model = RateModel(ground, readings, Paths(PIPELINE))
    known = Evidence(
        Facts(ground, (CLOCKS,) * 4, WINDOWS[-1][0], Slo(max_slowdown=BUDGET), 50, (0,) * 4),
        readings,
        model,
    )
    rows = np.array([ASKED], dtype=np.float64)
    seen_s = BASE_S * (1.0 + dict(WINDOWS)[(1650, 1515, 1620, 1830)])
    told_s = float(model.time_s(rows)[0])
    print(f"fit {told_s / BASE_S - 1.0:+.4f}, worst {known.worst_s(rows)[0] / BASE_S - 1.0:+.4f}")
    assert told_s < seen_s * 0.997  # the fit is as wrong as it was then
    assert known.high_s(ASKED) > seen_s
    assert known.worst_s(rows)[0] > BASE_S * 1.0338  # of what it took
    assert known.worst_s(rows)[0] > known.deadline_s * (1.0 + OVER_RATIO)
    assert not known.bearable(rows)[0]
