"""How far apart the relaxation and any real plan must be: a bound with whole choices in it.

The relaxation lets an operation sit between two clocks. What a plan uses beyond its bound is,
to the joule, a sum of terms that are never negative (the flow's prices on options and waits):

    sum over operations of (cost + price * time - the least of that) + sum over links of flow * wait

So the least that any part of the graph can lose, everything outside left free, adds to the
bound, and parts that share no term add up. A part is a strip: the operations of one stage in
order (the spine) and, beside each two of them that follow each other, the one or two operations
of another stage that run between the same two events. A spine operation and the wait after it
take x seconds, two together leave their sides no more than the sum. Dynamic programming over
x in cells of h seconds, each cell at the least that is possible in it, finds a bound on the
strip's loss; a finer h only raises it.

Where two stages hand over microbatch by microbatch, no averaging over the iteration helps: two
real options have to fit one period. That loss is what this adds (A40 profile, 8 x 96: 0.1-0.2 %
of the energy); the bound on the whole is Lagrangian decomposition with the relaxation's prices.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.ascent import climbed, dual, paths_of, pressed, through
from joulecut_engine.optimize.cells import ASKS, CELLS_COARSE, WORK, Asked, Tried
from joulecut_engine.optimize.events import Events, events_of
from joulecut_engine.optimize.ladders import Ladder, Step, meetings
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.losses import Losses
from joulecut_engine.optimize.moments import moments_of
from joulecut_engine.optimize.network import Network
from joulecut_engine.optimize.parts import Part, Strip
from joulecut_engine.optimize.relaxation import Relaxation
from joulecut_engine.optimize.shares import Shares
from joulecut_engine.optimize.spans import Spans

WORK_LAST = 6e8  # with the best prices found
WORK_CHOICE = 1e9  # of all parts together, to choose among them
LAST = 2  # choices of parts that so much is spent on
HARDER = (0.15, 0.5)  # of the mean flow, through the last stage: what else passing on is tried at
# Of the bound: where passing on proves so much, cells never proved more, but for pressed flows.
TOLD_MUCH = 2e-4
PRESSED = 1e-6  # of the bound: what more pressure at the fastest deadline may cost it
PATHS_MAX = 64  # operations looked at for one side: a spine of a pipeline has a few neighbours


class Strips:
    """One problem's network; `lines` are the rows of each stage in order."""

    def __init__(self, network: Network, lines: Sequence[Ints]) -> None:
        self.network, self._lines = network, lines
        self._events: Events = events_of(network)
        begins: dict[int, list[int]] = defaultdict(list)
        for row, event in enumerate(self._events.begin.tolist()):
            begins[event].append(row)
        self._begins = begins
        self._spines = [run for line in lines for run in self._runs(line.tolist())]
        self._losses = Losses(network)
        self.mean_s = float(network.fastest.mean()) / network.second

    def raised(self, relaxed: Relaxation, time_price_w: float) -> Relaxation:
        """The same relaxation with the parts' losses in its bound, at the prices that prove
        most; these lead to better plans, too. `time_price_w` is the one it was made for."""
        if relaxed.link_w is None or not self._spines:
            return relaxed
        network, deadline_s = self.network, relaxed.deadline_s
        lines = [line for line in self._lines if len(line)]
        paths = paths_of(network, lines, relaxed.link_w)[::-1]  # the last stages press most
        best_j, best_w = relaxed.bound_j, relaxed.link_w
        rounds = [self._alone, [*self._ladders, *self._alone]]
        for parts in rounds if self._ladders else rounds[:1]:
            chosen = self._chosen(parts, best_w, [CELLS_COARSE] * len(parts))
            asked = Asked(self.network, self.mean_s, chosen, time_price_w, deadline_s)
            cells = asked.cells(best_w)
            climbed_w = climbed(best_w, paths, partial(asked.value_j, cells=cells), ASKS)
            for link_w in [best_w] if climbed_w is best_w else [best_w, climbed_w]:
                found_j = asked.finest_j(link_w, cells, WORK)
                if found_j > best_j:
                    best_j, best_w = found_j, link_w
        return self._proven(relaxed, best_j, best_w, time_price_w)

    def finer(
        self, relaxed: Relaxation, raised: Relaxation, time_price_w: float, enough_j: float
    ) -> Relaxation:
        """What `raised` came to, proven in finer cells; `enough_j` is not worth more of them.
        Its prices are for proofs: they may press harder than plans want to be pressed."""
        if relaxed.link_w is None or raised.link_w is None or not self._spines:
            return raised
        told = self._told(relaxed, raised, time_price_w, enough_j)
        deadline_s, tried = relaxed.deadline_s, list[Tried]()
        most_j = PRESSED * abs(relaxed.bound_j)
        flows_w, presses = [raised.link_w], False
        for link_w in (raised.link_w, relaxed.link_w):
            pressed_w = pressed(self.network, link_w, deadline_s, most_j)
            presses = presses or pressed_w is not link_w
            if pressed_w is not raised.link_w:
                flows_w.append(pressed_w)
        much = told.bound_j - raised.bound_j > TOLD_MUCH * abs(raised.bound_j)
        if told.bound_j >= enough_j or (much and not presses):
            return told
        # What ladders prove shows late, in cells that are dear: once without strips beside them.
        rounds = [self._alone, [*self._ladders, *self._alone], self._ladders]
        for parts in rounds if self._ladders else rounds[:1]:
            chosen = self._chosen(parts, flows_w[-1], self._fine(parts, flows_w[-1]))
            asked = Asked(self.network, self.mean_s, chosen, time_price_w, deadline_s)
            tried.append(asked.best(flows_w, CELLS_COARSE, WORK))
        best_j, best_w = told.bound_j, raised.link_w
        for one in sorted(tried, key=lambda one: -one.bound_j)[:LAST]:
            if max(best_j, one.bound_j) < enough_j:
                last = one.asked.best([one.link_w], CELLS_COARSE, WORK_LAST)
            else:
                last = one
            if last.bound_j > best_j:
                best_j, best_w = last.bound_j, last.link_w
        return self._proven(told, best_j, best_w, time_price_w)

    def climbed(
        self, relaxed: Relaxation, finer: Relaxation, time_price_w: float, enough_j: float
    ) -> Relaxation:
        """What `finer` came to, and prices of stages moved to where passing on proves most, or
        more passing on: ten to sixty seconds at 8 x 96."""
        if relaxed.link_w is None or finer.link_w is None or not self._spines:
            return finer
        most_j = PRESSED * abs(relaxed.bound_j)
        presses = pressed(self.network, finer.link_w, relaxed.deadline_s, most_j)
        if presses is not finer.link_w or isinstance(self._spans, Shares):
            # Where moments cannot move or waits are shared, flow moved by paths never proved more.
            bound_j = self._spans.further(finer.link_w, enough_j)
            return self._proven(finer, bound_j, finer.link_w, time_price_w)
        return self._told(relaxed, finer, time_price_w, enough_j, climb=True)

    def _told(
        self,
        relaxed: Relaxation,
        raised: Relaxation,
        time_price_w: float,
        enough_j: float,
        *,
        climb: bool = False,
    ) -> Relaxation:
        """What stages lose that pass on to each other what they cannot have."""
        assert relaxed.link_w is not None and raised.link_w is not None  # noqa: PT018
        lines, flows_w = [line for line in self._lines if len(line)], [raised.link_w]
        if raised.link_w is not relaxed.link_w:  # what strips climb to need not be best here
            flows_w.append(relaxed.link_w)
        paths = paths_of(self.network, lines, relaxed.link_w)
        most_j, last = PRESSED * abs(relaxed.bound_j), paths[-1:]
        harder_w = [pressed(self.network, link_w, relaxed.deadline_s, most_j) for link_w in flows_w]
        if harder_w[0] is not flows_w[0]:  # as much as is worth anything
            flows_w, last = harder_w, []
        for path in last:
            for share in HARDER:
                flows_w.append(raised.link_w.copy())
                flows_w[-1][path] += share * float(raised.link_w.mean())
        bound_j, link_w = self._spans.proven(
            flows_w, time_price_w, relaxed.deadline_s, enough_j, paths[::-1] if climb else ()
        )
        return self._proven(raised, bound_j, link_w, time_price_w)

    @cached_property
    def _spans(self) -> Spans:
        moments = moments_of(self.network, self._lines)
        if len(moments.folded) and len(moments.meets.first):
            return Shares(self.network, moments)
        return Spans(self.network, self._events, self._spines)

    def _fine(self, parts: list[Part], link_w: Floats) -> list[float]:
        """Cells to choose parts by, fewer where operations are many."""
        price_w, cell_s = through(self.network, link_w), self.mean_s / CELLS_COARSE
        work = sum(
            part.loss_j(price_w, cell_s)[1] * (part.most / CELLS_COARSE) ** part.power
            for part in parts
        )
        return [
            max(
                CELLS_COARSE, part.most * min(1.0, WORK_CHOICE / max(work, 1.0)) ** (1 / part.power)
            )
            for part in parts
        ]

    def _proven(
        self, relaxed: Relaxation, bound_j: float, link_w: Floats, time_price_w: float
    ) -> Relaxation:
        """The same where nothing more was proven."""
        if bound_j <= relaxed.bound_j:
            return relaxed
        _, back_w = dual(self.network, link_w, time_price_w, relaxed.deadline_s)
        return replace(
            relaxed,
            bound_j=bound_j,
            deadline_price_w=back_w,
            price_w=through(self.network, link_w),
            link_w=link_w,
        )

    def _chosen(self, parts: list[Part], link_w: Floats, cells: list[float]) -> list[Part]:
        """Parts that lose most together, no row in two: its loss would count twice. Each is
        asked in so many cells."""
        price_w = through(self.network, link_w)
        asked = zip(parts, cells, strict=True)
        gains = [part.loss_j(price_w, self.mean_s / each)[0] for part, each in asked]
        order = sorted(range(len(gains)), key=lambda k: (-gains[k], k))
        best, best_j = list[int](), -1.0
        for first in order:
            taken, used = [first], set(parts[first].rows)
            for k in order:
                if used.isdisjoint(parts[k].rows):
                    taken.append(k)
                    used |= parts[k].rows
            if (found_j := sum(gains[k] for k in taken)) > best_j:
                best, best_j = taken, found_j
        free = np.ones(self.network.size, dtype=np.bool_)
        chosen = [parts[k] for k in best]
        for part in chosen:
            free[list(part.rows)] = False
        for run in self._spines:  # what is left over, with fewer sides
            if free[run].all():
                chosen.append(Part(self._losses, self._strip(run, free)))
                free[list(chosen[-1].rows)] = False
        return chosen

    @cached_property
    def _alone(self) -> list[Part]:
        free = np.ones(self.network.size, dtype=np.bool_)
        return [Part(self._losses, self._strip(run, free)) for run in self._spines]

    @cached_property
    def _ladders(self) -> list[Part]:
        events, free = self._events, np.ones(self.network.size, dtype=np.bool_)
        passed = [[int(events.begin[run[0]]), *events.done[run].tolist()] for run in self._spines]
        found = list[Part]()
        for i, j in combinations(range(len(passed)), 2):
            for met in meetings(passed[i], passed[j]):
                first, second = self._spines[i], self._spines[j]
                used, steps = {*first, *second}, list[Step]()
                for a, b in met:
                    sides = [
                        self._side(passed[k][at - 1], passed[k][at + 1], used, free)
                        if 0 < at < len(self._spines[k])
                        else ()
                        for k, at in ((i, a), (j, b))
                    ]
                    used.update(*sides)
                    steps.append(
                        Step(
                            tuple(first[max(a - 1, 0) : a]),
                            tuple(second[max(b - 1, 0) : b]),
                            tuple(first[a : a + 1]),
                            tuple(second[b : b + 1]),
                            sides[0],
                            sides[1],
                        )
                    )
                found.append(Part(self._losses, Ladder(tuple(steps))))
        return found

    def _runs(self, line: list[int]) -> list[list[int]]:
        """A stage's rows where each begins when the one before is done."""
        events, runs = self._events, [line[:1]]
        for before, after in pairwise(line):
            if events.done[before] == events.begin[after]:
                runs[-1].append(after)
            else:
                runs.append([after])
        return [run for run in runs if len(run) > 1]

    def _strip(self, spine: list[int], free: NDArray[np.bool_]) -> Strip:
        """Sides of free rows, none of them twice."""
        done, sides, used = self._events.done, list[tuple[int, ...]](), set(spine)
        for first, second in pairwise(spine):
            side = self._side(int(self._events.begin[first]), int(done[second]), used, free)
            used.update(side)
            sides.append(side)
        return Strip(tuple(spine), tuple(sides))

    def _side(
        self, start: int, end: int, used: set[int], free: NDArray[np.bool_]
    ) -> tuple[int, ...]:
        """One or two rows from one event to another; none where there are no such."""
        done, looked = self._events.done, 0
        for row in self._begins[start]:
            if row in used or not free[row]:
                continue
            if done[row] == end:
                return (row,)
            for after in self._begins[int(done[row])]:
                looked += 1
                if after not in used and free[after] and done[after] == end:
                    return row, after
                if looked > PATHS_MAX:
                    return ()
        return ()
