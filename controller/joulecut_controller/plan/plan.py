"""The plan: one immutable numbered decision for a job, with its reasons.

Dry run, page, command line, audit log, metrics and tests all show this object.
"""

from dataclasses import dataclass, field
from typing import Literal

from joulecut_controller.policy.policy import Fixed, Mode
from joulecut_controller.view import PhaseKind
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.clock_steps import ClockStep
from joulecut_engine.optimize.problem import Goal, Problem, Solution
from joulecut_wire.messages import TimedStep

Verb = Literal["hold", "lower", "raise", "clear"]
# What a lower clock would break: the deadline; the lowest clock measured and allowed; the dwell;
# nothing, but it takes more energy. Or nothing that is known: with jitter the deadline, else it is
# within the gap of the search.
Binding = Literal["deadline", "floor", "dwell", "energy", "jitter", "gap"]


@dataclass(frozen=True, slots=True)
class Action:
    """One GPU's part of a plan. `clock_mhz` None means: default clocks. `power_limit_w` is a fixed
    limit of the policy; None leaves the limit alone. `unused_mhz` is the clock for as long as
    nothing uses the GPU; 0: none.

    With `steps` the clock changes within each iteration, at times from its start, and `clock_mhz`
    is the highest of them.
    """

    uuid: str
    stage: int
    verb: Verb
    clock_mhz: int | None
    reason: str
    steps: tuple[TimedStep, ...] = ()
    power_limit_w: float | None = None
    unused_mhz: int = 0

    @property
    def leased(self) -> bool:
        """Whether it needs a lease."""
        return self.clock_mhz is not None or self.power_limit_w is not None

    @property
    def lowest_mhz(self) -> int | None:
        """The lowest clock of an iteration, or of the unused GPU."""
        one_mhz = self.unused_mhz or self.clock_mhz
        return min((step.clock_max_mhz for step in self.steps), default=one_mhz)


@dataclass(frozen=True, slots=True)
class ClockReason:
    """Why a stage has its clock in one stretch of the iteration, and no lower one.

    Any operation of the stretch may take
    `slack_s` longer before the iteration does. Steps are of one iteration of the whole job.
    """

    stage: int
    offset_s: float
    clock_mhz: int
    slack_s: float
    lower: ClockStep | None
    higher: ClockStep | None
    binds: Binding
    text: str


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One point of a job's predicted frontier: one iteration, all its GPUs."""

    iteration_time_s: float
    energy_j: float
    lower_bound_j: float


@dataclass(frozen=True, slots=True)
class Band:
    """What nine in ten forecasts stay within; ratios against default clocks."""

    slowdown_low_ratio: float
    slowdown_high_ratio: float
    saved_low_ratio: float
    saved_high_ratio: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted time and energy of a plan, and those of the baseline.

    Times of one iteration; energies of all the job's GPUs per iteration. Predicted,
    never measured; `saved_ratio` and `slowdown_ratio` are fractions of the baseline.
    """

    iteration_time_s: float
    energy_j: float
    baseline_time_s: float
    baseline_energy_j: float
    lower_bound_j: float
    gap_ratio: float
    saved_by_granularity: tuple[tuple[str, float], ...] = ()  # names of `evaluation.COMPARED`
    intrinsic_bloat_w: float | None = None  # None until computed, which takes seconds
    extrinsic_bloat_w: float | None = None
    variability_bloat_w: float | None = None  # ... or unless the times of all GPUs are measured
    modelled: float | None = None  # log slowdown by the model alone; None of a trial
    operations: float | None = None  # the same of single operations, the median over stages
    band: Band | None = None  # of a plan that is predicted from other jobs

    @property
    def bounded(self) -> bool:
        """Whether a lower bound is known."""
        return self.lower_bound_j > 0.0

    @property
    def saved_ratio(self) -> float:
        return 1.0 - self.energy_j / self.baseline_energy_j

    @property
    def slowdown_ratio(self) -> float:
        return self.iteration_time_s / self.baseline_time_s - 1.0


@dataclass(frozen=True, slots=True)
class Basis:
    """What a plan of clocks answers. The guard checks the plan against it.

    A solved plan has the solver's `problem` and `goal`. `fixed` is the policy's fixed clock and
    power limit; None without them.
    """

    problem: Problem | None = None
    goal: Goal | None = None
    fixed: Fixed | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision for one job. `actions` empty means: no change, and `reason` says why.

    `generation` comes from one controller-wide counter (0: not numbered yet); `parent` is the
    generation this plan replaces (0: default clocks). `refused` is the guard's reason; such a plan
    is published but never applied. `basis` ends with the guard: a published plan keeps none.
    """

    job: str
    generation: int = 0
    parent: int = 0
    mode: Mode = "recommend"
    granularity: Granularity = "gpu"
    actions: tuple[Action, ...] = ()
    reason: str = ""
    made_at_unix_s: float = 0.0
    deadline_s: float | None = None
    forecast: Forecast | None = None
    solution: Solution | None = None
    refused: str = ""
    granularity_asked: str = ""  # the finest that was allowed
    granularity_why: str = ""  # why it is none of the finer ones; empty where it is the finest
    shortest_step_s: float = 0.0  # the shortest time at one clock, where clocks change
    basis: Basis | None = field(default=None, compare=False, repr=False)
    predicted_from: str = ""  # what a plan rests on whose clocks never ran; empty of all others
    phase: PhaseKind = "train"  # of the job, that its clocks are for
    clock_reasons: tuple[ClockReason, ...] = ()  # by stage; empty for a step of learning

    @property
    def changes_nothing(self) -> bool:
        return not self.actions or bool(self.refused)


def verb_of(
    asked_mhz: int, now_mhz: int, default_mhz: int, locked: bool
) -> tuple[Verb, int | None]:
    """The verb from one clock to another, and the lock it takes; None for default clocks."""
    if asked_mhz >= default_mhz:
        return ("clear" if locked else "hold"), None
    if asked_mhz == now_mhz:
        return "hold", asked_mhz
    return ("lower" if asked_mhz < now_mhz else "raise"), asked_mhz
