"""Spans: how long two stages take between the same two moments, and what that costs each.

Where stages hand over to each other microbatch by microbatch, two operations of the one and two
of the other run between the same two events. Strips and ladders (`solve.strips`) count what
that costs where they lie, and let the next stage do as it likes; but what the last stage forbids
the one before it, this one passes on to its own neighbour. Here every stage is a part of its
own, and each span has a price by length: one stage pays it, the other is paid it, so together
it is nothing and any prices prove a bound. They are found by passing on, stage after stage and
back, half of what each stage would lose by every length of a span beyond its least (min-marginals,
as max-sum diffusion does: Kovalevsky and Koval 1975, Werner 2007).

Times are whole ticks (`solve.ticks`, `solve.phases`), so that two stages mean the same length,
exactly.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Self

import numpy as np

from joulecut_engine.optimize.ascent import climbed, dual, through
from joulecut_engine.optimize.events import Events
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.network import Network
from joulecut_engine.optimize.phases import fitted, none
from joulecut_engine.optimize.pinned import charged, held, moments, pairs, ticked
from joulecut_engine.optimize.ticks import Ticks
from joulecut_engine.optimize.walks import walked

SHARE = 0.5  # of what is passed on; 1 ends lower, 0.3 takes longer
# Of what options cost apart, mean over rows: what loses more needs no ticks. To this comes what one
# clock is apart from the next, much where clocks are few.
CAP = 0.3
WALL = 1.0  # caps: what a length costs that a stage cannot have
TICKS_ASKED = 1000.0  # per mean duration, to see how work grows
TICKS_MAX = 8192.0  # of one row: memory
# Ticks met by ticks in one walk over all runs (a billion takes a tenth of a second), and how
# often to and fro: coarse ones first, to choose a flow by and because they settle as quickly.
WORK_FIRST, SWEEPS_ASKED, SWEEPS_FIRST = 1e8, 8, 24
WORK_MIDDLE, SWEEPS_MIDDLE = 5e8, 24  # a pass proves most of what one in the finest does
WORK_LAST, SWEEPS_LAST = 2e9, 20
SWEEPS_MORE = SWEEPS_LAST  # as many again where a gap is a little above its bar still
ASKS = 24  # flows tried on paths' own prices, at coarse ticks: a third of a second each
# Times the median price: what is pressed beyond that loses nothing whatever the tick, by phases.
PRICE_FAIR = 5.0
WORK_SPAN = 4e6  # of one span: small problems need no finer ticks
ROUND_OFF = 1e-9  # of what is added, and of the cap for each row


class Spans:
    """One network; `runs` are rows of a stage, each beginning when the one before is done."""

    def __init__(self, network: Network, events: Events, runs: Sequence[Sequence[int]]) -> None:
        self.network, self.ticks, self.events = network, Ticks(network), events
        self.rows = np.array([row for run in runs for row in run], dtype=np.int64)
        self.first = np.cumsum([0, *map(len, runs)])
        run_of = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
        self.follows = np.append(run_of[:-1] == run_of[1:], np.zeros(min(1, len(run_of)), np.bool_))
        meets: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i in range(len(self.rows) - 1):
            if run_of[i] == run_of[i + 1]:
                row, after = self.rows[i], self.rows[i + 1]
                meets[int(events.begin[row]), int(events.done[after])].append(i)
        pairs = [at[:2] for at in meets.values() if len(at) > 1 and run_of[at[0]] != run_of[at[1]]]
        self.pairs = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        self.span = np.full(len(self.rows), -1)
        self.sign = np.zeros(len(self.rows))
        for side, sign in ((0, 1.0), (1, -1.0)):
            self.span[self.pairs[:, side]] = np.arange(len(self.pairs))
            self.sign[self.pairs[:, side]] = sign
        other = np.full(len(self.rows), -1)
        other[self.pairs[:, 0]], other[self.pairs[:, 1]] = run_of[self.pairs.T[::-1]]
        self.down, self.up = (other >= 0) & (other < run_of), other > run_of
        self.alone = np.setdiff1d(np.arange(network.size), self.rows)
        self._last: tuple[Passing, Floats] | None = None  # where passing on ended
        curves = network.curves.distinct
        apart_j = [
            (CAP + 1.0 / max(len(c.time_s) - 1, 1)) * float(c.cost_j[0] - c.cost_j.min())
            for c in curves
        ]
        of_rows = np.array(apart_j)[network.curve]
        self.cap_j = float(of_rows[of_rows > 0.0].mean()) if (of_rows > 0.0).any() else 0.0

    def proven(
        self,
        flows_w: Sequence[Floats],
        time_price_w: float,
        deadline_s: float,
        enough_j: float,
        paths: Sequence[Ints] = (),
    ) -> tuple[float, Floats]:
        """A bound as `dual` gives one, and the flow of those asked that it was found at; -inf
        where nothing can be passed on. `enough_j` is not worth more work. Where `paths` are given,
        flow is moved onto and off them first."""
        best_j, best_w = -np.inf, flows_w[0]
        if not len(self.pairs) or self.cap_j <= 0.0:
            return best_j, best_w

        def coarse_of(link_w: Floats) -> _Level:
            tick_s = self._tick_s(link_w, WORK_FIRST)
            return _Level(self, link_w, tick_s, time_price_w, deadline_s)

        levels = [coarse_of(link_w) for link_w in flows_w]
        found_j = [level.passed(SWEEPS_ASKED, enough_j) for level in levels]
        best = int(np.argmax(found_j))
        best_w, coarse = flows_w[best], levels[best]
        del levels
        if paths:
            best_w = climbed(
                best_w, paths, lambda link_w: coarse_of(link_w).passed(SWEEPS_ASKED), ASKS
            )
            coarse = coarse_of(best_w)
        best_j, level = max(found_j[best], coarse.passed(SWEEPS_FIRST, enough_j)), coarse
        finer = [(WORK_MIDDLE, SWEEPS_MIDDLE), (WORK_LAST, SWEEPS_LAST)]
        for work, sweeps in finer if self._most() > WORK_MIDDLE else finer[1:]:
            if best_j >= enough_j:
                break
            tick_s = self._tick_s(best_w, work)
            fine = _Level(self, best_w, tick_s, time_price_w, deadline_s)
            fine.told(level)
            best_j, level = max(best_j, fine.passed(sweeps, enough_j)), fine
        self._last = (level, best_w) if best_j < enough_j else None
        return best_j, best_w

    def further(self, link_w: Floats, enough_j: float) -> float:
        """Goes on passing where the last bound was proven; -inf where that was another flow."""
        last, self._last = self._last, None
        if last is None or last[1] is not link_w:
            return -np.inf
        return last[0].passed(SWEEPS_MORE, enough_j)

    def _most(self) -> float:
        """Work of one walk beyond which ticks need not be finer."""
        return WORK_SPAN * 2 * len(self.pairs)

    def _tick_s(self, link_w: Floats, work: float) -> float:
        """So fine that one walk over all runs takes about so much work."""
        network, price_w = self.network, through(self.network, link_w)
        tick_s = float(network.fastest.mean()) / network.second / TICKS_ASKED
        offset_s = none(network).offset_s
        count = self.ticks.tables(self.rows, price_w, tick_s, self.cap_j, offset_s).counts
        met = float((count[:-1] * count[1:])[self.span[:-1] >= 0].sum())
        work = min(work, self._most())
        finer = min((work / met) ** 0.5, TICKS_MAX / float(count.max()))
        fair_w = np.minimum(price_w, PRICE_FAIR * float(np.median(price_w)))
        return self.ticks.fitting_s(fair_w, tick_s / finer, self.cap_j)


class Passing(ABC):
    """Prices of spans at one tick, passed on by runs; how one run passes is its own (`walk`).

    `_plain_j` is the bound without what runs lose (`_loss_j`, by run).
    """

    _plain_j: float
    _offset_s: Floats  # of a span: by how much it is longer than its ticks

    def __init__(self, spans: Spans, tick_s: float) -> None:
        self._spans, self._tick_s = spans, tick_s
        self._loss_j = np.zeros(len(spans.first) - 1)

    def _room(self, base: Ints, count: Ints) -> None:
        """For a price of every length, where a row takes `count` lengths from `base` ticks on."""
        pairs = self._spans.pairs
        self._base = (base[pairs] + base[pairs + 1]).min(axis=1)
        self._shift = np.zeros(len(base), dtype=np.int64)
        self._shift[pairs] = base[pairs] + base[pairs + 1] - self._base[:, None]
        ends = self._shift[pairs] + count[pairs] + count[pairs + 1]
        self._price = np.zeros((len(pairs), int(ends.max()) + 1))

    def told(self, coarser: Self) -> None:
        """Begins with another level's prices."""
        # Lengths are sums of two that were rounded down: the second tick lies beyond the true one.
        apart_s = coarser._offset_s - self._offset_s
        for k, price in enumerate(coarser._price):
            length_s = (self._base[k] + np.arange(self._price.shape[1]) + 2) * self._tick_s
            length = (length_s + apart_s[k]) / coarser._tick_s
            at = np.clip(np.floor(length) - coarser._base[k], 0, len(price) - 1).astype(np.int64)
            self._price[k] = price[at]

    def passed(self, sweeps: int, enough_j: float = np.inf) -> float:
        """The best bound met while passing on, up and down so many times."""
        runs, best_j = range(len(self._loss_j)), -np.inf
        for _ in range(sweeps):
            for run in reversed(runs):
                self.walk(run, up=False)
            for run in runs:
                self.walk(run, up=True)
            best_j = max(best_j, self._bound_j())
            if best_j >= enough_j:
                break
        return best_j

    @abstractmethod
    def walk(self, run: int, *, up: bool) -> None:
        """Passes on to runs after it (`up`) or before it, and notes what the run loses."""

    def _bound_j(self) -> float:
        """Valid after runs have passed on in one direction: who has given is given nothing."""
        added = float(self._loss_j.sum())
        off = float(np.abs(self._loss_j).sum()) + self._spans.cap_j * len(self._spans.rows)
        return self._plain_j + added - ROUND_OFF * off


class _Level(Passing):
    """One flow and one tick: tables, prices of spans, and what each run loses by them."""

    def __init__(
        self, spans: Spans, link_w: Floats, tick_s: float, time_price_w: float, deadline_s: float
    ) -> None:
        super().__init__(spans, tick_s)
        price_w = through(spans.network, link_w)
        near = spans.ticks.near(price_w, spans.cap_j)
        phases = fitted(spans.network, spans.events, link_w, near, tick_s)
        offset_s = phases.offset_s
        self._tables = spans.ticks.tables(spans.rows, price_w, tick_s, spans.cap_j, offset_s)
        self._pinned(phases.zero_s, deadline_s)
        plain_j, _ = dual(spans.network, link_w, time_price_w, deadline_s)
        waits_j = float(phases.short_s @ link_w)
        rounded_j = spans.ticks.given_j(spans.alone, price_w, tick_s, offset_s)
        self._plain_j = plain_j + waits_j + rounded_j
        self._room(self._tables.base, self._tables.counts)
        pairs = spans.pairs
        rows = spans.rows[pairs[:, 0]], spans.rows[pairs[:, 0] + 1]
        self._offset_s = offset_s[rows[0]] + offset_s[rows[1]]  # of both stages alike
        self._back = np.empty_like(self._tables.value)

    def _pinned(self, zero_s: Floats, deadline_s: float) -> None:
        """What is known of rows between moments that cannot move, one or two in a row."""
        spans, (base, value, count) = self._spans, self._tables
        when = moments(spans.network, spans.events, deadline_s)
        whole = ticked(when.early_s, zero_s, self._tick_s)
        pinned = whole == ticked(when.late_s, zero_s, self._tick_s)
        ticks = held(spans.events, spans.rows, pinned, whole)
        for i in np.flatnonzero(ticks >= 0):
            value[i, max(0, ticks[i] - base[i] + 1) : count[i]] = np.inf
        found = pairs(spans.events, spans.rows, spans.follows, pinned)
        if len(found.first):
            charged(
                spans.ticks.options, spans.network.curve[spans.rows], found, when, zero_s,
                self._tick_s, whole, spans.cap_j, base, value, count,
            )  # fmt: skip

    def walk(self, run: int, *, up: bool) -> None:
        spans, (_, value, count) = self._spans, self._tables
        gives = spans.up if up else spans.down
        rows = slice(spans.first[run], spans.first[run + 1])
        self._loss_j[run] = walked(
            value[rows], count[rows], spans.span[rows], spans.sign[rows], self._shift[rows],
            self._price, gives[rows], (SHARE, WALL * spans.cap_j), self._back[rows],
        )  # fmt: skip
