"""Iteration times of many guesses at once: what a fit without a profile asks for all the time.

A fit tries thousands of sets of operation times on one schedule; the solver's own longest
path takes one set at a time. Pure.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.graph.build import build
from joulecut_controller.graph.shape import kinds_of
from joulecut_controller.solve.compiled import exact
from joulecut_controller.workload import KINDS, Pipeline

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Half of them are the others' mirror images, so that what is linear in the luck cancels and only
# the surplus is left: known to a twentieth of it.
DRAWS = 12
SEED = 7  # any; always the same luck, so that two choices differ by their clocks alone
LANES = 16  # guesses side by side: 8 take as long for each, 32 a third longer
LUCK_MIN = 0.1  # of a mean time: no operation ends before it begins


class Paths:
    """Longest paths through one schedule. Raises ValueError where it cannot be laid out."""

    def __init__(self, pipeline: Pipeline) -> None:
        if pipeline.chunks > 1 or kinds_of(pipeline) != KINDS:
            raise ValueError(
                f"{pipeline.schedule} has parts that no report tells apart: it needs a profile"
            )
        graph = build(pipeline)
        before: list[list[int]] = [[] for _ in graph.operations]
        for first, second in graph.edges:
            before[second].append(first)
        kinds = [KINDS.index(operation.kind) for operation in graph.operations]
        self._which = np.array(
            [op.stage * len(KINDS) + kind for op, kind in zip(graph.operations, kinds, strict=True)]
        )
        self._begins = np.cumsum([0, *map(len, before)])
        self._before = np.array(list(itertools.chain(*before)), dtype=np.int64)
        self._last = np.setdiff1d(np.arange(len(before)), self._before)

    def iteration_s(self, times_s: Floats) -> Floats:
        """Seconds of an iteration for every guess; `times_s` has shape (stages, kinds, guesses),
        kinds in the order of `workload.KINDS`.
        """
        stages, kinds, guesses = times_s.shape
        rows = np.ascontiguousarray(times_s.reshape(stages * kinds, guesses))
        return _longest(rows, self._which, self._begins, self._before, self._last)

    def jittered_s(self, times_s: Floats, spread: float, draws: int = DRAWS) -> Floats:
        """Iterations in which every operation strays by that ratio: (draws, guesses)."""
        half = np.random.default_rng(SEED).standard_normal((draws // 2, len(self._which)))
        luck = np.maximum(LUCK_MIN, 1.0 + spread * np.concatenate([half, -half]))
        return _lucky(_rows(times_s), luck, self._which, self._begins, self._before)


def _rows(times_s: Floats) -> Floats:
    """A row of operation times for every guess, none where there is none."""
    stages, kinds, guesses = times_s.shape
    return np.ascontiguousarray(times_s.reshape(stages * kinds, guesses).T)


@exact
def _longest(times: Floats, which: Ints, begins: Ints, before: Ints, last: Ints) -> Floats:
    """The longest path of every guess, a column of operation times; operations in some order that
    puts those waited for first, `before[begins[i]:begins[i + 1]]` for operation i; nobody waits
    for the `last`. Some guesses at a time, side by side, or the processor waits for each sum.
    """
    guesses = times.shape[1]
    ends, own = np.empty((len(which), LANES)), np.zeros((len(times), LANES))
    longest = np.zeros(guesses)
    for first in range(0, guesses, LANES):
        lanes = min(LANES, guesses - first)
        own[:, :lanes] = times[:, first : first + lanes]
        for row in range(len(which)):
            end, mine = ends[row], own[which[row]]
            for lane in range(LANES):
                end[lane] = 0.0
            for at in range(begins[row], begins[row + 1]):
                done = ends[before[at]]
                for lane in range(LANES):
                    one, other = done[lane], end[lane]
                    end[lane] = one if one > other else other  # noqa: FURB136 (twice as slow)
            for lane in range(LANES):
                end[lane] += mine[lane]
        for row in last:
            for lane in range(lanes):
                longest[first + lane] = max(longest[first + lane], ends[row, lane])
    return longest


@exact
def _lucky(guesses: Floats, luck: Floats, which: Ints, begins: Ints, before: Ints) -> Floats:
    """The same by draw and guess, here a row of times, with each operation so many times as long,
    for every row of luck.
    """
    count = len(which)
    ends, longest = np.empty(count), np.zeros((len(luck), len(guesses)))
    for draw in range(len(luck)):
        for guess in range(len(guesses)):
            last = 0.0
            for row in range(count):
                begin = 0.0
                for at in range(begins[row], begins[row + 1]):
                    begin = max(begin, ends[before[at]])
                ends[row] = begin + guesses[guess, which[row]] * luck[draw, row]
                last = max(last, ends[row])
            longest[draw, guess] = last
    return longest
