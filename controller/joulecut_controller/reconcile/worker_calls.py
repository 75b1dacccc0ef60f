"""The calls that worker processes answer for the loop, one function per kind.

Each returns a value of its arguments alone. What a worker prepared for one call it keeps for the
next, since the questions of one job resemble each other.
"""

from functools import lru_cache

from joulecut_controller.plan.evaluation import Comparison, Evaluation, completed
from joulecut_controller.plan.plan import Forecast
from joulecut_controller.plan.solver_cache import Prepare, Question, SolverCache, Times
from joulecut_engine.optimize.jitter import Spread
from joulecut_engine.optimize.problem import Infeasible, Solution


def reply(prepare: Prepare, ask: Question | Times) -> Solution | Infeasible | Spread:
    """See `SolverCache.reply`."""
    return _solver(prepare).reply(ask)


def completion(
    prepare: Prepare, made: Forecast, comparison: Comparison, before: Evaluation
) -> Forecast:
    """See `evaluation.completed`."""
    return completed(made, comparison, before, _solver(prepare))


@lru_cache(maxsize=1)
def _solver(prepare: Prepare) -> SolverCache:
    return SolverCache(prepare)
