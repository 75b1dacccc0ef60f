"""Inputs of the planner: one job in one pass, and the state of the last pass.

Values only, so that a decision can be replayed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from joulecut_controller.chunk import Setting
from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.evaluation import Clocks
from joulecut_controller.plan.granularity import GranularityChoice
from joulecut_controller.plan.jitter import STILL
from joulecut_controller.plan.veto import SUSPENDS, Veto
from joulecut_controller.policy.policy import Mode
from joulecut_controller.trust import short_window
from joulecut_controller.view import JobState, View
from joulecut_engine.optimize.jitter import Noise
from joulecut_engine.optimize.problem import Goal

if TYPE_CHECKING:
    from joulecut_controller.plan.predicted import Prediction


@dataclass(frozen=True, slots=True)
class PlanningInput:
    """One job in one pass. `running` maps its GPUs to the clock their lease allows (0: none).

    `measured_applied`: `job.current` ran under the clocks of the last decision.
    """

    view: View
    job: JobState
    mode: Mode
    baseline_progress: str  # "12 of 30 iterations"
    running: Mapping[str, int]
    measured_applied: bool
    stale_s: float
    host_power_w: float = 0.0
    vetoes: tuple[Veto, ...] = ()  # beside those that follow from this picture (`planner.vetoes`)
    allotted_s: float | None = None  # the mean iteration time that a power budget asks for
    # Of very many jobs some are examined a pass; a steady plan of the others stands meanwhile.
    examined: bool = True
    other_phase: bool = False  # of training and evaluation, the clocks held are for the other one
    predicted: "Prediction | None" = None  # of a job without a profile
    limits_w: Mapping[str, float] = field(default_factory=dict)  # fixed power limits held, by GPU
    power_budget: bool = False  # whether one sets the power limits

    @property
    def default_s(self) -> float:
        """Mean seconds of an iteration at default clocks. Infinite before any were measured."""
        known, baseline = self.job.measured.reference, self.job.measured.baseline
        if baseline is None:
            return math.inf
        if known is None or self.allotted_s is not None:  # power limits slow what it follows
            return baseline.time_mean_s
        scatter = baseline.time_sd_s / baseline.time_mean_s
        return math.exp(known.default.mean + scatter**2 / 2.0)  # of a log-normal distribution

    @property
    def deadline_s(self) -> float:
        """What the mean iteration must not exceed."""
        return max(self.job.policy.slo.deadline_s(self.default_s), self.allotted_s or 0.0)

    @property
    def allowed(self) -> float:
        """Log slowdown that a plan may aim at."""
        return math.log(self.deadline_s / self.default_s)

    @property
    def budget(self) -> float:
        """Log slowdown that the policy allows, of the mean."""
        known = self.job.measured.reference
        return self.job.policy.slo.budget(math.exp(known.default.mean) if known else 1.0)

    @property
    def doubt(self) -> str:
        """Why default clocks should be measured; empty where they are known well enough."""
        measured = self.job.measured
        if measured.straggling or self.allotted_s is not None or measured.reference is None:
            return ""  # a straggler or a power budget sets a deadline of its own
        return measured.reference.doubt(self.budget)

    @property
    def unknown(self) -> bool:
        """Whether they have to be measured before any clock is lowered: they are in doubt, and the
        share of time for windows allows one. Of a noisy job they are never known well.
        """
        measured, drift = self.job.measured, self.job.measured.drift
        if not self.doubt or measured.baseline is None:
            return False
        held_s = short_window.length_s(measured.baseline.time_mean_s) / short_window.SHARE_MAX
        return drift.shift_ratio != 1.0 or self.view.now_s - drift.measured_s > held_s


@dataclass(frozen=True, slots=True)
class Lateness:
    """Clocks that came out late: their setting and modelled log slowdown. No others as slow are
    tried until `until_s`, which `caution_s` led to. `count` is that of late plans in succession.
    """

    setting: Setting | None = None
    predicted: float = 0.0
    until_s: float = -math.inf
    caution_s: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class PlannerState:
    """The planner's state from pass to pass. `clocks` are those of the last decision, None for
    default clocks; in mode recommend they do not run. `suspended` names what holds them back now,
    after which they are taken up again.
    """

    mode: Mode = "off"
    clocks: Clocks | None = None
    costs: Costs | None = None
    goal: Goal | None = None
    aim: float = 0.0  # log slowdown of the model that an own goal leaves: costs move, this stays
    allowed: float = 0.0  # log slowdown that the deadline of `clocks` allowed
    setting: Setting | None = None  # of `clocks`, once in force
    late: Lateness = field(default_factory=Lateness)
    changed_s: float = float("-inf")
    jitter: Noise = STILL
    asked: Mapping[str, int] = field(default_factory=dict)  # the clock of each GPU for `clocks`
    asked_w: Mapping[str, float] = field(default_factory=dict)  # fixed power limits, by GPU
    # Of `clocks`: changes of a GPU within an iteration at most, and the shortest time between two.
    changes: tuple[int, float] = (0, 0.0)
    suspended: str = ""
    choice: GranularityChoice = field(default_factory=GranularityChoice)

    @property
    def runs(self) -> bool:
        """Whether `clocks` are in force."""
        return self.clocks is not None and not self.suspended

    def at_default(self) -> "PlannerState":
        """Without the clocks that were in force."""
        return replace(self, clocks=None, goal=None) if self.runs else self

    def after(self, veto: Veto, now_s: float) -> "PlannerState":
        """At default clocks by a veto that does not release the plan."""
        if not self.runs:
            return self
        return replace(self, suspended=SUSPENDS[veto.kind], changed_s=now_s)
