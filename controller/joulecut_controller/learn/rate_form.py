"""Which iteration times a set of numbers means: the form that a fit without a profile fills.

Each stage works for a while at default clocks and a share of that follows the clock; the
schedule's longest path makes an iteration of it, and jitter makes it longer. Every number
starts from what is known of GPUs in general. Pure.
"""

from collections.abc import Sequence

import numpy as np

from joulecut_controller.learn.rate_fit import Floats, Prior
from joulecut_controller.learn.rate_paths import Paths
from joulecut_controller.learn.rate_window import Ground, Reading
from joulecut_engine.graph.pipeline import KINDS

# Prior mean and standard deviation of what differs between jobs and cards.
CLOCK_SHARE = (0.7, 0.3)  # k: 0.25-0.93 on the public A100 and A40 sweeps
CLOCK_SHARE_STAGE = 0.04  # ... of stages of one job: within 0.03 there
TIME_SD = 0.5  # of the logarithm; the first reading settles it
STAGE_SD = 0.12  # a language-model head makes the last stage 7 % longer there
# Of both: a backward is two products for a forward's one, three where activations are made anew.
FORWARD_SHARE = (1.0 / 3.0, 0.05)
FORWARD_SHARES = (0.1, 0.9)  # whatever a guess says
# Under a power cap time stays flat for longer than energy does: by 6 % of the clock on the public
# A40 sweep, where a backward's cap lies lower than a forward's.
LATE_KNEE = (0.02, 0.04)
PACE_SD = 0.03  # what a graph of mean times misses: jitter, communication
# The slowest of several jittering stages is slower than each. Which share of what independent
# operations would make of it is there: whole iterations may stray as well.
SURPLUS = (1.0, 0.25)
SURPLUSES_MAX = 100_000  # some 10 MB; one decision asks for some ten thousand
SPREAD_MAX = 0.05  # of an operation; what strays more are whole iterations
# ... and then how operations stray is open: any part of the most there may be, or nothing.
SURPLUS_OPEN_SD = 0.4
SPREAD_DRAWS = 64  # to find the spread of operations that explains that of iterations
SPREAD_ROUNDS = 2  # it is nearly proportional


class Form:
    """Iteration times at the clocks of readings, at least one, and elsewhere, by guesses of shape
    (count, guesses). `prior` says what the numbers are before any measurement. What jitter adds
    belongs to one set of them: nothing until `settle`.
    """

    def __init__(self, ground: Ground, readings: Sequence[Reading], paths: Paths) -> None:
        self._pipeline, self._paths, self._readings = ground.pipeline, paths, readings
        self.detailed = all(reading.busy_s for reading in readings)
        self.clocks = np.array([reading.clocks_mhz for reading in readings], dtype=np.float64)
        self.default = np.array(ground.default_mhz, dtype=np.float64)
        self.prior = self._prior()
        self.spread = 0.0  # of operations, as a ratio
        self._settled: Floats | None = None  # the numbers that tell what jitter adds
        self._surplus_here: Floats | None = None  # ... at the readings
        # ... at clocks asked for; every rival fit asks the same ones
        self._surpluses: dict[bytes, float] = {}

    @property
    def kinds(self) -> range:
        """Of operations that are told apart."""
        return range(len(KINDS) if self.detailed else 1)

    @property
    def shares_at(self) -> slice:
        """Where the numbers say which share follows the clock, by kind."""
        return slice(len(self.kinds), 2 * len(self.kinds))

    @property
    def stages_at(self) -> range:
        """Where they say how much longer each stage works, at L1."""
        first = 2 * len(self.kinds)
        return range(first, first + self._pipeline.stages)

    def log_busy(self, numbers: Floats, clocks_mhz: Floats) -> Floats:
        """log seconds of one operation: (stages, kinds, m, guesses). At L1 one kind is both."""
        kinds, stages = len(self.kinds), self._pipeline.stages
        scale, share = numbers[:kinds], numbers[kinds : 2 * kinds]
        own = numbers[2 * kinds : 2 * kinds + stages * kinds].reshape(stages, kinds, -1)
        lean = numbers[2 * kinds + stages * kinds : -3].reshape(stages, kinds, -1)
        stretch = (self.default / np.minimum(clocks_mhz, self.default)).T
        late = np.exp(-np.maximum(0.0, numbers[-3]))
        slower = np.maximum(0.0, stretch[:, :, None] * late - 1.0)  # (stages, m, guesses)
        followed = (share + lean)[:, :, None, :] * slower[:, None, :, :]
        return np.asarray((scale + own)[:, :, None, :] + np.log(np.maximum(1.0 + followed, 0.05)))

    def log_times(self, numbers: Floats, clocks_mhz: Floats) -> Floats:
        """log iteration times (m rows), then log busy times by stage and kind where told."""
        busy = self.log_busy(numbers, clocks_mhz)
        stages, kinds, count, guesses = busy.shape
        each = self._operations_s(busy, numbers).reshape(stages, len(KINDS), count * guesses)
        surplus = self._surplus(clocks_mhz)[:, None] * np.maximum(0.0, numbers[-2])
        paths = np.log(self._paths.iteration_s(each))
        times: Floats = paths.reshape(count, guesses) + surplus
        if not self.detailed:
            return np.asarray(times)
        return np.concatenate([times + numbers[-1], busy.reshape(stages * kinds * count, guesses)])

    def settle(self, numbers: Floats) -> None:
        """What jitter adds is from now on that of these numbers (count,)."""
        self._settled, self._surplus_here, self._surpluses = numbers, None, {}
        self._surplus_here = self._surplus(self.clocks)

    def find_spread(self, numbers: Floats) -> None:
        """The spread of operations, as told or as it explains, by these numbers (count,), how
        iterations stray, and which share of what that adds to an iteration is to be expected.
        """
        self.spread, surplus = self._operation_spread(numbers[:, None])
        mean, sd = self.prior.mean.copy(), self.prior.sd.copy()
        mean[-2], sd[-2] = surplus
        self.prior = Prior(mean, sd)

    def _prior(self) -> Prior:
        first, pipeline, kinds = self._readings[0], self._pipeline, len(self.kinds)
        if self.detailed:
            scale = np.log(np.mean(first.busy_s, axis=0))
        else:
            scale = np.log([first.time_s / (pipeline.microbatches + pipeline.stages - 1)])
        each = pipeline.stages * kinds
        knee = LATE_KNEE if (self.clocks > self.default).any() else (0.0, 1e-9)
        last = (0.0, PACE_SD) if self.detailed else FORWARD_SHARE
        mean = np.concatenate(
            [scale, [CLOCK_SHARE[0]] * kinds, np.zeros(2 * each), [knee[0], SURPLUS[0], last[0]]]
        )
        sd = np.concatenate(
            [
                [TIME_SD] * kinds,
                [CLOCK_SHARE[1]] * kinds,
                [STAGE_SD] * each,
                [CLOCK_SHARE_STAGE] * each,
                [knee[1], SURPLUS[1], last[1]],
            ]
        )
        return Prior(mean, sd)

    def _operations_s(self, log_busy: Floats, numbers: Floats) -> Floats:
        """Seconds of operations, (stages, all kinds, m, guesses): at L1 one kind was both, and the
        last number tells which share of it is forward.
        """
        each = np.exp(log_busy)
        if self.detailed:
            return np.asarray(each)
        forward = np.clip(numbers[-1], *FORWARD_SHARES)
        return np.concatenate([forward * each, (1.0 - forward) * each], axis=1)

    def _surplus(self, clocks_mhz: Floats) -> Floats:
        """log of what jitter adds to iterations at rows of clocks, over what it adds to the first
        reading: (m,). By the numbers that were settled last.
        """
        if self._settled is None or self.spread <= 0.0:
            return np.zeros(len(clocks_mhz))
        if clocks_mhz is self.clocks and self._surplus_here is not None:
            return self._surplus_here
        held, keys = self._surpluses, [row.tobytes() for row in clocks_mhz]
        new = {key: i for i, key in enumerate(keys) if key not in held}
        if new:
            rows = np.concatenate([self.clocks[:1], clocks_mhz[list(new.values())]])
            settled = self._settled[:, None]
            each = self._operations_s(self.log_busy(settled, rows), settled)[..., 0]
            jittered = self._paths.jittered_s(each, self.spread).mean(axis=0)
            added = np.log(jittered / self._paths.iteration_s(each))
            if len(held) > SURPLUSES_MAX:
                held.clear()
                return self._surplus(clocks_mhz)
            held.update(zip(new, (added[1:] - added[0]).tolist(), strict=True))
        return np.array([held[key] for key in keys])

    def _operation_spread(self, numbers: Floats) -> tuple[float, tuple[float, float]]:
        """The spread, and that share's mean and standard deviation."""
        weights = [reading.iterations for reading in self._readings]
        told = [reading.operation_sd_ratio for reading in self._readings]
        if all(ratio is not None for ratio in told):
            known = np.average(np.square(np.array(told, dtype=np.float64)), weights=weights)
            return min(SPREAD_MAX, float(np.sqrt(known))), SURPLUS
        ratios = [reading.time_sd_s / reading.time_s for reading in self._readings]
        seen = float(np.sqrt(np.average(np.square(ratios), weights=weights)))
        each = self._operations_s(self.log_busy(numbers, self.clocks[:1]), numbers)[..., 0]
        wanted = seen
        for _ in range(SPREAD_ROUNDS):
            if wanted <= 0.0:
                return 0.0, SURPLUS
            spread = min(SPREAD_MAX, wanted)
            drawn = self._paths.jittered_s(each, spread, SPREAD_DRAWS)[:, 0]
            wanted = spread * seen / float(drawn.std() / drawn.mean())
        part = min(1.0, SPREAD_MAX / wanted)
        open_sd = part * SURPLUS[1] + (1.0 - part) * SURPLUS_OPEN_SD
        return min(SPREAD_MAX, wanted), (part * SURPLUS[0], open_sd)
