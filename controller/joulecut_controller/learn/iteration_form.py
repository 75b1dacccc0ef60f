"""Iteration times of a job from a few numbers: stage work, clock shares, the schedule, jitter.

Each stage works for some time at default clocks, a share of which follows the clock; the longest
path through the schedule makes an iteration, and jitter makes it longer. Priors are what is known
of GPUs in general.
"""

from collections.abc import Sequence

import numpy as np

from joulecut_controller.learn import work_prior
from joulecut_controller.learn.measurement_log import JobConstants, Measurement
from joulecut_controller.learn.regression import Floats, Prior
from joulecut_controller.learn.work_prior import WorkPrior
from joulecut_engine.graph.build import build
from joulecut_engine.graph.pipeline import KINDS, Pipeline
from joulecut_engine.graph.shape import kinds_of
from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Ints, levels_of

# Antithetic pairs: terms linear in the noise cancel, and the surplus is known to a twentieth.
DRAWS = 12
SEED = 7  # fixed: two choices see the same noise and differ by their clocks alone
FACTOR_MIN = 0.1  # of a mean time


class LongestPaths:
    """Longest paths through one schedule. Raises ValueError if it cannot be laid out."""

    def __init__(self, pipeline: Pipeline) -> None:
        if pipeline.chunks > 1 or kinds_of(pipeline) != KINDS:
            raise ValueError(
                f"{pipeline.schedule} has parts that no report tells apart: it needs a profile"
            )
        graph = build(pipeline)
        self._levels = levels_of(graph)
        operations = [graph.operations[i] for i in self._levels.operation]
        self._which = np.array([o.stage * len(KINDS) + KINDS.index(o.kind) for o in operations])
        self._halves: dict[int, Floats] = {}  # normal deviates by number of draws

    def iteration_s(self, times_s: Floats) -> Floats:
        """Seconds of an iteration for every guess; `times_s` is (stages, kinds, guesses)."""
        stages, kinds, guesses = times_s.shape
        return self._levels.iteration_times(times_s.reshape(stages * kinds, guesses), self._which)

    def critical(self, times_s: Floats) -> tuple[float, Floats]:
        """The longest path of one guess (stages, kinds), and how many operations of each stage and
        kind it takes.
        """
        length_s, counts = self._levels.critical(np.ascontiguousarray(times_s).ravel(), self._which)
        return length_s, counts.reshape(times_s.shape)

    def jittered_s(self, times_s: Floats, spread: float, draws: int = DRAWS) -> Floats:
        """Iteration times with every operation jittered by `spread` (a ratio): (draws, guesses)."""
        half = self._halves.get(draws)
        if half is None:
            rng = np.random.default_rng(SEED)
            half = self._halves[draws] = rng.standard_normal((draws // 2, len(self._which)))
        factors = np.maximum(FACTOR_MIN, 1.0 + spread * np.concatenate([half, -half]))
        levels = self._levels
        return _jittered_paths(_rows(times_s), factors, self._which, levels.begins, levels.before)


def _rows(times_s: Floats) -> Floats:
    """Operation times as one row per guess."""
    stages, kinds, guesses = times_s.shape
    return np.ascontiguousarray(times_s.reshape(stages * kinds, guesses).T)


@compiled
def _jittered_paths(
    guesses: Floats, factors: Floats, which: Ints, begins: Ints, before: Ints
) -> Floats:
    """Longest path for every row of `factors` and every row of `guesses`: (draws, guesses)."""
    count = len(which)
    ends, longest = np.empty(count), np.zeros((len(factors), len(guesses)))
    for draw in range(len(factors)):
        for guess in range(len(guesses)):
            last = 0.0
            for row in range(count):
                begin = 0.0
                for at in range(begins[row], begins[row + 1]):
                    begin = max(begin, ends[before[at]])
                ends[row] = begin + guesses[guess, which[row]] * factors[draw, row]
                last = max(last, ends[row])
            longest[draw, guess] = last
    return longest


# Prior mean and standard deviation.
CLOCK_SHARE = (0.7, 0.3)  # k: 0.25-0.93 on the public A100 and A40 sweeps
CLOCK_SHARE_STAGE = 0.04  # ... of stages of one job: within 0.03 there
TIME_SD = 0.5  # of the logarithm; the first measurement settles it
STAGE_SD = 0.12  # a language-model head makes the last stage 7 % longer there
# Of both: a backward is two products for a forward's one, three with activation recomputation.
FORWARD_SHARE = (1.0 / 3.0, 0.05)
FORWARD_SHARES = (0.1, 0.9)  # bounds
# Under a power cap time stays flat for longer than energy does: by 6 % of the clock on the public
# A40 sweep, where a backward's cap lies lower than a forward's.
LATE_KNEE = (0.02, 0.04)
# Share of the surplus of independent jittering operations: whole iterations may vary instead.
SURPLUS = (1.0, 0.25)
SURPLUSES_MAX = 100_000  # about 10 MB; one decision asks for ten thousand
SPREAD_MAX = 0.05  # of an operation; beyond it, whole iterations vary
# ... and then the operations' share of it is open.
SURPLUS_OPEN_SD = 0.4
SPREAD_DRAWS = 64  # to find the operations' spread that explains that of iterations
SPREAD_ROUNDS = 2  # it is nearly proportional

# Numbers of a job: the scale of all work, the clock share, each stage's extra work, each stage's
# extra share, the late knee, the share of the surplus, and the forward share.
SHARE_AT, STAGES_AT = 1, 2


class IterationForm:
    """Iteration times at the clocks of measurements and elsewhere, by guesses (count, guesses).

    `prior` holds the numbers' prior. The jitter surplus is computed for one set of numbers: zero
    until `fix_surplus`.
    """

    def __init__(
        self, constants: JobConstants, measurements: Sequence[Measurement], paths: LongestPaths
    ) -> None:
        self._pipeline, self._paths, self._measurements = constants.pipeline, paths, measurements
        self._predicted = constants.prior
        self.clocks = np.array([m.clocks_mhz for m in measurements], dtype=np.float64)
        self.default = np.array(constants.default_mhz, dtype=np.float64)
        self.prior = self._prior()
        self.spread = 0.0  # of operations, as a ratio
        self._settled: Floats | None = None  # numbers that the surplus is computed from
        self._surplus_here: Floats | None = None  # surplus at the measurements
        # surplus by clocks, cached
        self._surpluses: dict[bytes, float] = {}

    @property
    def stages_at(self) -> range:
        """Numbers that hold each stage's extra work."""
        return range(STAGES_AT, STAGES_AT + self._pipeline.stages)

    def log_busy(self, numbers: Floats, clocks_mhz: Floats) -> Floats:
        """log seconds of a forward and a backward together: (stages, m, guesses)."""
        stages = self._pipeline.stages
        own = numbers[STAGES_AT : STAGES_AT + stages]
        share = numbers[SHARE_AT] + numbers[STAGES_AT + stages : -3]
        stretch = (self.default / np.minimum(clocks_mhz, self.default)).T
        late = np.exp(-np.maximum(0.0, numbers[-3]))
        slower = np.maximum(0.0, stretch[:, :, None] * late - 1.0)  # (stages, m, guesses)
        followed = np.log(np.maximum(1.0 + share[:, None, :] * slower, 0.05))
        return np.asarray((numbers[0] + own)[:, None, :] + followed)

    def log_times(self, numbers: Floats, clocks_mhz: Floats) -> Floats:
        """log iteration times: (m, guesses)."""
        busy = self.log_busy(numbers, clocks_mhz)
        stages, count, guesses = busy.shape
        each = self.operations_s(busy, numbers).reshape(stages, len(KINDS), count * guesses)
        surplus = self._surplus(clocks_mhz)[:, None] * np.maximum(0.0, numbers[-2])
        paths = np.log(self._paths.iteration_s(each))
        return np.asarray(paths.reshape(count, guesses) + surplus)

    def fix_surplus(self, numbers: Floats) -> None:
        """Compute the jitter surplus from these numbers (count,) from now on."""
        self._settled, self._surplus_here, self._surpluses = numbers, None, {}
        self._surplus_here = self._surplus(self.clocks)

    def find_spread(self, numbers: Floats) -> None:
        """Set the operations' spread, which explains that of iterations, and its prior."""
        self.spread, surplus = self._operation_spread(numbers[:, None])
        mean, sd = self.prior.mean.copy(), self.prior.sd.copy()
        mean[-2], sd[-2] = surplus
        self.prior = Prior(mean, sd)

    def _prior(self) -> Prior:
        first, pipeline = self._measurements[0], self._pipeline
        scale = np.log(first.time_s / (pipeline.microbatches + pipeline.stages - 1))
        stages = pipeline.stages
        knee = LATE_KNEE if (self.clocks > self.default).any() else (0.0, 1e-9)
        mean = np.concatenate(
            [[scale, CLOCK_SHARE[0]], np.zeros(2 * stages), [knee[0], SURPLUS[0], FORWARD_SHARE[0]]]
        )
        sd = np.concatenate(
            [
                [TIME_SD, CLOCK_SHARE[1]],
                [STAGE_SD] * stages,
                [CLOCK_SHARE_STAGE] * stages,
                [knee[1], SURPLUS[1], FORWARD_SHARE[1]],
            ]
        )
        if self._predicted is not None:
            self._take(self._predicted, mean, sd)
        return Prior(mean, sd)

    def _take(self, predicted: WorkPrior, mean: Floats, sd: Floats) -> None:
        """Replace the prior of GPUs in general by a prediction of this job, in place."""
        stages = self._pipeline.stages
        busy_s, share = predicted.at(self.default)
        both_s = self._paths.iteration_s(busy_s[:, :, None])[0]
        mean[-1] = busy_s[:, 0].sum() / busy_s.sum()
        sd[-1] = work_prior.FORWARD_SHARE_SD
        work_s = busy_s.sum(axis=1)
        shares = (share * busy_s).sum(axis=1) / work_s
        mean[0] = np.log(work_s).mean() + np.log(self._measurements[0].time_s / both_s)
        mean[SHARE_AT], sd[SHARE_AT] = shares.mean(), work_prior.CLOCK_SHARE_SD
        lean_at = STAGES_AT + stages
        mean[STAGES_AT:lean_at] = np.log(work_s) - np.log(work_s).mean()
        sd[STAGES_AT:lean_at] = work_prior.STAGE_SD
        mean[lean_at : lean_at + stages] = shares - shares.mean()

    def operations_s(self, log_busy: Floats, numbers: Floats) -> Floats:
        """Seconds of operations: (stages, kinds, m, guesses)."""
        both = np.exp(log_busy)[:, None]
        forward = np.clip(numbers[-1], *FORWARD_SHARES)
        return np.concatenate([forward * both, (1.0 - forward) * both], axis=1)

    def _surplus(self, clocks_mhz: Floats) -> Floats:
        """log of the jitter surplus at rows of clocks over that of the first measurement: (m,)."""
        if self._settled is None or self.spread <= 0.0:
            return np.zeros(len(clocks_mhz))
        if clocks_mhz is self.clocks and self._surplus_here is not None:
            return self._surplus_here
        held, keys = self._surpluses, [row.tobytes() for row in clocks_mhz]
        new = {key: i for i, key in enumerate(keys) if key not in held}
        if new:
            rows = np.concatenate([self.clocks[:1], clocks_mhz[list(new.values())]])
            settled = self._settled[:, None]
            each = self.operations_s(self.log_busy(settled, rows), settled)[..., 0]
            jittered = self._paths.jittered_s(each, self.spread).mean(axis=0)
            added = np.log(jittered / self._paths.iteration_s(each))
            if len(held) > SURPLUSES_MAX:
                held.clear()
                return self._surplus(clocks_mhz)
            held.update(zip(new, (added[1:] - added[0]).tolist(), strict=True))
        return np.array([held[key] for key in keys])

    def _operation_spread(self, numbers: Floats) -> tuple[float, tuple[float, float]]:
        """Spread of operations, and mean and standard deviation of the surplus share."""
        weights = [m.iterations for m in self._measurements]
        ratios = [m.time_sd_s / m.time_s for m in self._measurements]
        seen = float(np.sqrt(np.average(np.square(ratios), weights=weights)))
        each = self.operations_s(self.log_busy(numbers, self.clocks[:1]), numbers)[..., 0]
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
