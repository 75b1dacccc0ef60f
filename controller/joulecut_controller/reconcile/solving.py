"""What a leadership term asks of the solver, so that the pass names no solver itself."""

from dataclasses import dataclass

from joulecut_controller.plan.guard import Check
from joulecut_controller.plan.solver_cache import Prepare
from joulecut_controller.reconcile.frontiers import Frontier
from joulecut_controller.reconcile.stragglers import Keep


@dataclass(frozen=True, slots=True)
class SolverFunctions:
    """The solver's four doors: plans, a second opinion on them, frontiers to look at."""

    prepare: Prepare
    check: Check
    frontier: Frontier
    keep: Keep | None = None  # a frontier to answer stragglers from; None: the solver does
