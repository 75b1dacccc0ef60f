"""Longest paths of many schedules at once, against walking every path."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.graph import Graph, build
from joulecut_engine.graph.pipeline import Operation, Pipeline
from joulecut_engine.optimize.levels import levels_of


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 8))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    operations = tuple(Operation(0, i, "forward") for i in range(count))
    return Graph(operations, tuple(sorted(edges)), (tuple(range(count)),))


def _paths(graph: Graph) -> list[list[int]]:
    """Every path, to its end or not."""
    paths = [[i] for i in range(len(graph.operations))]
    for path in paths:
        paths += [[*path, second] for first, second in graph.edges if first == path[-1]]
    return paths


@given(graph=graphs(), seed=st.integers(0, 10**6), schedules=st.integers(1, 20))
def test_an_iteration_is_its_longest_path(graph: Graph, seed: int, schedules: int) -> None:
    levels, dice = levels_of(graph), np.random.default_rng(seed)
    duration_s = dice.uniform(0.0, 1.0, (len(graph.operations), schedules))
    expected = [max(sum(column[path]) for path in _paths(graph)) for column in duration_s.T]
    assert levels.iteration_times(duration_s) == pytest.approx(np.array(expected))
    time_s, taken = levels.critical(duration_s[:, 0].copy())
    assert time_s == pytest.approx(expected[0])
    assert taken @ duration_s[:, 0] == pytest.approx(expected[0])


def test_an_edge_that_leaves_the_order_is_refused() -> None:
    graph = build(Pipeline("1f1b", 2, 2))
    turned = Graph(graph.operations, (*graph.edges, (3, 1)), graph.order)
    with pytest.raises(ValueError, match=r"edge \(3, 1\) leaves the topological order"):
        levels_of(turned)
