"""Jobs under one power budget do more than under equal limits, and keep it whatever dies."""

import pytest
from sharing import drawn, share


@pytest.mark.parametrize(("seed", "jobs", "ratio"), [(0, 2, 0.85), (3, 3, 0.65)])
def test_jobs_do_nearly_what_the_best_fixed_clocks_do(seed: int, jobs: int, ratio: float) -> None:
    done = share(drawn(seed, jobs), ratio, minutes=4.0)
    assert done.own >= done.equal, "equal limits are the floor"
    assert done.own >= 0.97 * done.best
    assert done.used >= 0.97
    assert (done.over, done.gone) == (0, 0)
