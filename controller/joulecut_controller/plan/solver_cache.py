"""What the planner asks of the solver, and a cache of its answers.

The planner is a generator: it yields a question and receives its answer, from a worker or from the
cache. A pass asks the same question every few seconds. The cache is bounded: the least recently
used answer is dropped first.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.jitter import STILL
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.jitter import Noise, Spread, Trials, draws_of, judge_of
from joulecut_engine.optimize.jitter_margin import Solves, assured
from joulecut_engine.optimize.problem import (
    TWO_CHANGES,
    ChangeLimits,
    Goal,
    Infeasible,
    Problem,
    Solution,
)

# Of the allowed slowing, left free under jitter: a baseline has a standard error of about 0.2 %,
# and a plan exactly at its target is measured late in every other window and then backed off.
RESERVE = 0.07


Prepare = Callable[[Problem, Granularity, ChangeLimits], Solves]


class Question(NamedTuple):
    """Which plan is the cheapest for this goal: a Solution, or Infeasible.

    Where times jitter, the mean of drawn iteration times meets the deadline, not only the
    iteration on mean times.
    """

    costs: Costs
    goal: Goal
    granularity: Granularity
    jitter: Noise = STILL
    limits: ChangeLimits = TWO_CHANGES

    @property
    def key(self) -> tuple[Hashable, ...]:
        return (self.costs.digest, *self[1:])


class Times(NamedTuple):
    """The distribution of iteration times of these options: a Spread, in model seconds."""

    costs: Costs
    jitter: Noise
    options: tuple[ClockOption, ...]

    @property
    def key(self) -> tuple[Hashable, ...]:
        return (self.costs.digest, self.jitter, self.options)


class Soon(NamedTuple):
    """Whether a question has its answer already; it is asked from now on."""

    question: Question


_Value = TypeVar("_Value")
Ask: TypeAlias = Question | Times | Soon
Asking: TypeAlias = Generator[Ask, Any, _Value]  # a computation that asks on its way


# Own deadline, a straggler's and the time now, at two granularities each, of the jobs that one
# worker answered last.
ANSWERS_KEPT = 64
NOISE_KEPT = 4  # with their judges 15 MB at 8 x 48 for a lone pipeline
SPREADS_KEPT = 256  # two numbers each
PREPARED_KEPT = 8  # some megabytes each; two for a job whose costs stand still


def remembered(
    cache: OrderedDict[Hashable, _Value], key: Hashable, kept: int, make: Callable[[], _Value]
) -> _Value:
    """The value of a key, made where the cache has none; beyond `kept` the least recently used one
    goes.
    """
    if key not in cache:
        cache[key] = make()
    cache.move_to_end(key)
    while len(cache) > kept:
        cache.popitem(last=False)
    return cache[key]


class _NoiseSample(NamedTuple):
    search: Trials
    judge: Trials


class SolverCache:
    """Answers in this process, asking the solver at most once a question. Not thread-safe."""

    def __init__(self, prepare: Prepare, kept: int = ANSWERS_KEPT) -> None:
        self._prepare, self._kept = prepare, kept
        self._prepared: OrderedDict[Hashable, Solves] = OrderedDict()
        self._answers: OrderedDict[Hashable, Solution | Infeasible] = OrderedDict()
        self._noise: OrderedDict[Hashable, _NoiseSample] = OrderedDict()
        self._spreads: OrderedDict[Hashable, Spread] = OrderedDict()

    def reply(self, ask: Question | Times) -> Solution | Infeasible | Spread:
        """See `Question` and `Times`."""
        if isinstance(ask, Question):
            return self.ask(ask)
        judge = self._noise_of(ask.costs, ask.jitter).judge
        return remembered(self._spreads, ask.key, SPREADS_KEPT, lambda: judge.spread(ask.options))

    def ask(self, question: Question) -> Solution | Infeasible:
        """See `Question`."""
        return remembered(self._answers, question.key, self._kept, lambda: self._solve(question))

    def _noise_of(self, costs: Costs, noise: Noise) -> _NoiseSample:
        problem = costs.problem
        return remembered(
            self._noise,
            (costs.digest, noise),
            NOISE_KEPT,
            lambda: _NoiseSample(
                Trials(problem, noise, draws=draws_of(noise)), judge_of(problem, noise)
            ),
        )

    def _solve(self, question: Question) -> Solution | Infeasible:
        costs, goal, granularity, jitter, limits = question
        try:
            prepared = remembered(
                self._prepared,
                (costs.digest, granularity, limits),
                PREPARED_KEPT,
                lambda: self._prepare(costs.problem, granularity, limits),
            )
            if jitter.still:
                return prepared.solve(goal)
            noise = self._noise_of(costs, jitter)
            reserve_s = RESERVE * max(0.0, goal.deadline_s - prepared.fastest_s)
            found = assured(
                costs.problem,
                prepared,
                goal,
                noise.search,
                statistic="mean",
                target_s=goal.deadline_s - reserve_s,
                judge=noise.judge,
            )
        except Infeasible as none:
            return none.with_traceback(None)
        if found.met:
            return found.plan
        return Infeasible(found.target_s, found.spread.mean_s)
