"""Graphs from operations and edges: in waves, or the circle by name."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.graph import Circular, graph_of, longest_path
from joulecut_engine.graph.pipeline import Operation


def named(count: int) -> list[Operation]:
    return [Operation(0, 0, "forward", name=f"o{i}") for i in range(count)]


edges_of_six = st.sets(
    st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda e: e[0] != e[1]), max_size=12
)


def has_circle(edges: set[tuple[int, int]]) -> bool:
    """Nobody can go first in some order of all six: every order breaks an edge."""
    return not any(
        all(order.index(a) < order.index(b) for a, b in edges)
        for order in itertools.permutations(range(6))
    )


@given(edges_of_six)
def test_a_graph_or_a_circle(edges: set[tuple[int, int]]) -> None:
    operations = named(6)
    try:
        graph = graph_of(operations, edges, 1)
    except Circular as error:
        assert has_circle(edges)
        steps = itertools.pairwise([*error.circle, error.circle[0]])
        assert {(int(a.name[1]), int(b.name[1])) for a, b in steps} <= edges
        return
    place = {operation: i for i, operation in enumerate(graph.operations)}
    assert {(place[operations[a]], place[operations[b]]) for a, b in edges} == set(graph.edges)
    assert all(a < b for a, b in graph.edges)


@given(edges_of_six, st.lists(st.integers(1, 9), min_size=6, max_size=6))
def test_no_path_is_longer(edges: set[tuple[int, int]], seconds: list[int]) -> None:
    forward = {(min(edge), max(edge)) for edge in edges}
    graph = graph_of(named(6), forward, 1)
    lasts_s = [seconds[int(o.name[1])] for o in graph.operations]
    path = longest_path(graph, lasts_s)
    assert set(itertools.pairwise(path)) <= set(graph.edges)
    longest_s = max(
        sum(lasts_s[i] for i in chosen)
        for size in range(1, 7)
        for chosen in itertools.combinations(range(6), size)
        if set(itertools.pairwise(chosen)) <= set(graph.edges)
    )
    assert sum(lasts_s[i] for i in path) == longest_s


def test_a_long_circle_is_cut_short() -> None:
    edges = {(i, (i + 1) % 9) for i in range(9)}
    with pytest.raises(Circular, match=r"circle: (o\d -> ){4}5 more -> o\d$"):
        graph_of(named(9), edges, 1)
