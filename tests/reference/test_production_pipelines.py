"""Two production jobs, operation by operation (OSDI'25, StragglerAnalysis), read in place."""

from typing import Any

import numpy as np
import pytest

uneven_work: Any = pytest.importorskip("uneven_work")  # pyarrow


def job(name: str) -> Any:
    try:
        return uneven_work.job(name)
    except FileNotFoundError:
        pytest.skip(f"no {uneven_work.DATA}: public traces are read in place")


@pytest.fixture(scope="module")
def slowed() -> Any:
    """4 stages x 4 pipelines; one worker was slowed on purpose."""
    return job("AR")


@pytest.fixture(scope="module")
def uneven() -> Any:
    """2 stages x 32 pipelines; sequences of different length."""
    return job("SE")


def test_no_iteration_is_refused(slowed: Any, uneven: Any) -> None:
    for one in (slowed, uneven):
        _, own = uneven_work.explained(one)
        assert np.abs(own - 1.0).max() < uneven_work.EXPLAINED_RATIO
