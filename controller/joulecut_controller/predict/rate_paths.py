"""Iteration times of many guesses at once: what a fit without a profile asks for all the time.

A fit tries thousands of sets of operation times on one schedule; the solver's own longest
path takes one set at a time. Pure.
"""

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.graph.build import build
from joulecut_controller.graph.shape import kinds_of
from joulecut_controller.workload import KINDS, Pipeline

Floats = NDArray[np.float64]

COLUMNS = 2048  # guesses at once: 25 MB for 1,536 operations


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
        self._rows = [
            (operation.stage, KINDS.index(operation.kind), waited)
            for operation, waited in zip(graph.operations, before, strict=True)
        ]

    def iteration_s(self, times_s: Floats) -> Floats:
        """Seconds of an iteration for every guess; `times_s` has shape (stages, kinds, guesses),
        kinds in the order of `workload.KINDS`.
        """
        pieces = range(0, times_s.shape[2], COLUMNS)
        return np.concatenate([self._longest(times_s[:, :, at : at + COLUMNS]) for at in pieces])

    def _longest(self, times_s: Floats) -> Floats:
        ends = np.empty((len(self._rows), times_s.shape[2]))
        for row, (stage, kind, waited) in enumerate(self._rows):
            end = ends[row]
            if not waited:
                end[:] = times_s[stage, kind]
                continue
            np.copyto(end, ends[waited[0]])
            for other in waited[1:]:
                np.maximum(end, ends[other], out=end)
            end += times_s[stage, kind]
        return np.asarray(ends.max(axis=0))
