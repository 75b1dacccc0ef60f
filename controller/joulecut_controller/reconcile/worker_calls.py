"""The calls that worker processes answer for the loop, one function per kind.

Each returns a value of its arguments alone. What a worker prepared for one call it keeps for the
next, since the questions of one job resemble each other.
"""

from collections import OrderedDict
from collections.abc import Hashable
from functools import lru_cache

from joulecut_controller.learn.advice import Advice
from joulecut_controller.learn.evidence import ExplorerInput
from joulecut_controller.learn.explorer import Explorer
from joulecut_controller.learn.measurement_log import MeasurementLog
from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.evaluation import Comparison, Evaluation, completed
from joulecut_controller.plan.jitter import Jitter
from joulecut_controller.plan.plan import Forecast
from joulecut_controller.plan.solver_cache import Prepare, Question, SolverCache, remembered
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.jitter import Spread
from joulecut_engine.optimize.problem import Infeasible, Solution

EXPLORERS_KEPT = 16  # with their fits, some megabytes each

_explorers: OrderedDict[Hashable, Explorer] = OrderedDict()


def answer(prepare: Prepare, question: Question) -> Solution | Infeasible:
    """See `solver_cache.Answers.ask`."""
    return _solver(prepare).ask(question)


def spread(
    prepare: Prepare, costs: Costs, jitter: Jitter, options: tuple[ClockOption, ...]
) -> Spread:
    """See `solver_cache.Answers.spread`."""
    return _solver(prepare).spread(costs, jitter, options)


def completion(
    prepare: Prepare, made: Forecast, comparison: Comparison, before: Evaluation
) -> Forecast:
    """See `evaluation.completed`."""
    return completed(made, comparison, before, _solver(prepare))


def advice(job: str, facts: ExplorerInput, log: MeasurementLog) -> Advice:
    """See `Explorer.advise`; `job` names the explorer that has fitted the log before."""
    return remembered(_explorers, job, EXPLORERS_KEPT, Explorer).advise(facts, log)


@lru_cache(maxsize=1)
def _solver(prepare: Prepare) -> SolverCache:
    return SolverCache(prepare)
