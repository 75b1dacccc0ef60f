"""From a relaxed schedule to real clock options, without ever missing the deadline.

A sweep walks the graph in time order; each operation takes the best real option that ends
by its limit, and what it leaves over reaches the next ones (error diffusion), because they
start when it really ends. Limits come first from the relaxed schedule, then from the last
sweep in the other direction, so the deadline holds by construction. How much of the slack
an operation may take is its thrift: it minimises cost + thrift * price * time, with the price
the relaxation found; thrift falls to 0 over a few sweeps until all slack that pays is used.

Hundreds of such schedules, with differing thrift, cost little more than one (`waves`). The
best is then varied again: a perturbed thrift, a few sweeps, keep what is better.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.solve.circulation import Relaxation
from joulecut_controller.solve.curves import Curves
from joulecut_controller.solve.waves import Floats, Ints, Waves, combinations

# Around 1 the two ends of a hull segment cost the same and all between cost more; above it
# slack is passed on, at 0 everything that fits is taken.
THRIFT = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99, 1.01, 1.2)
THRIFT_STEPS = np.arange(len(THRIFT))
RAMP = 3  # thrift steps given up per sweep; 2 to 4 did equally well, 1 no better but slower

SEED = 20_240_901  # any fixed number: same problem, same plan
COMBINATIONS_ALL = 20_000  # up to here every combination is tried: a few milliseconds
ENTRIES_ALL = 1_000_000  # ... if that is no more rows x schedules than this: 8 MB a table
ENTRIES = 100_000  # rows x schedules at once: about 10 ms a sweep, and within a cache
SCHEDULES_MIN, SCHEDULES_MAX = 8, 96
GENERATIONS_MAX, GENERATIONS_MIN = 24, 2
GENERATIONS_SEEDED = 6  # a neighbouring deadline's plan has most of the work in it
ROW_GENERATIONS = 12_000  # 8 generations of 8 x 96, 0.4 s: twice as many gain 0.02 %
GENERATIONS_STALLED = 8  # without an improvement: stop
GAP_SMALL = 5e-4  # of the bound; what is left to gain then is below any measurement
FITS = 1e-13  # of the deadline: float sums in another order must not undo an option that fits
DEADLINE_TOLERANCE = 1e-10  # contract: 1e-9


class Rounding:
    """One problem's options as arrays; `best` answers one deadline after another.

    `microbatch[k]` is the microbatch of row k: neighbours in time that are varied together.
    Where there are no more than `combinations_all` plans, all are tried.
    """

    def __init__(
        self,
        waves: Waves,
        curves: Curves,
        microbatch: Ints,
        combinations_all: int = COMBINATIONS_ALL,
    ) -> None:
        self._waves, self._mirror = waves, waves.mirrored()
        self._combinations_all = combinations_all
        curve = curves.curve[waves.operation]
        self._time_s: Floats = _table([c.time_s for c in curves.distinct])[curve]
        self._cost_j: Floats = _table([c.cost_j for c in curves.distinct])[curve]
        self._option_s = np.ascontiguousarray(self._time_s.T)[:, :, None]  # adds fastest this way
        self._rows: Ints = np.arange(waves.size)[:, None]
        self._group = microbatch
        fastest_s = self._time_s[:, :1]
        self._fastest_tail_s = self._mirror.ends(fastest_s) - fastest_s
        self._fastest_head_s = waves.ends(fastest_s) - fastest_s

    def cost_j(self, choice: Ints) -> Floats:
        """Sum of effective costs of each schedule (rows, K)."""
        costs: Floats = np.take_along_axis(self._cost_j, choice, axis=1).sum(axis=0)
        return costs

    def durations_s(self, choice: Ints) -> Floats:
        return np.take_along_axis(self._time_s, choice, axis=1)

    def best(
        self,
        relaxed: Relaxation,
        deadline_s: float,
        time_price_w: float,
        seeds: Sequence[Ints] = (),
    ) -> Ints:
        """The best options found, by row: least cost + time_price * T with T <= deadline.

        `seeds` are choices by row that compete and are improved on.
        """
        search = _Search(self, relaxed, deadline_s, time_price_w)
        sizes = np.isfinite(self._time_s).sum(axis=1).tolist()
        count = math.prod(sizes)
        if count <= self._combinations_all and count * self._waves.size <= ENTRIES_ALL:
            return search.keep([combinations(sizes)])[:, 0]
        fastest = np.zeros((self._waves.size, 1), dtype=np.int64)
        best = search.keep([fastest, *(seed[:, None] for seed in seeds)])
        best = search.keep([best, *search.first()])
        stalled = 0
        most = GENERATIONS_SEEDED if seeds else GENERATIONS_MAX
        generations = int(np.clip(ROW_GENERATIONS // self._waves.size, GENERATIONS_MIN, most))
        for generation in range(generations):
            if stalled >= GENERATIONS_STALLED or search.good_enough(best):
                break
            value = search.value_j(best)
            best = search.keep([best, search.vary(best, generation)])
            stalled = 0 if search.value_j(best) < value else stalled + 1
        return best[:, 0]


class _Search:
    """The search for one deadline: candidate schedules are columns of (rows, K) choices."""

    def __init__(
        self, menu: Rounding, relaxed: Relaxation, deadline_s: float, time_price_w: float
    ) -> None:
        self._menu, self._relaxed = menu, relaxed
        self._deadline_s, self._time_price_w = deadline_s, time_price_w
        self._pick = _picks(menu._time_s, menu._cost_j, relaxed.price_w)
        self._random = np.random.default_rng(SEED)
        size = menu._waves.size
        self._width = int(np.clip(ENTRIES // size, SCHEDULES_MIN, SCHEDULES_MAX))

    def value_j(self, choice: Ints) -> Floats:
        """What each candidate costs; infinite where it misses the deadline."""
        times_s = self._menu._waves.iteration_times(self._menu.durations_s(choice))
        values = self._menu.cost_j(choice) + self._time_price_w * times_s
        on_time = times_s <= self._deadline_s * (1 + DEADLINE_TOLERANCE)
        return np.where(on_time, values, np.inf)

    def keep(self, candidates: list[Ints]) -> Ints:
        """The best column; of equals the first, so that nothing changes without a reason."""
        pool = np.concatenate(candidates, axis=1)
        winner = int(np.argmin(self.value_j(pool)))
        return pool[:, winner : winner + 1]

    def good_enough(self, best: Ints) -> bool:
        bound_j = self._relaxed.bound_j
        return float(self.value_j(best)[0]) - bound_j <= GAP_SMALL * abs(bound_j)

    def first(self) -> Iterator[Ints]:
        """Sweeps from the relaxed schedules: earliest, latest and mixtures, both directions."""
        menu, relaxed, width = self._menu, self._relaxed, self._width
        mixture = np.linspace(0.0, 1.0, width)
        step = self._random.integers(4, len(THRIFT), size=width)
        horizon_s = self._horizons(relaxed.end_s + relaxed.grain_s)
        start_s, end_s = (
            early[:, None] * (1 - mixture) + late[:, None] * mixture
            for early, late in zip(relaxed.early_s, relaxed.late_s, strict=True)
        )
        stretch_s = relaxed.grain_s + np.maximum(horizon_s - relaxed.end_s, 0.0)
        for forwards in (True, False):
            limit_s, slowest_s = (
                (end_s + stretch_s, horizon_s - menu._fastest_tail_s)
                if forwards
                else (relaxed.grain_s + horizon_s - start_s, horizon_s - menu._fastest_head_s)
            )
            choice = self._sweep(np.minimum(limit_s, slowest_s), step, forwards)
            yield self._spend(choice, horizon_s, step, not forwards)

    def vary(self, best: Ints, generation: int) -> Ints:
        """Many copies of the best, each with other thrift here and there, swept to the end."""
        menu, random, width = self._menu, self._random, self._width
        size = menu._waves.size
        choice = np.repeat(best, width, axis=1)
        if generation % 3 == 2:
            step = random.integers(3, len(THRIFT), size=(size, width))
        else:
            groups = int(menu._group.max()) + 1
            step = random.integers(3, len(THRIFT), size=(groups, width))[menu._group]
        if generation % 3 == 1:
            step = np.where(self._somewhen(best), step, 0)
        best_s = float(menu._waves.iteration_times(menu.durations_s(best))[0])
        return self._spend(choice, self._horizons(best_s), step, bool(random.integers(2)))

    def _somewhen(self, best: Ints) -> NDArray[np.bool_]:
        """A random stretch of time per candidate: what runs in it, by row."""
        duration_s = self._menu.durations_s(best)
        middle_s = self._menu._waves.ends(duration_s) - duration_s / 2
        span_s = float(middle_s.max())
        centre_s = self._random.uniform(0.0, span_s, size=self._width)
        width_s = self._random.uniform(0.05, 0.4, size=self._width) * span_s
        inside: NDArray[np.bool_] = np.abs(middle_s - centre_s) < width_s / 2
        return inside

    def _horizons(self, end_s: float) -> Floats:
        """When each candidate must end: as given, or later where the deadline leaves room."""
        room_s = self._deadline_s - end_s
        if room_s <= 0:
            return np.full(self._width, self._deadline_s)
        share = np.where(
            np.arange(self._width) % 2 == 0, 0.0, self._random.random(self._width) ** 4
        )
        return end_s + room_s * share

    def _spend(self, choice: Ints, horizon_s: Floats, step: Ints, forwards: bool) -> Ints:
        """Sweeps to and fro while thrift falls to 0, then once more each way."""
        while True:
            choice = self._resweep(choice, horizon_s, step, forwards)
            forwards = not forwards
            if not step.any():
                return self._resweep(choice, horizon_s, step, forwards)
            step = np.maximum(step - RAMP, 0)

    def _resweep(self, choice: Ints, horizon_s: Floats, step: Ints, forwards: bool) -> Ints:
        """Limits from what follows as it is now; the current option always fits."""
        behind = self._menu._mirror if forwards else self._menu._waves
        duration_s = self._menu.durations_s(choice)
        return self._sweep(horizon_s - (behind.ends(duration_s) - duration_s), step, forwards)

    def _sweep(self, limit_s: Floats, step: Ints, forwards: bool) -> Ints:
        """One walk; `limit_s` (rows, K) is when each row ends at the latest, counted from the
        side the walk starts on. The fastest option is taken where none fits."""
        menu = self._menu
        ahead = menu._waves if forwards else menu._mirror
        step = np.broadcast_to(step, limit_s.shape)
        limit_s = limit_s + FITS * self._deadline_s
        choice = np.empty(limit_s.shape, dtype=np.int64)
        end_s = np.zeros((ahead.size + 1, limit_s.shape[1]))
        for wave in ahead.waves:
            rows, number = wave.rows, menu._rows[wave.rows]
            start_s = end_s[wave.before].max(axis=1)
            left_s = limit_s[rows] - start_s
            fits = (menu._option_s[:, rows] <= left_s).view(np.int8)
            slowest = np.maximum(np.add.reduce(fits, axis=0, dtype=np.int64) - 1, 0)
            picked = self._pick[number, step[rows], slowest]
            choice[rows] = picked
            end_s[rows] = start_s + menu._time_s[number, picked]
        return choice


def _picks(time_s: Floats, cost_j: Floats, price_w: Floats) -> NDArray[np.int16]:
    """(rows, thrift steps, options): the best option among the first j + 1, which are fastest."""
    seconds = np.where(np.isfinite(time_s), time_s, 0.0)
    picks = np.empty((time_s.shape[0], len(THRIFT), time_s.shape[1]), dtype=np.int16)
    for step, thrift in enumerate(THRIFT):
        value = cost_j + (thrift * price_w)[:, None] * seconds
        best = value <= np.minimum.accumulate(value, axis=1)
        best &= np.isfinite(value)
        picks[:, step] = np.maximum.accumulate(np.where(best, np.arange(value.shape[1]), 0), axis=1)
    return picks


def _table(rows: list[Floats]) -> Floats:
    """Rows of differing length, padded with infinity: an option that never fits."""
    table = np.full((len(rows), max(map(len, rows))), np.inf)
    for k, row in enumerate(rows):
        table[k, : len(row)] = row
    return table
