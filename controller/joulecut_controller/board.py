"""The board: one immutable picture of the controller after each pass.

The page, the JSON API, `joulecut status` and the metrics read this value and nothing else, so that
they agree. Code that shows it cannot plan.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from joulecut_controller.orders import Hold
from joulecut_controller.plan.granularity import GranularityChoice
from joulecut_controller.plan.plan import FrontierPoint, Plan
from joulecut_controller.plan.veto import Veto
from joulecut_controller.policy.policy import Mode, Policy
from joulecut_controller.ports import Event, FleetState
from joulecut_controller.power.budget import Shares
from joulecut_controller.trust.default_windows import Account, DefaultTime, HoldoutsShown
from joulecut_controller.trust.interval import Interval
from joulecut_controller.view import Delay, JobState, View
from joulecut_wire.log_line import Level
from joulecut_wire.messages import IterationTiming

PlanState = Literal["enforced", "recommended", "refused"]
# A slowdown is shown once its standard error is a point at most.
SLOWDOWN_SD_MAX, NORMAL_95 = 0.01, 1.96
# What predictions may be off by where a plan is worth enforcing: half of what makes a graph count
# as unexplained in time; in power a usual saving must stay clearly above it.
TIME_ERROR_MAX, POWER_ERROR_MAX = 0.02, 0.05


@dataclass(frozen=True, slots=True)
class Learnt:
    """What the board shows of one job's predictors."""

    text: str = ""  # one line
    drifting: tuple[str, ...] = ()  # one line for each GPU whose operations take another time
    refused: tuple[tuple[str, int], ...] = ()  # samples not learned as reported, by reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether enforcing a recommendation is advisable: where nothing is `missing`. Errors are of
    predictions at the clocks that run, `scores` counts hold-outs of an earlier enforced time.
    """

    missing: str
    scores: int = 0
    time_error: float | None = None
    energy_error: float | None = None

    @property
    def yes(self) -> bool:
        return not self.missing

    @property
    def text(self) -> str:
        return f"not yet: {self.missing}" if self.missing else "advisable"


@dataclass(frozen=True, slots=True)
class SolverWait:
    """A decision that waits for the solver, at its `place` of the `line`; 0: it is being solved."""

    waited_s: float
    place: int
    line: int

    @property
    def sentence(self) -> str:
        """One clause."""
        if not self.place:
            return f"the solver is at work on a plan for {self.waited_s:.0f} s"
        waits = f"place {self.place} of {self.line} in the line for the solver"
        return f"a plan has {waits}, waiting for {self.waited_s:.0f} s"


@dataclass(frozen=True, slots=True)
class JobBoard:
    """One job as shown. `decision` is the newest plan, `applied` the one whose clocks are
    held under leases now (None at default).
    """

    view: JobState
    mode: Mode
    sentence: str  # what the last pass did for this job, and why
    decision: Plan | None = None
    applied: Plan | None = None
    frontier: tuple[FrontierPoint, ...] = ()
    account: Account = field(default_factory=Account)
    predict_error_time_ratio: float | None = None
    predict_error_power_ratio: float | None = None
    learnt: Learnt = Learnt()  # its predictors; without a profile, the first recommendation
    holds: tuple[Hold, ...] = ()  # what keeps the controller from it
    trips: int = 0  # of the breaker, in the last day
    holdout: HoldoutsShown | None = None
    default_time: DefaultTime | None = None  # of an enforced job
    choice: GranularityChoice = field(default_factory=GranularityChoice)  # of the newest plan
    timing: IterationTiming | None = None  # the worst of its GPUs
    delay: Delay | None = None  # the GPUs that its iterations wait for
    vetoes: tuple[Veto, ...] = ()  # all that forbids a plan now, in their order
    solver_wait: SolverWait | None = None
    computing: bool = False  # `decision` is from before the plan that the solver is at work on

    @property
    def granularity(self) -> str:
        """Of the plan that runs, else of the newest."""
        if self.applied is not None and self.applied.granularity != self.choice.granularity:
            return self.applied.granularity
        return self.choice.name

    @property
    def advisable(self) -> Verdict | None:
        """None where the question does not arise: in another mode, under a reservation, and without
        a measured profile.
        """
        view, profile, plan = self.view, self.view.policy.profile, self.decision
        measured = profile is not None and not profile.predicted
        if not measured or view.policy.mode != "recommend" or view.reservation:
            return None
        time, power = self.predict_error_time_ratio, self.predict_error_power_ratio
        saving = self.holdout.saving if self.holdout else None
        saved = saving.saved_ratio.mid if saving and saving.saved_ratio else None
        found = [view.placement.complaint or view.hindrance or view.measured.external_lock]
        if plan is None or plan.changes_nothing:
            found.append("nothing was recommended so far")
        if time is None:
            found.append("no prediction was compared with a measurement yet")
        elif time > TIME_ERROR_MAX:
            found.append(f"time error {100.0 * time:.1f} % at the clocks that run")
        if power is not None and power > POWER_ERROR_MAX:
            found.append(f"power error {100.0 * power:.1f} %")
        if saved is not None and saved <= 0.0:
            found.append(f"{100.0 * saved:.1f} % saved in hold-outs")
        scores = saving.holdouts if saving else 0
        return Verdict("; ".join(filter(None, found)), scores, time, power)

    @property
    def plan_state(self) -> PlanState:
        """Of the newest plan. A recommended one is sound, and no command is sent for it."""
        plan, applied = self.decision, self.applied
        if plan is not None and plan.refused:
            return "refused"
        held = plan is not None and applied is not None and plan.generation == applied.generation
        return "enforced" if held else "recommended"

    @property
    def slowdown(self) -> Interval | None:
        """Of a plan's clocks in force against default clocks at equal work, with its 95 %
        interval; None until it is known to a point.
        """
        known = self.view.measured.reference
        if self.applied is None or known is None or known.slowdown.sd > SLOWDOWN_SD_MAX:
            return None
        mid, half = known.slowdown.mean, NORMAL_95 * known.slowdown.sd
        return Interval(mid, mid - half, mid + half).mapped(math.expm1)

    @property
    def slowdown_ratio(self) -> float | None:
        """Measured, of the clocks in force: the reference's, or, without one and while a sibling is
        waited for, that of iterations against the baseline. None until some are measured.
        """
        baseline, current = self.view.measured.baseline, self.view.measured.current
        if baseline is None or current is None or baseline.time_mean_s <= 0.0:
            return None
        if self.slowdown is not None and self.view.measured.peer_iteration_time_s is None:
            return self.slowdown.mid
        return current.time_mean_s / baseline.time_mean_s - 1.0

    @property
    def saved_ratio(self) -> float | None:
        """Measured, of the energy of the current window against the baseline's."""
        baseline, current = self.view.measured.baseline, self.view.measured.current
        if baseline and current and baseline.energy_j and current.energy_j is not None:
            return 1.0 - current.energy_j / baseline.energy_j
        return None

    @property
    def bloat_w(self) -> dict[str, float]:
        """Watts above the frontier at the clocks that run, predicted, of each kind that is known. A
        plan removes bloat: once it is applied only its gap to the lower bound is left.
        """
        forecast = self.decision.forecast if self.decision else None
        if forecast is None or not forecast.bounded:
            return {}
        before = {
            "intrinsic": forecast.intrinsic_bloat_w,
            "extrinsic": forecast.extrinsic_bloat_w,
            "variability": forecast.variability_bloat_w,
        }
        known = {kind: watts for kind, watts in before.items() if watts is not None}
        if self.applied is None or self.applied != self.decision:
            return known
        gap_w = (forecast.energy_j - forecast.lower_bound_j) / forecast.iteration_time_s
        left = {"intrinsic": max(0.0, gap_w), "extrinsic": 0.0}
        return left | {kind: 0.0 for kind in known if kind == "variability"}

    @property
    def refused(self) -> tuple[tuple[str, int], ...]:
        """Reports and samples refused or corrected, by reason."""
        both = Counter(dict(self.learnt.refused))
        both.update(dict(self.view.measured.refused))
        return tuple(sorted(both.items()))


@dataclass(frozen=True, slots=True)
class PowerLimits:
    """The power limits of all GPUs under the budget, in watts.

    `in_force_w` is the highest sum that may be in force, `capacity_w` what the budget leaves to
    GPUs, `least_w` the smallest budget that is possible. `best_effort` says why the budget is not
    certain to hold; empty where it is.
    """

    budget_w: float | None
    in_force_w: float
    capacity_w: float = 0.0
    least_w: float = 0.0
    limits_w: Mapping[str, float] = field(default_factory=dict)
    state: Literal["kept", "lowering", "recommended", "lifted"] = "kept"
    best_effort: str = ""
    text: str = ""

    @property
    def hosts_w(self) -> float:
        """What the budget counts for hosts."""
        return max(0.0, (self.budget_w or 0.0) - self.capacity_w)

    @property
    def sentence(self) -> str:
        """The state in one sentence, with the reason where the budget is best effort."""
        word: str = "in mode recommend" if self.state == "recommended" else self.state
        budget = f"power budget of {self.budget_w:.6g} W" if self.budget_w else "power budget"
        if self.state == "lifted":
            return f"{budget} lifted: {self.text}"
        if self.best_effort and self.state != "recommended":
            word = f"{word}, best effort: {self.best_effort}"
        return f"{budget} {word}; {self.text}"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One event of one job; `job` is empty for the controller's own."""

    job: str
    text: str
    level: Level


@dataclass(frozen=True, slots=True)
class Board:
    """Everything shown, as of one pass."""

    at_unix_s: float
    pass_number: int
    epoch: int
    sentence: str  # what the pass did, in one sentence
    view: View
    jobs: tuple[JobBoard, ...]
    events: tuple[Event, ...]  # newest first
    policy_source: str = ""
    policy_digest: str = ""
    policy_error: str = ""  # why the file on disk is not in force
    budget: Shares | None = None  # the power budget and what it means; None without one
    power_limits: PowerLimits | None = None  # None without a budget and without limits to lift
    interval_s: float = 0.0
    leads: bool = True  # False: of a standby, which sees agents and plans nothing
    leader: str = ""  # of a standby: host and port of the one that leads, where that is known
    holds: tuple[Hold, ...] = ()  # of all jobs, and on all of them
    policy: Policy | None = None  # in force
    lines: tuple[LogLine, ...] = ()  # what was done since the last board, and what is wrong
    warnings: tuple[str, ...] = ()  # what is wrong with the controller itself
    unused_s: Mapping[str, float] = field(default_factory=dict)  # by GPU that is held and not used
    elsewhere: tuple[tuple[float, str], ...] = ()  # other controllers' parts, with age in seconds


def standby_board(
    state: FleetState,
    sentence: str,
    *,
    leader: str = "",
    number: int,
    interval_s: float,
    now_s: float,
    unix_s: float,
) -> Board:
    """A board without jobs, for a controller that does not lead: the agents, and who leads.

    `leader` is host and port of the leader, `number` counts boards, `now_s` is the clock of the
    ages in `state`.
    """
    gpus = {gpu.uuid: gpu for gpu in state.gpus}
    return Board(
        at_unix_s=unix_s,
        pass_number=number,
        epoch=0,
        sentence=sentence,
        view=View(now_s=now_s, nodes=state.nodes, gpus=gpus),
        jobs=(),
        events=(),
        interval_s=interval_s,
        leads=False,
        leader=leader,
    )
