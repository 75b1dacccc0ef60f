"""Predicted frontiers of each job, for the page and the power budget: computed in the background,
and only where the predicted costs or the prices changed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.evaluation import at_default, evaluate, slower
from joulecut_controller.plan.plan import FrontierPoint
from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_controller.view import Window
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.money import Prices
from joulecut_engine.optimize.problem import Problem, Solution


class Frontier(Protocol):
    """Points of a problem at a granularity, ascending in time, the one of least cost among them."""

    def __call__(
        self, problem: Problem, points: int, granularity: Granularity, *, prices: Prices | None
    ) -> Sequence[Solution]: ...


POINTS = 25  # a smooth line on a page
BEYOND = 4  # clocks of a table between two points after the last plan
RENEW_S = 30.0  # a frontier is 25 solves or more; of many jobs `BackgroundTasks` takes its time
TOPIC = "frontier"


@dataclass(frozen=True, slots=True)
class _JobFrontier:
    """Points in model seconds, of one GPU per stage, beside `default_s` at default clocks; `digest`
    names their costs, and at `prices` the point of least cost is one of them. `beyond` are slower
    ones that draw less power, at more energy.
    """

    digest: str
    default_s: float
    made_s: float
    prices: Prices
    points: tuple[FrontierPoint, ...] = ()
    beyond: tuple[FrontierPoint, ...] = ()


class Frontiers:
    """The newest frontier of each job."""

    def __init__(self, frontier: Frontier, background: BackgroundTasks) -> None:
        self._frontier = frontier
        self._background = background
        self._kept: dict[str, _JobFrontier] = {}

    def keep_only(self, jobs: Iterable[str]) -> None:
        wanted = set(jobs)
        for job in [job for job in self._kept if job not in wanted]:
            del self._kept[job]

    def ask(
        self, job: str, costs: Costs, granularity: Granularity, prices: Prices, now_s: float
    ) -> None:
        """Begins to compute a job's frontier where it is missing or out of date."""
        kept = self._kept.get(job)
        newer = kept is None or kept.prices != prices
        if kept is not None and kept.digest != costs.digest:
            newer |= now_s - kept.made_s >= RENEW_S
        if newer and not self._background.pending((TOPIC, job)):
            work = partial(self._frontier, costs.problem, POINTS, granularity, prices=prices)
            keep = partial(self._keep, job, costs, now_s, prices)
            self._background.want((TOPIC, job), work, keep)

    def points(
        self, job: str, costs: Costs, baseline: Window | None, *, beyond: bool = False
    ) -> tuple[FrontierPoint, ...]:
        """The job's frontier for all its GPUs, in measured seconds where there is a baseline;
        empty while unknown. Time beyond the model counts as waiting. With `beyond` it goes on to
        the lowest clocks.
        """
        kept = self._kept.get(job)
        if kept is None:
            return ()
        ratio = 1.0  # real seconds over model seconds
        if baseline is not None:
            ratio = baseline.time_mean_s / kept.default_s
        waiting_w = costs.problem.time_price_w
        return tuple(
            FrontierPoint(
                iteration_time_s=ratio * point.iteration_time_s,
                energy_j=costs.width * (point.energy_j + waiting_w * longer_s),
                lower_bound_j=costs.width * (point.lower_bound_j + waiting_w * longer_s),
            )
            for point in (*kept.points, *(kept.beyond if beyond else ()))
            for longer_s in ((ratio - 1.0) * point.iteration_time_s,)
        )

    def _keep(
        self, job: str, costs: Costs, asked_s: float, prices: Prices, found: Sequence[Solution]
    ) -> None:
        points = (FrontierPoint(s.iteration_time_s, s.energy_j, s.lower_bound_j) for s in found)
        default_s = at_default(costs).iteration_time_s
        self._kept[job] = _JobFrontier(
            costs.digest, default_s, asked_s, prices, tuple(points), _beyond(costs, found)
        )


def _beyond(costs: Costs, found: Sequence[Solution]) -> tuple[FrontierPoint, ...]:
    """Ever slower clocks after the last plan."""
    if not found:
        return ()
    clocks = slower(costs, tuple(option.clock_mhz for option in found[-1].clocks))
    made = (evaluate(costs, one) for one in clocks[BEYOND - 1 :: BEYOND])
    return tuple(
        FrontierPoint(one.iteration_time_s, energy_j, energy_j)
        for one in made
        if one is not None and one.iteration_time_s > found[-1].iteration_time_s
        for energy_j in (one.energy_j(one.iteration_time_s),)
    )
