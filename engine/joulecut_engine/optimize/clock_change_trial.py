"""One deadline under limits of clock changes: what a choice of clocks is worth, and better ones.

Clocks are asked for by columns (`clock_changes.Track`), one per operation. Knobs are the choices
that remain where operations of a GPU share theirs.
"""

import itertools
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from joulecut_engine.optimize.clock_change_moves import realise, value_of, vary
from joulecut_engine.optimize.clock_changes import Switching, Track, limits_of, run_of
from joulecut_engine.optimize.k_change_dp import LAYERS_MAX, cheapest
from joulecut_engine.optimize.levels import Floats, Ints, Levels
from joulecut_engine.optimize.problem import Infeasible
from joulecut_engine.optimize.relaxation import ROUND_OFF

# Local search: starts that are varied, operations that all trials run (12 ns each), and trials
# per start, within limits.
STARTS, WORK = 8, 1.2e8
STARTS_QUICK, WORK_QUICK = 1, 4e5
TRIALS_MIN, TRIALS_MAX = 1_000, 40_000
PRICE_MAX, PRICE_FAST = 64.0, 1e6  # times the relaxation's: nothing is left of cost beside time
HALVINGS = 7  # of the prices that just keep the deadline: to within a thirtieth
LATE_PRICE = 3.0  # times the dearest second: so that trials come back in time
HEAT = 0.002  # of what a start costs above the bound: at first a trial may cost so much more
# Raising prices: steps, and the share of the flow that is sent another way.
RAISES, SHARE, SHARE_FALL, SHARE_MIN = 100, 0.3, 0.6, 1e-4
SMALL_W = 1e-9
SEED = 0x9E3779B97F4A7C15


class Trial:
    """Values are sums of effective cost and price of time in joules, infinite where late.

    `group` is by operation: which of its GPU's clocks it always shares, -1 where it is free.
    `price_w` is a balanced flow through operations: what a second of each is worth. `total_w`
    arrives at the end.
    """

    def __init__(
        self,
        track: Track,
        switching: Switching,
        group: Ints,
        deadline_s: float,
        time_price_w: float,
        price_w: Floats,
        total_w: float,
    ) -> None:
        self._track, self._switching, self._group = track, switching, group
        self._limits, self._run = limits_of(switching), run_of(track)
        self._deadline_s, self._time_price_w = deadline_s, time_price_w
        self._price_w, self._total_w = price_w, total_w
        self._late_w = LATE_PRICE * max(float(price_w.max()), time_price_w, 1.0)
        self.fastest_s = math.inf  # of all that were judged here
        self._knobs: dict[tuple[int, int], list[int]] = {}
        for i in np.flatnonzero(track.clocked).tolist():
            knob = int(group[i]) if group[i] >= 0 else -1 - i
            self._knobs.setdefault((int(track.stage[i]), knob), []).append(i)

    def value_j(self, asked: Ints) -> float:
        seconds, _, _ = realise(self._track, self._limits, asked, self._run)
        self.fastest_s = min(self.fastest_s, seconds)
        value, kept = self._value(asked, 0.0)
        return value if kept else math.inf

    def _value(self, asked: Ints, late_w: float) -> tuple[float, bool]:
        """With `late_w` joules a second beyond the deadline; and whether that is kept."""
        return value_of(
            self._track,
            self._limits,
            asked,
            self._run,
            self._deadline_s,
            self._time_price_w,
            late_w,
        )

    def combinations(self) -> int:
        return math.prod(int(self._track.columns[stage]) for stage, _ in self._knobs)

    def all(self) -> Ints:
        """The best of all plans. Raises Infeasible where none keeps the deadline."""
        best, least = np.zeros(len(self._track.stage), dtype=np.int64), math.inf
        choices = (range(int(self._track.columns[stage])) for stage, _ in self._knobs)
        for columns in itertools.product(*choices):
            asked = np.zeros(len(self._track.stage), dtype=np.int64)
            for members, column in zip(self._knobs.values(), columns, strict=True):
                asked[members] = column
            value = self.value_j(asked)
            if value < least:
                best, least = asked, value
        if least == math.inf:
            raise Infeasible(self._deadline_s, self.fastest_s)
        return best

    def best(self, starts: Sequence[Ints], bound_j: float, *, quick: bool) -> Ints:
        """The best of all starts and of what varying the most promising leads to. Raises
        Infeasible where none keeps the deadline."""
        found = list(starts)
        # Those that are late, but not by much, may come back in time: none of them is lost.
        rough = [self._value(asked, self._late_w)[0] for asked in starts]
        order = [k for k in np.argsort(rough, kind="stable").tolist() if math.isfinite(rough[k])]
        few, work = (STARTS_QUICK, WORK_QUICK) if quick else (STARTS, WORK)
        chosen: list[Ints] = []
        for k in order:
            if len(chosen) < few and not any(np.array_equal(starts[k], c) for c in chosen):
                chosen.append(starts[k])
        each = int(work / max(1, len(chosen)) / len(self._track.stage))
        trials = min(max(TRIALS_MIN, each), TRIALS_MAX)
        for number, start in enumerate(chosen):
            found.append(self.varied(start, trials, bound_j, SEED + 2 * number))
        values = [self.value_j(asked) for asked in found]
        best = int(np.argmin(values))
        if values[best] == math.inf:
            raise Infeasible(self._deadline_s, self.fastest_s)
        return found[best]

    def varied(self, start: Ints, trials: int, bound_j: float, seed: int) -> Ints:
        """The best in time that so many random changes lead to, `start` included."""
        asked = start.copy()
        vary(
            self._track,
            self._limits,
            asked,
            self._group,
            self._run,
            self._deadline_s,
            self._time_price_w,
            self._late_w,
            HEAT * max(0.0, self._value(asked, self._late_w)[0] - bound_j),
            trials,
            np.array([seed], dtype=np.uint64),
        )
        return asked

    def raised_j(self, levels: Levels, fastest_s: float) -> float:
        """What the prices prove once they are raised: no plan of these limits costs less.

        Some of the flow is sent another way, through the longest path of what each GPU would
        choose, for as long as that proves more (a subgradient step).
        """
        best_j, asked = self._bound_j(self._price_w, self._total_w, fastest_s)
        share = SHARE
        for _ in range(RAISES):
            if share < SHARE_MIN:
                break
            duration_s = self._tables[1][levels.operation, asked[levels.operation]]
            _, path = levels.critical(duration_s, np.arange(levels.size))
            sent_w = max(self._total_w, self._time_price_w, SMALL_W)
            price_w = (1 - share) * self._price_w
            price_w[levels.operation] += share * sent_w * path
            total_w = (1 - share) * self._total_w + share * sent_w
            bound_j, other = self._bound_j(price_w, total_w, fastest_s)
            if bound_j > best_j:
                best_j, asked, self._price_w, self._total_w = bound_j, other, price_w, total_w
            else:
                share *= SHARE_FALL
        return best_j

    def _bound_j(self, price_w: Floats, total_w: float, fastest_s: float) -> tuple[float, Ints]:
        change_j = np.full(len(self._track.stage), self._switching.cost_j)
        sums, asked = self._chosen(price_w, change_j, self._most())
        aside = np.setdiff1d(np.arange(len(self._track.stage)), self._track.line)
        cost_j, time_s = self._tables
        sums.append(float((cost_j[aside, 0] + price_w[aside] * time_s[aside, 0]).sum()))
        spare_w = self._time_price_w - total_w
        sums.append(spare_w * (self._deadline_s if spare_w < 0.0 else fastest_s))
        largest_j = sum(map(abs, sums)) * (1 + np.log2(1 + len(self._track.stage)))
        return sum(sums) - ROUND_OFF * largest_j, asked

    def walks(self) -> list[Ints]:
        """Choices in time or nearly so, and the fastest: what each GPU would do under prices."""
        fastest = self._walk(PRICE_FAST, None, None)
        timeline = self._timeline(fastest)
        free = None if timeline is None else self._free(timeline[0])
        found = [fastest, *self._scaled(free, None)]
        if self._most() >= 2:
            line, at = self._track.line, self._track.line_at[:-1]
            begins = found[-1][line[np.minimum(at, len(line) - 1)]]
            found += self._scaled(free, begins)
        return found

    def ahead(self, asked: Ints) -> Ints:
        """The same, asked so early that changes come when their operations begin."""
        timeline = self._timeline(asked)
        if self._limits.latency <= self._limits.stop or timeline is None:
            return asked
        starts_s, ends_s = timeline
        track, moved = self._track, asked.copy()
        for low, high in itertools.pairwise(track.line_at):
            line = track.line[low:high]
            for k in range(1, len(line)):
                if asked[line[k]] != asked[line[k - 1]]:
                    p = k
                    latest_s = starts_s[line[k]] - self._limits.latency
                    while p > 1 and ends_s[line[p - 1]] > latest_s:
                        p -= 1
                    moved[line[p:k]] = asked[line[k]]
        return moved

    def _scaled(self, free: Ints | None, tied: Ints | None) -> list[Ints]:
        """Walks under prices that come nearer and nearer to those that just keep the deadline;
        the last of them keeps it, if any."""
        low, high, scale = 1.0, PRICE_MAX, 1.0
        late, kept = [], []
        for _ in range(HALVINGS + 1):
            asked = self.ahead(self._walk(scale, free, tied))
            if math.isfinite(self.value_j(asked)):
                kept.append(asked)
                high = scale
            else:
                late.append(asked)
                low = scale
            if high <= low:
                break
            scale = math.sqrt(low * high)
        return [*late[-2:], *kept]

    def _walk(self, scale: float, free: Ints | None, tied: Ints | None) -> Ints:
        """What each GPU chooses. Of a walk that is not tied the way back to its first clock is
        one change more."""
        stop_j = self._limits.stop * self._price_w
        change_j = (self._switching.cost_j + stop_j) * max(1.0, min(scale, PRICE_MAX))
        most = self._most() if tied is not None else max(0, self._most() - 1)
        sums, asked = self._chosen(scale * self._price_w, change_j, most, free, tied)
        if tied is not None and not all(map(math.isfinite, sums)):
            return self._walk(scale, free, None)
        return asked

    def _chosen(
        self,
        price_w: Floats,
        change_j: Floats,
        most: int,
        free: Ints | None = None,
        tied: Ints | None = None,
    ) -> tuple[list[float], Ints]:
        """What each GPU chooses under prices, and what it pays (infinite where it has no choice).

        By operation, `free[i]` is where in its line a change may follow one at i; by stage, `tied`
        is the clock that the iteration begins and ends with.
        """
        track, (cost_j, time_s), sums = self._track, self._tables, []
        asked: Ints = np.zeros(len(track.stage), dtype=np.int64)
        for stage, columns in enumerate(track.columns):
            line = track.line[track.line_at[stage] : track.line_at[stage + 1]]
            if not len(line):
                continue
            offered = np.isfinite(time_s[line, :columns])
            seconds = np.where(offered, time_s[line, :columns], 0.0)
            charged = cost_j[line, :columns] + price_w[line, None] * seconds
            counted = most <= LAYERS_MAX
            value, asked[line] = cheapest(
                np.where(offered, charged, np.inf),
                change_j[line],
                most if counted else 0,
                counted,
                np.arange(1, len(line) + 1) if free is None else free[line],
                -1 if tied is None else int(tied[stage]),
            )
            sums.append(value)
        return sums, asked

    def _most(self) -> int:
        """Changes that the limit and the dwell allow; a single one is none, since it must be
        undone before the next iteration."""
        most = self._switching.max_per_iteration
        if self._switching.min_dwell_s > 0.0:
            most = min(most, int(self._deadline_s / self._switching.min_dwell_s * (1 + 1e-6)))
        return 0 if most < 2 else most

    @cached_property
    def _tables(self) -> tuple[Floats, Floats]:
        """Effective cost and seconds by operation and column; the same in every column where no
        clock is asked for."""
        track = self._track
        time_s = np.where(track.clocked[:, None], track.time, track.time[:, :1])
        energy_j = np.where(track.clocked[:, None], track.energy, track.energy[:, :1])
        measured = np.isfinite(time_s)
        waiting_j = track.power[track.stage][:, None] * np.where(measured, time_s, 0.0)
        return np.where(measured, energy_j - waiting_j, np.inf), time_s

    def _timeline(self, asked: Ints) -> tuple[Floats, Floats] | None:
        """Starts and ends of operations in seconds; None where a limit is broken."""
        seconds, _, _ = realise(self._track, self._limits, asked, self._run)
        if not math.isfinite(seconds):
            return None
        return self._run.start.copy(), self._run.start + self._run.duration

    def _free(self, starts_s: Floats) -> Ints:
        """By operation, the first place in its GPU's line that lies a dwell later; at least the
        next."""
        track, free = self._track, np.zeros(len(self._track.stage), dtype=np.int64)
        for low, high in itertools.pairwise(track.line_at):
            line = track.line[low:high]
            until = np.searchsorted(starts_s[line], starts_s[line] + self._limits.dwell)
            free[line] = np.maximum(until, np.arange(1, len(line) + 1))
        return free
