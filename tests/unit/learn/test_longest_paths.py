"""Longest paths of many guesses at once."""

import numpy as np
import pytest

from joulecut_controller.learn.longest_paths import LongestPaths
from joulecut_engine.graph.pipeline import Pipeline


def test_many_longest_paths_at_once_are_each_the_longest_path() -> None:
    rng = np.random.default_rng(3)
    times = rng.uniform(0.5, 1.5, size=(3, 2, 5))
    together = LongestPaths(Pipeline("1f1b", 3, 6)).iteration_s(times)
    alone = [
        LongestPaths(Pipeline("1f1b", 3, 6)).iteration_s(times[:, :, i : i + 1]) for i in range(5)
    ]
    assert together == pytest.approx(np.concatenate(alone), rel=1e-12)
    same = LongestPaths(Pipeline("1f1b", 3, 6)).iteration_s(np.ones((3, 2, 1)))
    assert same[0] == pytest.approx(2.0 * (6 + 3 - 1))


def test_a_schedule_that_reports_cannot_tell_apart_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="zb-h1 has parts that no report tells apart"):
        LongestPaths(Pipeline("zb-h1", 2, 4))
