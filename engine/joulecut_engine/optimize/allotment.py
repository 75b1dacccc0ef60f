"""Allotments: who waits how much where two stages share a wait, fixed before the search.

Where sends lie beside the work, two stages that meet share up to twice a send's duration of
waiting (`solve.moments`). As long as that is open, a meeting is four moments, sends among them,
that have to be moved together: windows hold half as much time, and a search stops early. With
the shares fixed a meeting is one moment again, the operations before and after it last so much
longer, and sends are gone: half as many operations, all of which have a choice. Any plan for
that is one for the real problem, no later and no dearer; there it goes on from it.

Which shares: all waiting on the one side or all on the other, as the relaxation finds cheaper. In
a pipeline the last stages press most, as a rule, so the earlier ones wait.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.contraction import Contracted, merged
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.moments import Moments, moments_of
from joulecut_engine.optimize.problem import Goal, Solution
from joulecut_engine.optimize.relaxation import Relaxation
from joulecut_engine.optimize.rounding import GAP_SMALL

LEAST = 0.1  # of its own time: how little may be left of an operation that others wait for
# Passes with sends in the windows: these hold half as much time, and moves make up for less of
# it. A40 8 x 48 at 0 and 1 %, 1.2 million moves, four times 0.291, 0.357, twelve 0.288, 0.328 %.
ROLLS_MORE = 12


class Allotment:
    """One problem and the meetings of its stages; `share_s`, by meeting, says how much later the
    second moment of it comes than the first."""

    def __init__(self, computation: Computation, moments: Moments) -> None:
        self._problem, self._network = computation.problem, computation.network
        self._moments = moments
        waits, meets = moments.waits, moments.meets
        self.least_s = waits.lag_s[meets.before]
        self.most_s = -waits.lag_s[meets.after]
        network, count = self._network, len(self._problem.options)
        moment = np.concatenate([meets.first, meets.second])
        met = np.isin(moments.done, moment)
        met[moments.folded] = False
        inner = network.heads[network.leaves[moments.folded]]
        self._sends = moments.folded[np.isin(moments.begin[inner], moment)]
        self._lag_s = np.where(met, moments.lag_s, 0.0)
        self._begun = _rows(moments, meets.first), _rows(moments, meets.second)
        self._gone = np.zeros(count, dtype=np.bool_)
        self._gone[network.operation[self._sends]] = True
        self._after: list[set[int]] = [set() for _ in range(count)]
        for first, second in self._problem.graph.edges:
            self._after[first].add(second)
        self._dearer_j = np.zeros(count)
        for row in self._sends.tolist():
            send = int(network.operation[row])
            sender = int(network.operation[network.tails[network.entering[network.enters[row]]]])
            self._after[sender] = (self._after[sender] - {send}) | self._after[send]
            power_w = self._problem.blocking_power_w[self._problem.graph.operations[send].stage]
            self._dearer_j[sender] += self._problem.options[send][0].effective_cost_j(power_w)

    def fixed(self, share_s: Floats) -> Contracted | None:
        """None where an operation would have next to no time."""
        moments, network = self._moments, self._network
        longer_s = self._lag_s.copy()
        ends, begins = moments.ends >= 0, moments.begins >= 0
        longer_s[ends] -= share_s[moments.ends[ends]]
        longer_s[begins] += share_s[moments.begins[begins]]
        if (longer_s < (LEAST - 1.0) * network.fastest / network.second).any():
            return None
        return merged(self._problem, self._gone, self._after, longer_s[network.row], self._dearer_j)

    def looser(
        self, goal: Goal, found: Solution
    ) -> tuple[Contracted, Computation, Relaxation] | None:
        """All shares at their least or all at their most, whichever the relaxation finds cheaper;
        those of `found` where neither leaves time enough."""
        fits = list[tuple[Contracted, Computation, Relaxation]]()
        for share_s in (self.least_s, self.most_s, self.shares_s(found)):
            fixed = None if len(fits) and share_s is not self.most_s else self.fixed(share_s)
            inner = None if fixed is None else Computation(fixed.problem)
            if fixed and inner and inner.fastest_s <= goal.deadline_s:
                fits.append((fixed, inner, inner.relax(goal)))
        return min(fits, key=lambda one: one[2].bound_j, default=None)

    def shares_s(self, found: Solution) -> Floats:
        """Those of a plan that begins as early as it can."""
        start_s = np.array(found.start_s)[self._network.operation]
        first, second = self._begun
        shares_s: Floats = np.clip(start_s[second] - start_s[first], self.least_s, self.most_s)
        return shares_s


def allotment_of(computation: Computation) -> Allotment | None:
    """None where no wait is shared."""
    order = computation.problem.graph.order
    moments = moments_of(computation.network, [computation.network.row[list(o)] for o in order])
    if not len(moments.folded) or not len(moments.meets.first):
        return None
    return Allotment(computation, moments)


def allotted(
    computation: Computation, goal: Goal, hints: Sequence[Solution], rolls: int, moves: int
) -> Sequence[Solution]:
    """The best plan that hints and more passes of windows lead to, and one found with shares
    fixed; just the hints where no wait is shared. `rolls` and `moves` as for
    `Computation.solve`: one such search where that is enough, else some fifteen."""
    allotment = allotment_of(computation)
    if allotment is None:
        return hints
    relaxed = computation.relax(goal)
    found = computation.solve(goal, relaxed, hints, rolls)
    if found.gap <= GAP_SMALL:
        return (found,)
    found = computation.solve(goal, relaxed, (found,), ROLLS_MORE * rolls, moves)
    looser = None if found.gap <= GAP_SMALL else allotment.looser(goal, found)
    if looser is None:
        return (found,)
    fixed, inner, loose = looser
    plan = inner.solve(goal, loose, (), rolls, moves)
    plan = inner.solve(goal, inner.raised(goal, loose), (plan,), rolls, moves)
    # What bounds plans of these shares bounds no others.
    plan = fixed.outside(replace(plan, lower_bound_j=found.lower_bound_j), goal)
    # By itself: where the other is cheaper so far, nothing would be made of this one.
    return found, computation.solve(goal, relaxed, (plan,), rolls, moves)


def _rows(moments: Moments, moment: Ints) -> Ints:
    """The row that begins in each."""
    at = np.full(moments.count, -1)
    rows = np.setdiff1d(np.arange(len(moments.begin)), moments.folded)
    at[moments.begin[rows]] = rows
    found: Ints = at[moment]
    return found
