"""What the solver said before, so that an unchanged question costs nothing.

A pass asks the same question every few seconds; the answer changes only with the costs, the
goal or the granularity. Bounded: the least recently used answer goes first.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from joulecut_controller.plan.costs import Costs
from joulecut_controller.solve.problem import Goal, Infeasible, Problem, Solution
from joulecut_controller.workload import Granularity


class Prepared(Protocol):
    """One problem at one granularity, ready for many goals. Raises Infeasible."""

    def solve(self, goal: Goal, hints: tuple[Solution, ...] = ()) -> Solution: ...


Prepare = Callable[[Problem, Granularity], Prepared]

# Per job: own deadline, a straggler's, the time now, at two granularities each; for 10 jobs.
ANSWERS_KEPT = 64
PREPARED_KEPT = 8  # some megabytes each; two for a job whose costs stand still


class Answers:
    """Asks the solver, at most once a question. Not thread-safe: one pass at a time uses it."""

    def __init__(self, prepare: Prepare, kept: int = ANSWERS_KEPT) -> None:
        self._prepare = prepare
        self._kept = kept
        self._prepared: OrderedDict[tuple[str, Granularity], Prepared] = OrderedDict()
        self._answers: OrderedDict[tuple[str, Goal, Granularity], Solution | Infeasible] = (
            OrderedDict()
        )

    def ask(self, costs: Costs, goal: Goal, granularity: Granularity) -> Solution | Infeasible:
        """The cheapest plan for this goal, or the word that none meets it."""
        key = (costs.digest, goal, granularity)
        if key not in self._answers:
            self._answers[key] = self._solve(costs, goal, granularity)
            while len(self._answers) > self._kept:
                self._answers.popitem(last=False)
        self._answers.move_to_end(key)
        return self._answers[key]

    def _solve(self, costs: Costs, goal: Goal, granularity: Granularity) -> Solution | Infeasible:
        key = (costs.digest, granularity)
        if key not in self._prepared:
            self._prepared[key] = self._prepare(costs.problem, granularity)
            while len(self._prepared) > PREPARED_KEPT:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(key)
        try:
            return self._prepared[key].solve(goal)
        except Infeasible as none:
            return none.with_traceback(None)
