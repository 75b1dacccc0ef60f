"""What the solver is asked, and what it answers, as values.

A problem is one pipeline iteration: operations in a graph, clock options for each,
blocking power, and a deadline. A solution names one real option per operation; its
times and energy are recomputed from those options, never taken from a relaxation.
"""

from dataclasses import dataclass
from typing import Literal

from joulecut_engine.graph import Graph
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Granularity

# When data-parallel pipelines meet: once an iteration, so that one that would be early may run late
# on purpose (Perseus, SOSP'24, section 3.2), or layer by layer, so that none is known to be early.
Sync = Literal["iteration", "layer"]


@dataclass(frozen=True, slots=True)
class Problem:
    """`options[i]` belongs to `graph.operations[i]`: undominated, fastest first, never empty.

    `measured[i]` are all its options, those included that another beats: with one clock per
    GPU a clock can be best although it is dominated for one kind of operation. Empty means
    that `options` is all there is.

    Operations that cost the same share one tuple object, so that work per distinct
    option set is done once. `blocking_power_w[s]` is what the GPU of stage s draws while
    it waits, in watts. `overhead_power_w` is charged for the whole iteration, for all
    GPUs together (host power from the policy; 0 where none is given).
    """

    graph: Graph
    options: tuple[tuple[ClockOption, ...], ...]
    blocking_power_w: tuple[float, ...]
    overhead_power_w: float = 0.0
    measured: tuple[tuple[ClockOption, ...], ...] = ()

    @property
    def time_price_w(self) -> float:
        """What a second of iteration time costs when every GPU just waits."""
        return sum(self.blocking_power_w) + self.overhead_power_w


@dataclass(frozen=True, slots=True)
class Goal:
    """What a plan must keep, and what it minimises.

    `waits=False` (a lone pipeline): least total energy E(T) over plans with T <= deadline.
    `waits=True` (a straggler is waited for until the deadline anyway): least effective
    cost within the deadline.
    """

    deadline_s: float
    waits: bool = False


@dataclass(frozen=True, slots=True)
class ChangeLimits:
    """What granularity `changes` may do to the clock of one GPU, and what each change costs.

    At most `per_iteration` changes; iterations repeat, so the way back from the last clock to the
    first counts. Between two of them lie at least `min_dwell_s`. A change stops its
    GPU for `cost_s`, at blocking power, and takes `cost_j` more.
    """

    per_iteration: int = 2
    min_dwell_s: float = 0.0
    cost_s: float = 0.0
    cost_j: float = 0.0


TWO_CHANGES = ChangeLimits()


@dataclass(frozen=True, slots=True)
class Solution:
    """One real clock option per operation, with the certificate.

    energy_j = sum of option energies + sum over stages of blocking_power * (T - busy time)
    + overhead_power * T + what clock changes cost, with T = iteration_time_s, the exact longest
    path; where the goal waits, T is the deadline instead, since that long is waited whatever the
    plan.
    `lower_bound_j` is valid for every plan of `bound_granularity` (a finer granularity's
    bound holds for a coarser one too) under the same goal.
    """

    granularity: Granularity
    clocks: tuple[ClockOption, ...]  # by operation index
    start_s: tuple[float, ...]
    iteration_time_s: float
    energy_j: float
    lower_bound_j: float
    bound_granularity: Granularity
    limits: ChangeLimits | None = None  # with granularity `changes`
    solve_seconds: float = 0.0

    @property
    def gap(self) -> float:
        """(energy - lower bound) / lower bound, never below 0."""
        return max(0.0, (self.energy_j - self.lower_bound_j) / self.lower_bound_j)


class Infeasible(ValueError):
    """No plan meets the deadline; carries the fastest possible iteration time."""

    def __init__(self, deadline_s: float, fastest_s: float) -> None:
        self.deadline_s = deadline_s
        self.fastest_s = fastest_s
        super().__init__(
            f"deadline {deadline_s:.6g} s is below the fastest possible {fastest_s:.6g} s"
        )

    def __reduce__(self) -> tuple[type["Infeasible"], tuple[float, float]]:
        """For answers of worker processes: an exception is rebuilt from its arguments."""
        return Infeasible, (self.deadline_s, self.fastest_s)


class NoCommonClock(ValueError):
    """A stage has no clock at which all its operations were measured; or all stages together
    have none (`stage` is None)."""

    def __init__(self, stage: int | None) -> None:
        self.stage = stage
        who = "no clock" if stage is None else f"stage {stage} has no clock"
        super().__init__(
            f"{who} that all {'' if stage is None else 'its '}operations were measured at"
        )

    def __reduce__(self) -> tuple[type["NoCommonClock"], tuple[int | None]]:
        return NoCommonClock, (self.stage,)
