"""Shares: two stages that share a wait, and what each part of it costs each of them.

Where sends lie beside the work, two stages that meet may each wait, up to twice the duration
of a send between them (`solve.moments`). How much of it falls to whom is as free as how
long a span is: by the relaxation's prices it is often worth nothing, so each stage alone would
take what fits its own options best. As with spans (`solve.spans`) every stage is a part of its
own, and what two of them must agree on has a price that one pays and the other is paid: a span by
its length, a meeting by how much later its second moment comes than its first. Any prices prove a
bound. They are found by passing on, spans and meetings alike.

Counted from the first moment of a meeting to that of the next, only rows that end or begin in a
second moment have shares, and each share is at one end of one row of each stage. So a row's
table by length is its own, made longer or shorter by shares at their prices at both ends
(two min-plus convolutions), and the walk along a stage is that of spans.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np

from joulecut_engine.optimize import walks
from joulecut_engine.optimize.ascent import dual, through
from joulecut_engine.optimize.convolution import by_begin, by_end, shrunk, stretched
from joulecut_engine.optimize.events import Events
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.moments import Moments
from joulecut_engine.optimize.network import Network
from joulecut_engine.optimize.phases import EVEN, SURE, Arcs, placed
from joulecut_engine.optimize.spans import (
    PRICE_FAIR,
    SHARE,
    TICKS_ASKED,
    TICKS_MAX,
    WALL,
    Passing,
    Spans,
)

# Ticks met by ticks in one walk over all runs, and how often to and fro. Finer ticks prove a tenth
# more here, for four times the time.
WORK_FIRST, SWEEPS_ASKED, SWEEPS_FIRST = 1e8, 8, 16
WORK_LAST, SWEEPS_LAST = 3e8, 8
WORK_SPAN = 5e5  # of one span: the same for few of them, or small problems would take the longest
# Of what phases leave of the fastest option's time: a moment that both a row and a wait have to
# fit lies between what is sure for either.
MARGIN = 0.2 * SURE
NOTHING = np.zeros(1)  # prices where there is nothing to share


class Shares(Spans):
    """One network and its moments; asked as `Spans` are."""

    def __init__(self, network: Network, moments: Moments) -> None:
        begin, done = moments.begin.copy(), moments.done.copy()
        late, ends = moments.begins >= 0, moments.ends >= 0
        begin[late] = moments.meets.first[moments.begins[late]]
        done[ends] = moments.meets.first[moments.ends[ends]]
        super().__init__(network, Events(begin, done, moments.count), moments.runs)
        self.moments = moments
        self.begins, self.ends = moments.begins[self.rows], moments.ends[self.rows]
        self.kept = np.setdiff1d(np.arange(network.size), moments.folded)
        self.alone = np.setdiff1d(self.kept, self.rows)

    def proven(
        self,
        flows_w: Sequence[Floats],
        time_price_w: float,
        deadline_s: float,
        enough_j: float,
        paths: Sequence[Ints] = (),  # noqa: ARG002
    ) -> tuple[float, Floats]:
        """As `Spans.proven`, but that flow stays where it is: moved along stages or to and fro
        between two of them it proves no more here."""
        best_j, best_w = -np.inf, flows_w[0]
        if not len(self.pairs) or self.cap_j <= 0.0:
            return best_j, best_w
        ticks_s = [self.tick_s(link_w, WORK_FIRST) for link_w in flows_w]
        levels = [
            Level(self, link_w, tick_s, time_price_w, deadline_s)
            for link_w, tick_s in zip(flows_w, ticks_s, strict=True)
        ]
        found_j = [level.passed(SWEEPS_ASKED, enough_j) for level in levels]
        best = int(np.argmax(found_j))
        best_w, coarse = flows_w[best], levels[best]
        best_j, level = max(found_j[best], coarse.passed(SWEEPS_FIRST, enough_j)), coarse
        tick_s = self.tick_s(best_w, WORK_LAST)
        if best_j < enough_j and tick_s < ticks_s[best]:
            fine = Level(self, best_w, tick_s, time_price_w, deadline_s)
            fine.told(coarse)
            best_j, level = max(best_j, fine.passed(SWEEPS_LAST, enough_j)), fine
        self._last = (level, best_w) if best_j < enough_j else None
        return best_j, best_w

    def tick_s(self, link_w: Floats, work: float) -> float:
        """So fine that one walk over all runs takes about so much work."""
        network, moments, meets = self.network, self.moments, self.moments.meets
        price_w = through(network, link_w)
        tick_s = float(network.fastest[self.kept].mean()) / network.second / TICKS_ASKED
        table = self.ticks.tables(self.rows, price_w, tick_s, self.cap_j, moments.lag_s)
        wide = -(moments.waits.lag_s[meets.after] + moments.waits.lag_s[meets.before]) / tick_s
        count = table.counts.astype(np.float64)
        for at in (self.begins, self.ends):
            count[at >= 0] += wide[at[at >= 0]]
        met = float((count[:-1] * count[1:])[self.span[:-1] >= 0].sum())
        work = min(work, WORK_SPAN * 2 * len(self.pairs))
        finer = min((work / met) ** 0.5, TICKS_MAX / float(count.max()))
        fair_w = np.minimum(price_w, PRICE_FAIR * float(np.median(price_w[self.kept])))
        return self.ticks.fitting_s(fair_w, tick_s / finer, self.cap_j)


class Level(Passing):
    """One flow and one tick: tables, prices of spans and shares, what each run loses by them."""

    def __init__(
        self, shares: Shares, link_w: Floats, tick_s: float, time_price_w: float, deadline_s: float
    ) -> None:
        super().__init__(shares, tick_s)
        self._shares = shares
        network, moments = shares.network, shares.moments
        price_w = through(network, link_w)
        self.phase_s = phase_s = _phases(shares, link_w, price_w, tick_s)
        offset_s = moments.lag_s + phase_s[moments.begin] - phase_s[moments.done]
        self._tables = shares.ticks.tables(shares.rows, price_w, tick_s, shares.cap_j, offset_s)
        plain_j, _ = dual(network, link_w, time_price_w, deadline_s)
        waits, meets = moments.waits, moments.meets
        wait_s = waits.lag_s + phase_s[waits.tail] - phase_s[waits.head]
        whole = np.floor(wait_s / tick_s + EVEN)
        short_s = np.minimum(whole * tick_s - wait_s, 0.0)
        short_s[np.concatenate([meets.after, meets.before])] = 0.0  # what shares are charged
        waits_j = float(short_s @ link_w[waits.link])
        rounded_j = shares.ticks.given_j(shares.alone, price_w, tick_s, offset_s)
        self._plain_j = plain_j + waits_j + rounded_j
        # By how many ticks the second moment of a meeting comes later.
        self._least = whole[meets.before].astype(np.int64)
        self._most = -whole[meets.after].astype(np.int64)
        self._apart_s = phase_s[meets.second] - phase_s[meets.first]
        flow_w = link_w[waits.link]
        self._own_j, self._share = list[Floats](), list[Floats]()
        for k in range(len(self._least)):
            late_s = np.arange(self._least[k], self._most[k] + 1) * tick_s
            after, before = meets.after[k], meets.before[k]
            own_j = flow_w[after] * (-wait_s[after] - late_s)
            self._own_j.append(own_j + flow_w[before] * (late_s - wait_s[before]))
            self._share.append(np.zeros(len(late_s)))
        self._measure(phase_s)

    def _measure(self, phase_s: Floats) -> None:
        """Room for lengths: a row may be as much longer or shorter as its shares allow."""
        shares = self._shares
        base, count = self._tables.base.copy(), self._tables.counts.copy()
        late, ends = shares.begins >= 0, shares.ends >= 0
        base[late] += self._least[shares.begins[late]]
        base[ends] -= self._most[shares.ends[ends]]
        for at in (shares.begins, shares.ends):
            count[at >= 0] += (self._most - self._least)[at[at >= 0]]
        self._count, pairs = count, shares.pairs
        self._room(base, count)
        first, last = shares.rows[pairs[:, 0]], shares.rows[pairs[:, 0] + 1]
        self._offset_s = phase_s[shares.events.begin[first]] - phase_s[shares.events.done[last]]
        self._wall = WALL * shares.cap_j

    def told(self, coarser: Self) -> None:
        """Begins with another level's prices."""
        super().told(coarser)
        for k, share in enumerate(coarser._share):
            late_s = np.arange(self._least[k], self._most[k] + 1) * self._tick_s + self._apart_s[k]
            late = np.rint((late_s - coarser._apart_s[k]) / coarser._tick_s) - coarser._least[k]
            self._share[k] = share[np.clip(late, 0, len(share) - 1).astype(np.int64)]

    def walk(self, run: int, *, up: bool) -> None:
        """What a run loses. A meeting is given by the run whose row ends in its second moment on
        the way up, by the other on the way down, as spans are."""
        shares, price, rows = self._shares, self._price, range(*self._shares.first[run : run + 2])
        count, span = self._count[rows], shares.span[rows]
        gives = shares.up if up else shares.down
        value = [self._value(i) for i in rows]
        own, later, least = (np.empty(price.shape[1]) for _ in range(3))

        def priced(k: int) -> None:
            walks.priced(price[span[k]], shares.sign[rows[k]], self._shift[rows[k]], own, later)

        def joined(now: Floats, k: int, onto: int) -> Floats:
            """Over span k, to the row `onto` of it."""
            if span[k] < 0:
                return np.full(count[onto], now.min())
            out = np.empty(count[onto])
            walks.joined(now, np.zeros(count[onto]), own, later, out)
            return out

        beyond = [np.zeros(count[-1])]  # what comes after a row loses, by its length; last first
        for k in range(len(rows) - 2, -1, -1):
            if span[k] >= 0:
                priced(k)
            beyond.append(joined(beyond[-1] + value[k + 1], k, k))
        beyond.reverse()
        now = np.zeros(count[0])
        for k, i in enumerate(rows):
            if self._give(i, now + beyond[k], up=up):
                value[k] = self._value(i)
            now = now + value[k]
            if k == len(rows) - 1:
                break
            if span[k] >= 0:
                priced(k)
                if gives[i]:
                    walks.lengths(now, beyond[k + 1] + value[k + 1], own, least)
                    wall = (SHARE, self._wall)
                    walks.passed(least, wall, price[span[k]], shares.sign[i], self._shift[i])
                    priced(k)
            now = joined(now, k, k + 1)
        self._loss_j[run] = now.min()

    def _parts(self, i: int) -> tuple[Floats, Floats, Floats]:
        """A row's own table, and what its shares cost it at its end and at its begin."""
        begins, ends = self._shares.begins[i], self._shares.ends[i]
        own = self._tables.value[i, : self._tables.counts[i]]
        at_end = self._own_j[ends] + self._share[ends] if ends >= 0 else NOTHING
        return own, at_end, -self._share[begins] if begins >= 0 else NOTHING

    def _value(self, i: int) -> Floats:
        """A row's table by length between the moments that lengths are told by."""
        own, at_end, at_begin = self._parts(i)
        return shrunk(stretched(own, at_end), at_begin)

    def _give(self, i: int, rest: Floats, *, up: bool) -> bool:
        """Passes on half of what each share would lose beyond the least, `rest` being what the
        other rows lose; whether there is one."""
        begins, ends = self._shares.begins[i], self._shares.ends[i]
        number = ends if up else begins
        if number < 0:
            return False
        own, at_end, at_begin = self._parts(i)
        if up:
            found = at_end + by_end(rest, own, at_begin, len(at_end))
        else:
            found = at_begin + by_begin(rest, stretched(own, at_end), len(at_begin))
        over = SHARE * np.minimum(found - found.min(), self._wall)
        self._share[number] += -over if up else over
        return True


def _phases(shares: Shares, link_w: Floats, price_w: Floats, tick_s: float) -> Floats:
    """By moment; any are valid. As `phases.fitted`, with lags."""
    network, moments, rows = shares.network, shares.moments, shares.kept
    near, waits, folded = shares.ticks.near(price_w, shares.cap_j), moments.waits, moments.folded
    margin_s = MARGIN * float(network.fastest[rows].min()) / network.second
    counts = np.diff(near.first)
    lag_s = moments.lag_s + margin_s * (moments.lag_s > 0.0)
    time_s = near.time_s * (1.0 - SURE) + np.repeat(lag_s, counts)
    kept = np.repeat(np.isin(np.arange(network.size), rows), counts)
    sizes = np.concatenate([counts[rows], np.ones(len(waits.tail), dtype=np.int64)])
    arcs = Arcs(
        np.concatenate([moments.begin[rows], waits.tail]),
        np.concatenate([moments.done[rows], waits.head]),
        np.concatenate([[0], np.cumsum(sizes)]),
        np.concatenate([time_s[kept], waits.lag_s - margin_s * (waits.lag_s != 0.0)]),
        np.concatenate([near.weight_w[kept], link_w[waits.link]]),
    )
    sides = np.concatenate([arcs.tail, arcs.head])
    order = np.argsort(sides, kind="stable")
    at = np.searchsorted(sides[order], np.arange(moments.count + 1))
    fastest_s = network.fastest / network.second
    fastest_s[rows] *= 1.0 - SURE
    sent = network.tails[network.entering[network.enters[folded]]]
    fastest_s[folded] += np.where(moments.lag_s[sent] > 0.0, margin_s, -margin_s)
    ends_s, early_s = network.ends(fastest_s), np.zeros(moments.count)
    np.maximum.at(early_s, moments.done[rows], ends_s[rows])
    early_s[moments.begin[rows]] = network.starts(ends_s)[rows]
    early_s[1] = ends_s.max()
    early_s -= np.floor(early_s / tick_s) * tick_s
    starts_s = [early_s, np.zeros(moments.count)]
    lost = [placed(arcs, order % len(arcs.tail), at, 0, tick_s, one) for one in starts_s]
    return starts_s[int(np.argmin(lost))]
