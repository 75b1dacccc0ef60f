"""What is decided for every job of a pass, and the figures that follow: all that asks the solver.

Apart from the pass because it may take seconds: it runs in a thread, beside heartbeats, the
page and people's orders, and touches nothing that those look at but its own two memories.
"""

from collections.abc import Callable, Mapping
from functools import partial

from joulecut_controller.plan.forecast import completed
from joulecut_controller.plan.plan import Forecast
from joulecut_controller.plan.planner import Choice, Decision, decide, given_up
from joulecut_controller.plan.planning_input import Case
from joulecut_controller.plan.solver_cache import Answers
from joulecut_controller.reconcile.job_controller import Steward
from joulecut_controller.reconcile.meters import Meters
from joulecut_controller.reconcile.solving import Solving
from joulecut_controller.reconcile.stragglers import Stragglers
from joulecut_engine.estimate.estimator import Estimator


class Thinking:
    """Decides by what was asked before, where nothing changed since."""

    def __init__(
        self,
        solving: Solving,
        stragglers: Stragglers,
        estimator: Estimator,
        *,
        meters: Meters,
        now_s: Callable[[], float],
    ) -> None:
        self._answers = Answers(solving.prepare, frontier=stragglers.of)
        self._studied = Answers(solving.prepare)  # another thread than the passes' answers
        self._estimator, self._meters, self._now_s = estimator, meters, now_s

    def decide(
        self, cases: Mapping[str, Case], stewards: Mapping[str, Steward]
    ) -> dict[str, Decision]:
        """The decision of each job. Whatever is wrong with one job's numbers is no one else's."""
        return {name: self._timed(case, stewards[name]) for name, case in cases.items()}

    def completion(self, choice: Choice) -> Callable[[], Forecast]:
        """The work that makes a choice's forecast whole: what other granularities would save."""
        return partial(completed, choice.forecast, choice.prospect, choice.before, self._studied)

    def _timed(self, case: Case, steward: Steward) -> Decision:
        begun_s = self._now_s()
        decision = self._decision(case, steward)
        if decision.verdict == "change":
            self._meters.plans.add(self._now_s() - begun_s)
        return decision

    def _decision(self, case: Case, steward: Steward) -> Decision:
        standing = steward.enactment.standing
        try:
            if _unprofiled(case):
                return steward.apprentice.decide(case, standing)
            return decide(case, standing, self._estimator, self._answers)
        except (ValueError, ArithmeticError) as error:
            return given_up(standing, f"cannot be planned: {error}: no change")


def _unprofiled(case: Case) -> bool:
    """Nobody measured this job before: it is learnt while it runs."""
    policy = case.job.policy
    return policy.profile is None and policy.pipeline is not None
