"""Cache of solver answers, keyed by costs, goal and granularity.

A pass asks the same question every few seconds. Bounded: the least recently used answer goes first.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.jitter import STILL, Jitter
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.drawn_choices import Limit
from joulecut_engine.optimize.jitter import Noise, Spread, Trials, draws_of, judge_of
from joulecut_engine.optimize.jitter_margin import assured, of
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


class Prepared(Protocol):
    """One problem at one granularity, ready for many goals. Raises Infeasible."""

    @property
    def fastest_s(self) -> float: ...

    def solve(self, goal: Goal, hints: Sequence[Solution] = ()) -> Solution: ...

    def steadied(self, goal: Goal, limit: Limit, found: Sequence[Solution]) -> Solution: ...


Prepare = Callable[[Problem, Granularity, ChangeLimits], Prepared]
_Question = tuple[str, Goal, Granularity, Jitter, ChangeLimits]


class Unanswered(Exception):
    """The solver is still at work on this question; ask again once it has answered."""


class Answers(Protocol):
    """What the planner asks of the solver. Both raise Unanswered where workers compute."""

    def ask(
        self,
        costs: Costs,
        goal: Goal,
        granularity: Granularity,
        jitter: Jitter = STILL,
        limits: ChangeLimits = TWO_CHANGES,
    ) -> Solution | Infeasible:
        """The cheapest plan for this goal, or Infeasible."""
        ...

    def spread(self, costs: Costs, jitter: Jitter, options: tuple[ClockOption, ...]) -> Spread:
        """The distribution of iteration times of these options, in model seconds."""
        ...


# Own deadline, a straggler's and the time now, at two granularities each, of the jobs that one
# worker answered last.
ANSWERS_KEPT = 64
NOISE_KEPT = 4  # with their judges 15 MB at 8 x 48 for a lone pipeline
SPREADS_KEPT = 256  # two numbers each
PREPARED_KEPT = 8  # some megabytes each; two for a job whose costs stand still


class _NoiseSample(NamedTuple):
    search: Trials
    judge: Trials


class SolverCache:
    """Implements `Answers` in this process, asking the solver at most once a question. Not
    thread-safe.
    """

    def __init__(self, prepare: Prepare, kept: int = ANSWERS_KEPT) -> None:
        self._prepare = prepare
        self._kept = kept
        self._prepared: OrderedDict[tuple[str, Granularity, ChangeLimits], Prepared] = OrderedDict()
        self._answers: OrderedDict[_Question, Solution | Infeasible] = OrderedDict()
        self._noise: OrderedDict[tuple[str, Noise], _NoiseSample] = OrderedDict()
        self._spreads: OrderedDict[tuple[str, Noise, tuple[ClockOption, ...]], Spread] = (
            OrderedDict()
        )

    def spread(self, costs: Costs, jitter: Jitter, options: tuple[ClockOption, ...]) -> Spread:
        """The distribution of iteration times of these options, in model seconds."""
        key = (costs.digest, jitter.noise, options)
        if key not in self._spreads:
            self._spreads[key] = self._noise_of(costs, jitter).judge.spread(options)
            while len(self._spreads) > SPREADS_KEPT:
                self._spreads.popitem(last=False)
        self._spreads.move_to_end(key)
        return self._spreads[key]

    def ask(
        self,
        costs: Costs,
        goal: Goal,
        granularity: Granularity,
        jitter: Jitter = STILL,
        limits: ChangeLimits = TWO_CHANGES,
    ) -> Solution | Infeasible:
        """The cheapest plan for this goal, or Infeasible.

        Where times jitter, the statistic of the iteration time meets the deadline, not only
        the iteration on mean times.
        """
        key = (costs.digest, goal, granularity, jitter, limits)
        if key not in self._answers:
            self._answers[key] = self._solve(costs, goal, granularity, jitter, limits)
            while len(self._answers) > self._kept:
                self._answers.popitem(last=False)
        self._answers.move_to_end(key)
        return self._answers[key]

    def _noise_of(self, costs: Costs, jitter: Jitter) -> _NoiseSample:
        key = (costs.digest, jitter.noise)
        if key not in self._noise:
            problem, noise = costs.problem, jitter.noise
            search = Trials(problem, noise, draws=draws_of(noise))
            self._noise[key] = _NoiseSample(search, judge_of(problem, noise))
            while len(self._noise) > NOISE_KEPT:
                self._noise.popitem(last=False)
        self._noise.move_to_end(key)
        return self._noise[key]

    def _solve(
        self,
        costs: Costs,
        goal: Goal,
        granularity: Granularity,
        jitter: Jitter,
        limits: ChangeLimits,
    ) -> Solution | Infeasible:
        key = (costs.digest, granularity, limits)
        if key not in self._prepared:
            self._prepared[key] = self._prepare(costs.problem, granularity, limits)
            while len(self._prepared) > PREPARED_KEPT:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(key)
        try:
            if jitter.still:
                return self._prepared[key].solve(goal)
            noise = self._noise_of(costs, jitter)
            reserve_s = RESERVE * max(0.0, goal.deadline_s - self._prepared[key].fastest_s)
            found = assured(
                costs.problem,
                self._prepared[key],
                goal,
                noise.search,
                statistic=jitter.statistic,
                target_s=goal.deadline_s - reserve_s,
                judge=noise.judge,
            )
        except Infeasible as none:
            return none.with_traceback(None)
        if found.met:
            return found.plan
        return Infeasible(goal.deadline_s, of(found.spread, jitter.statistic))
