"""The best step of one group or two, against trying out every one of them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.optimize.choice_search import REACH, descent, pair_move, single_move


def _value(
    paths: np.ndarray, cost_j: np.ndarray, choice: np.ndarray, limit_s: float, price_w: float
) -> float:
    group = np.arange(len(choice))
    time_s = max(0.0, float(paths[group, choice].sum(axis=0).max()))
    late = time_s > limit_s
    return math.inf if late else float(cost_j[group, choice].sum()) + price_w * time_s


@given(
    seed=st.integers(0, 10**6),
    groups=st.integers(1, 4),
    width=st.integers(1, 20),
    known=st.integers(1, 5),
    slack=st.sampled_from([0.93, 1.07, 1.5]),  # no step ends at the deadline to the last bit
    price_w=st.sampled_from([0.0, 3.0]),
)
def test_no_other_step_is_better(
    seed: int, groups: int, width: int, known: int, slack: float, price_w: float
) -> None:
    dice = np.random.default_rng(seed)
    paths = dice.uniform(0.5, 2.0, (groups, width, known))
    cost_j = dice.uniform(-5.0, 5.0, (groups, width))
    cost_j[dice.random((groups, width)) < 0.1] = np.inf  # shorter menus are padded so
    choice = dice.integers(0, width, groups)
    group = np.arange(groups)
    cost_j[group, choice] = 1.0
    sums_s = paths[group, choice].sum(axis=0)
    limit_s = slack * float(sums_s.max())
    told = (paths, sums_s, cost_j, float(groups), choice, limit_s, price_w, math.inf)

    def best(moved: list[np.ndarray]) -> float:
        return min(_value(paths, cost_j, there, limit_s, price_w) for there in moved)

    singles = []
    for at, to in itertools.product(range(groups), range(width)):
        singles.append(choice.copy())
        singles[-1][at] = to
    value, at, to = single_move(*told)
    moved = choice.copy()
    moved[at] = to
    assert value == pytest.approx(best(singles))
    assert value == pytest.approx(_value(paths, cost_j, moved, limit_s, price_w))

    near = range(-REACH, REACH + 1)
    doubles: list[np.ndarray] = []
    for first, second in itertools.combinations(range(groups), 2):
        for step, other in itertools.product(near, near):
            there = choice.copy()
            there[first] += step
            there[second] += other
            if there.min() >= 0 and there.max() < width:
                doubles.append(there)
    value, at, to, other_at, other_to = pair_move(*told)
    moved = choice.copy()
    moved[at], moved[other_at] = to, other_to
    if doubles:
        assert value == pytest.approx(best(doubles))
    if value < math.inf:
        assert value == pytest.approx(_value(paths, cost_j, moved, limit_s, price_w))
    else:
        assert moved.tolist() == choice.tolist()

    now = _value(paths, cost_j, choice, limit_s, price_w)
    start = choice if now < math.inf else np.zeros(groups, dtype=np.int64)
    trail, last = descent(paths, known, cost_j, start, limit_s, price_w, 1e-12)
    passed = [_value(paths, cost_j, one, limit_s, price_w) for one in trail]
    assert passed[1:] == sorted(passed[1:], reverse=True)
    if now < math.inf:
        assert last == pytest.approx(passed[-1])
        steps = [*singles, *doubles] if len(trail) == 1 else singles
        assert passed[-1] <= best(steps) + 1e-9
