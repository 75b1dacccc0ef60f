"""The plan of an earlier term whose leases a job's GPUs still hold: a new leader goes on with it.

The solver is not asked. The clocks are those of the stored plan; today's predictions have to
explain the job and keep today's deadline with them, and the guard judges them as it does any plan.
Pure.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby

from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.evaluation import Clocks, Evaluation
from joulecut_controller.plan.jitter import Jitter
from joulecut_controller.plan.plan import Resumption
from joulecut_controller.plan.solver_cache import Question
from joulecut_controller.policy.owner import Instance
from joulecut_controller.policy.policy import JobPolicy, Policy, policy_json
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import GRANULARITIES, Granularity
from joulecut_engine.optimize.jitter import Spread
from joulecut_engine.optimize.problem import ChangeLimits, Infeasible, Solution

DIGEST_LENGTH = 16  # hexadecimal digits
Order = Sequence[Sequence[int]]  # by stage: its operations, in the order they run


@dataclass(frozen=True, slots=True)
class EarlierPlan:
    """What the store has of a plan in force: what it promised, and its certificate."""

    generation: int
    granularity: Granularity
    iteration_time_s: float
    gap_ratio: float
    resumption: Resumption


def rests_on(policy: JobPolicy, shape: str, running: Instance | None) -> str:
    """A name for what a plan was made for: the job's policy, its GPUs by stage with pipeline and
    profile (`shape`), and the running job that owns them.
    """
    content = (policy_json(Policy(jobs=(policy,)))["jobs"], shape, repr(running))
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:DIGEST_LENGTH]


def clock_runs(order: Order, clocks: Clocks) -> tuple[tuple[tuple[int, int], ...], ...]:
    """By stage: (MHz, operations in a row)."""
    return tuple(
        tuple((mhz, len(list(run))) for mhz, run in groupby(clocks[i] for i in stage))
        for stage in order
    )


def clocks_of(plan: EarlierPlan, order: Order) -> Clocks | None:
    """By operation; None where the graph is another one."""
    by_stage = plan.resumption.clocks
    if [sum(count for _, count in runs) for runs in by_stage] != [len(stage) for stage in order]:
        return None
    clocks = chain.from_iterable([mhz] * n for runs in by_stage for mhz, n in runs)
    found = dict(zip(chain.from_iterable(order), clocks, strict=True))
    return tuple(found[i] for i in range(len(found)))


def read(plan_text: str) -> EarlierPlan | None:
    """A stored plan (`record.stored_json`); None unless it was enforced and can be resumed."""
    try:
        plan = json.loads(plan_text)
        kept, granularity = plan["resumption"], plan["granularity"]
        if plan["mode"] != "enforce" or plan["refused"] or granularity not in GRANULARITIES:
            return None
        limits = ChangeLimits(int(kept["changes_per_iteration"]), float(kept["min_dwell_s"]))
        clocks = tuple(
            tuple((int(mhz), max(0, int(count))) for mhz, count in runs)
            for runs in kept["clocks_by_stage"]
        )
        found = EarlierPlan(
            int(plan["generation"]),
            granularity,
            float(plan["forecast"]["iteration_time_s"]),
            float(plan["forecast"]["gap_ratio"]),
            Resumption(str(kept["rests_on"]), clocks, limits),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    finite = 0.0 < found.iteration_time_s < math.inf and 0.0 <= found.gap_ratio < math.inf
    return found if finite else None


class SameClocks:
    """Implements `solver_cache.Answers` with one plan, as long as it is at most `fit_ratio` over
    the goal. Its gap is the one that the solver proved when it was made. Nothing is drawn: jitter
    counts once the plan runs under this leader.
    """

    def __init__(self, made: Evaluation, gap_ratio: float, fit_ratio: float) -> None:
        self._made, self._gap_ratio, self._fit_ratio = made, gap_ratio, fit_ratio

    def ask(self, question: Question) -> Solution | Infeasible:
        goal, granularity = question.goal, question.granularity
        made, time_s = self._made, self._made.iteration_time_s
        if time_s > goal.deadline_s * (1.0 + self._fit_ratio):
            return Infeasible(goal.deadline_s, time_s)
        energy_j = made.energy_j(max(time_s, goal.deadline_s) if goal.waits else time_s)
        return Solution(
            granularity=granularity,
            clocks=made.options,
            start_s=made.start_s,
            iteration_time_s=time_s,
            energy_j=energy_j,
            lower_bound_j=energy_j / (1.0 + self._gap_ratio),
            bound_granularity=granularity,
            limits=question.limits if granularity == "changes" else None,
        )

    def spread(self, costs: Costs, jitter: Jitter, options: tuple[ClockOption, ...]) -> Spread:
        del costs, jitter, options
        return Spread(0.0, 0.0)
