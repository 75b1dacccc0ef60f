"""How late a plan under switching really runs when times jitter.

Not only operations vary then: a change is asked for when the operation before has ended, so the
operation that it catches varies too. Every draw is the timeline that is run (`switchmoves`) with
that draw's luck. What a clock does at once is kept: it comes `latency_s` after it was asked for.
Dwell is not judged here: where jitter makes a stretch too short, a change is asked a jot later.
"""

import numpy as np

from joulecut_engine.optimize.jitter import P95, Spread, Trials
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.switching import (
    Switching,
    limits_of,
    run_of,
    track_of,
)
from joulecut_engine.optimize.switchmoves import iterations


class SwitchTrials:
    """Plans under one kind of switching, run with the luck of `trials`."""

    def __init__(self, trials: Trials, switching: Switching) -> None:
        self.trials = trials
        problem = trials.problem
        self._track, self._limits = track_of(problem), limits_of(switching)
        self._run = run_of(self._track)
        link_of = {edge: link for link, edge in enumerate(problem.graph.edges)}
        heads = np.repeat(np.arange(len(self._track.stage)), np.diff(self._track.enters))
        links = zip(self._track.tails.tolist(), heads.tolist(), strict=True)
        self._edge: Ints = np.array([link_of.get(link, -1) for link in links], dtype=np.int64)
        self._row = trials.row

    def spread(self, asked: Ints) -> Spread:
        """What iterations really take that ask for these columns, one per operation."""
        times_s = self.times_s(asked)
        return Spread(float(times_s.mean()), float(np.quantile(times_s, P95)))

    def times_s(self, asked: Ints) -> Floats:
        """Iteration time of each draw, in seconds: the slowest sibling's. Infinite where an
        operation would run at a clock that it was not measured at."""
        times_s = np.zeros(self.trials.draws)
        for factor, delay_s in self.trials.luck():
            iterations(
                self._track,
                self._limits,
                asked,
                self._run,
                self._row,
                self._edge,
                factor,
                delay_s,
                times_s,
            )
        return times_s
