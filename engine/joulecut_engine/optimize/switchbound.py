"""How little energy any plan can use whose clocks change only so often.

Without limits the relaxation's bound holds for these plans too, and where changes are few it is
too low. Any balanced flow through the graph proves a better one (Lagrange): a path is no longer
than the iteration, so time can be charged to operations at the flow through them, and then every
GPU may choose on its own, as cheaply as its limit of changes allows (`stretches.cheapest`).
Beginning at the relaxation's flow, more of it is sent through paths that turn out too long.

What late arrival and dwell forbid is left out: a change that lands later than asked gives clocks
in the same order with no more changes, and a mixture of two clocks within an operation costs
no less than the better of both there. The stop of a change counts where it can be placed, that
is where none comes late. So the bound holds whatever they are.
"""

from dataclasses import dataclass

import numpy as np

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.relaxation import ROUND_OFF
from joulecut_engine.optimize.stretches import LAYERS_MAX, cheapest
from joulecut_engine.optimize.switching import Switching, Track

SPLITS = 60  # passes that spread flow through operations over links: within 1 % of it
STEP, STEP_MIN = 0.3, 1e-4  # share of the flow that is sent another way
SCALES = (1.1, 0.9)


@dataclass(frozen=True, slots=True)
class Charge:
    """A flow, what every operation is charged by it, and what the cheapest choice then is."""

    link: Floats
    price_w: Floats  # by operation
    value_j: float  # the bound on sum of effective cost + price of time
    asked: Ints  # columns by operation


class SwitchBound:
    """One problem under one limit of changes."""

    def __init__(self, track: Track, switching: Switching, fastest_s: float) -> None:
        self._track, self._switching, self._fastest_s = track, switching, fastest_s
        self._stop_s = switching.cost_s if switching.punctual else 0.0
        count = len(track.stage)
        heads = np.repeat(np.arange(count), np.diff(track.enters))
        roots = np.flatnonzero(np.diff(track.enters) == 0)
        leaves = np.setdiff1d(np.arange(count), track.tails)
        tails = np.concatenate([np.full(len(roots), -1), track.tails, leaves])
        heads = np.concatenate([roots, heads, np.full(len(leaves), count)])
        by_tail = np.argsort(tails, kind="stable")
        self._tails, self._heads = tails[by_tail], heads[by_tail]
        self._leaves = np.searchsorted(self._tails, np.arange(-1, count + 1))
        own = (self._tails >= 0) & (self._heads < count)
        own &= track.before[np.minimum(self._heads, count - 1)] == self._tails
        self._own = np.full(count, -1)  # the link from the operation before on the same GPU
        self._own[self._heads[own]] = np.flatnonzero(own)
        self.cost_j, self.time_s = _tables(track)
        self._aside = np.setdiff1d(np.arange(count), track.line)

    def most(self, deadline_s: float) -> int:
        """Changes that the limit and the dwell allow; a single one is none, since it must be
        undone before the next iteration."""
        most = self._switching.max_per_iteration
        if self._switching.min_dwell_s > 0.0:
            most = min(most, int(deadline_s / self._switching.min_dwell_s * (1 + 1e-6)))
        return 0 if most < 2 else most

    def flow_of(self, price_w: Floats) -> Floats:
        """A balanced flow on links that goes through operations about as `price_w` says."""
        count = len(self._track.stage)
        link = np.ones(len(self._tails))
        into, out = self._heads < count, self._tails >= 0
        for _ in range(SPLITS):
            for inner, end in ((into, self._heads), (out, self._tails)):
                at = np.where(inner, end, 0)
                now = np.bincount(at[inner], link[inner], count)
                ratio = np.divide(price_w, now, out=np.zeros(count), where=now > 0.0)
                link = np.where(inner, link * ratio[at], link)
        return _balanced(self._heads, self._leaves, link)

    def charge(self, link: Floats, deadline_s: float, time_price_w: float) -> Charge:
        """The bound that a balanced flow proves."""
        count = len(self._track.stage)
        through = np.bincount(self._heads, link, count + 1).astype(np.float64)
        price_w, total_w = through[:count], float(through[count])
        change_j = self.changes_j(link)
        most = self.most(deadline_s)
        sums, asked = self.walk(price_w, change_j, most)
        aside = self._aside
        sums.append(float((self.cost_j[aside, 0] + price_w[aside] * self.time_s[aside, 0]).sum()))
        spare_w = time_price_w - total_w
        sums.append(spare_w * (deadline_s if spare_w < 0.0 else self._fastest_s))
        slack = ROUND_OFF * sum(map(abs, sums)) * (1 + np.log2(1 + count))
        return Charge(link, price_w, sum(sums) - slack, asked)

    def changes_j(self, link: Floats) -> Floats:
        """What a change before each operation costs under a flow, as far as that is certain."""
        stopped_w = np.where(self._own >= 0, link[np.maximum(self._own, 0)], 0.0)
        return self._switching.cost_j + self._stop_s * stopped_w

    def walk(
        self,
        price_w: Floats,
        change_j: Floats,
        most: int,
        free: Ints | None = None,
        tied: Ints | None = None,
    ) -> tuple[list[float], Ints]:
        """What each stage would choose under prices, and what it pays (infinite where it has no
        choice). By operation, `free[i]` is where in its line a change may follow one at i; by
        stage, `tied` is the clock that the iteration begins and ends with."""
        track, sums = self._track, []
        asked: Ints = np.zeros(len(track.stage), dtype=np.int64)
        for stage, columns in enumerate(track.columns):
            line = track.line[track.line_at[stage] : track.line_at[stage + 1]]
            if not len(line):
                continue
            charged = (
                self.cost_j[line, :columns] + price_w[line, None] * self.time_s[line, :columns]
            )
            charged = np.where(np.isfinite(self.time_s[line, :columns]), charged, np.inf)
            next_k = np.arange(1, len(line) + 1) if free is None else free[line]
            counted = most <= LAYERS_MAX
            value, asked[line] = cheapest(
                charged,
                change_j[line],
                most if counted else 0,
                counted,
                next_k,
                -1 if tied is None else int(tied[stage]),
            )
            sums.append(value)
        return sums, asked

    def raised(
        self, flow: Floats, deadline_s: float, time_price_w: float, steps: int
    ) -> list[Charge]:
        """What better and better flows prove, from this one on; so many are tried."""
        found, share = [self.charge(flow, deadline_s, time_price_w)], STEP
        for step in range(steps):
            best = found[-1]
            if share < STEP_MIN:
                break
            total_w = float(best.link[self._heads == len(self._track.stage)].sum())
            if step % 4 == 3:
                tried = [best.link * (1 + (scale - 1) * share / STEP) for scale in SCALES]
            else:
                path = self.path(best)
                sent = max(total_w, time_price_w, 1e-9)
                tried = [(1 - share) * best.link + share * sent * path]
            charges = [self.charge(link, deadline_s, time_price_w) for link in tried]
            better = max(charges, key=lambda c: c.value_j)
            if better.value_j > best.value_j:
                found.append(better)
            elif step % 4 != 3:
                share *= 0.6
        return found

    def path(self, charge: Charge) -> Floats:
        """Which links are on one longest path of what a charge would choose."""
        duration_s = self.time_s[np.arange(len(charge.asked)), charge.asked]
        lags = self._lags(charge)
        return _longest(self._tails, self._heads, self._leaves, duration_s, lags)

    def _lags(self, charge: Charge) -> Floats:
        lags = np.zeros(len(self._tails))
        after = np.flatnonzero(self._own >= 0)
        changed = charge.asked[after] != charge.asked[self._track.before[after]]
        lags[self._own[after[changed]]] = self._stop_s
        return lags


def _tables(track: Track) -> tuple[Floats, Floats]:
    """Effective cost and seconds by operation and column; the same in every column where no
    clock is asked for."""
    time_s, energy_j = track.time.copy(), track.energy.copy()
    time_s[~track.clocked], energy_j[~track.clocked] = (
        time_s[~track.clocked, :1],
        energy_j[~track.clocked, :1],
    )
    measured = np.isfinite(time_s)
    waiting_j = track.power[track.stage][:, None] * np.where(measured, time_s, 0.0)
    return np.where(measured, energy_j - waiting_j, np.inf), time_s


@exact
def _balanced(heads: Ints, leaves: Ints, link: Floats) -> Floats:
    """What comes in goes out, in the given proportions; the start gives what it gave."""
    size = len(leaves) - 2
    income, flow = np.zeros(size + 1), np.zeros(len(link))
    for e in range(leaves[1]):
        flow[e] = link[e]
        income[heads[e]] += link[e]
    for i in range(size):
        out = 0.0
        for e in range(leaves[i + 1], leaves[i + 2]):
            out += link[e]
        width = leaves[i + 2] - leaves[i + 1]
        for e in range(leaves[i + 1], leaves[i + 2]):
            flow[e] = income[i] * (link[e] / out if out > 0.0 else 1.0 / width)
            income[heads[e]] += flow[e]
    return flow


@exact
def _longest(tails: Ints, heads: Ints, leaves: Ints, duration: Floats, lag: Floats) -> Floats:
    """1 on the links of one longest path from start to end, 0 elsewhere."""
    size = len(duration)
    begin, via = np.zeros(size + 1), np.full(size + 1, -1)
    for e in range(leaves[1]):
        via[heads[e]] = e
    for i in range(size):
        for e in range(leaves[i + 1], leaves[i + 2]):
            at = begin[i] + duration[i] + lag[e]
            if via[heads[e]] < 0 or at > begin[heads[e]]:
                begin[heads[e]], via[heads[e]] = at, e
    on, i = np.zeros(len(tails)), size
    while i >= 0:
        on[via[i]] = 1.0
        i = tails[via[i]]
    return on
