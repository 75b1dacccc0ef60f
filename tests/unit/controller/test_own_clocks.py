"""Own clocks of GPUs that are faster than the slowest of their stage: cheapest in time, by trying
all of them.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.plan.costs import FASTER_RATIO_MIN, own_clocks

CLOCKS_MHZ = (1005, 1110, 1200, 1305, 1410)
WAITING_W = 80.0


@given(
    ratios=st.lists(st.floats(0.8, 1.0), min_size=1, max_size=4),
    bound=st.floats(0.2, 1.0),
    seed=st.integers(0, 9),
)
def test_own_clocks_keep_the_pace_at_the_least_energy(
    ratios: list[float], bound: float, seed: int
) -> None:
    dice = np.random.default_rng(seed)
    clocks = np.array(CLOCKS_MHZ, dtype=float)
    pace_s = {
        kind: scale * (1.0 - bound + bound * clocks[-1] / clocks)
        for kind, scale in (("forward", 1.0), ("backward", 2.0))
    }
    power_w = {
        kind: 100.0 + 200.0 * (clocks / 1410) ** 2 * dice.uniform(0.9, 1.1, (len(ratios), 1))
        for kind in pace_s
    }
    allowed = [True, True, True, True, False]  # the default clock of an operator's bounds
    found = own_clocks(
        CLOCKS_MHZ,
        allowed,
        pace_s,
        power_w,
        ratios=np.array(ratios),
        blocking_power_w=WAITING_W,
    )
    for j, stage_mhz in enumerate(CLOCKS_MHZ):
        total = dict.fromkeys(pace_s, 0.0)
        for i, given_ratio in enumerate(ratios):
            faster = given_ratio < 1.0 - FASTER_RATIO_MIN
            own = found.mhz[i].get(stage_mhz, stage_mhz)
            assert faster or own == stage_mhz
            ratio = given_ratio if faster else 1.0
            k = CLOCKS_MHZ.index(own)

            def cost_j(at: int, kind: str, gpu: int = i, of: float = ratio) -> float:
                own_s = of * pace_s[kind][at]
                return float(own_s * (power_w[kind][gpu][at] - WAITING_W))

            in_time = [
                at
                for at in range(j + 1)
                if allowed[at]
                and all(ratio * s[at] <= s[j] * (1.0 + 1e-9) for s in pace_s.values())
            ]
            if faster and in_time:
                assert k in in_time
                best = min(sum(cost_j(at, kind) for kind in pace_s) for at in in_time)
                assert sum(cost_j(k, kind) for kind in pace_s) == pytest.approx(best)
            for kind in pace_s:
                total[kind] += cost_j(k, kind) + WAITING_W * float(pace_s[kind][j])
        for kind, joules in total.items():
            assert found.energy_j[kind][j] == pytest.approx(joules / len(ratios))
