"""Long computations: beside the passes, one at a time, newest question only."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from job_states import job_state
from planning import decided
from worlds import World

from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.evaluation import default_clocks, evaluate
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.plan.solver_cache import SolverCache
from joulecut_controller.policy.policy import Slo
from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_controller.reconcile.frontiers import RENEW_S, Frontiers
from joulecut_controller.view import View, Window
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.money import Prices
from joulecut_engine.optimize.problem import Problem, Solution
from joulecut_engine.optimize.solver import Solver, frontier
from joulecut_wire.errors import Unavailable

WAIT_S = 120.0  # generous: whoever comes first compiles the solver


async def settled(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def run(body: Callable[[BackgroundTasks], Awaitable[None]]) -> None:
    async def go() -> None:
        studies = BackgroundTasks()
        await body(studies)
        await studies.stop()

    asyncio.run(go())


def test_a_result_that_nobody_can_keep_is_handed_over_again() -> None:
    """The store was away: the work is not done anew, and what was asked besides is answered."""
    worked, kept = [], []

    def work() -> str:
        worked.append(1)
        return "figures"

    def keep(result: str) -> None:
        kept.append(result)
        if len(kept) < 3:
            raise Unavailable("the store is away")

    async def go() -> None:
        studies = BackgroundTasks(retry_s=0.01)
        other: list[str] = []
        studies.want(("a", "job"), work, keep)
        studies.want(("b", "job"), lambda: "else", other.append)
        await settled(lambda: other == ["else"] and len(kept) == 3)
        assert kept == ["figures"] * 3
        assert len(worked) == 1
        assert not studies.pending(("a", "job"))
        await studies.stop()

    asyncio.run(go())


def test_a_task_that_fails_is_reported_once_and_holds_up_no_other() -> None:
    def work() -> str:
        raise ValueError("no figures")

    async def go() -> None:
        said: list[tuple[tuple[str, str], str]] = []
        shown: list[int] = []
        studies = BackgroundTasks(
            failed=lambda key, error: said.append((key, error)), finished=lambda: shown.append(1)
        )
        for number in range(2):
            got: list[int] = []
            studies.want(("a", "job"), work, lambda _: None)
            studies.want(("b", "job"), partial(int, number), got.append)
            await settled(lambda got=got, number=number: got == [number])
            assert not studies.pending(("a", "job"))
        assert said == [(("a", "job"), "ValueError: no figures")]
        assert len(shown) == 2, "a finished task makes a board at once"
        await studies.stop()

    asyncio.run(go())


def costs() -> Costs:
    world = World(stages=2, microbatches=4)
    state = world.observe(world.now_s)
    job = job_state(
        policy=world.policy(slo=Slo(max_slowdown=0.02)).jobs[0],
        stages=tuple((uuid,) for uuid in world.uuids),
        loads=(),
        baseline=Window(64, world.plant.iterate([1410, 1410]).own_s, 0.0, None, None),
        current=None,
        generation_running=0,
        peer_iteration_time_s=None,
        report_age_s=0.0,
    )
    view = View(world.now_s, state.nodes, {gpu.uuid: gpu for gpu in state.gpus}, (job,))
    inputs = PlanningInput(view, job, "recommend", "", {}, False, 3.0)
    estimator = OnlineEstimator({world.job: world.profile()})
    found = decided(inputs, PlannerState(), estimator, SolverCache(Solver)).state.costs
    assert found is not None
    return found


def test_a_frontier_is_computed_once_and_shown_in_real_seconds() -> None:
    asked: list[Granularity] = []
    priced = costs()

    def counting(
        problem: Problem, points: int, granularity: Granularity, *, prices: Prices | None
    ) -> tuple[Solution, ...]:
        asked.append(granularity)
        return frontier(problem, points, granularity)

    async def body(studies: BackgroundTasks) -> None:
        frontiers = Frontiers(counting, studies)
        assert frontiers.points("demo", priced, None) == ()
        frontiers.ask("demo", priced, "gpu", Prices(), 0.0)
        frontiers.ask("demo", priced, "gpu", Prices(), 0.1)
        await settled(lambda: bool(frontiers.points("demo", priced, None)))
        frontiers.ask("demo", priced, "gpu", Prices(), 2 * RENEW_S)
        assert asked == ["gpu"]
        plain = frontiers.points("demo", priced, None)
        times = [point.iteration_time_s for point in plain]
        assert times == sorted(times)
        assert all(point.lower_bound_j <= point.energy_j for point in plain)
        waiting_w = priced.problem.time_price_w
        default = evaluate(priced, default_clocks(priced))
        baseline = Window(64, 1.1 * default.iteration_time_s, 0.0, None, None)
        for point, real in zip(plain, frontiers.points("demo", priced, baseline), strict=True):
            longer_s = real.iteration_time_s - point.iteration_time_s
            assert abs(longer_s - 0.1 * point.iteration_time_s) < 1e-9
            assert abs(real.energy_j - point.energy_j - waiting_w * longer_s) < 1e-9
        frontiers.keep_only([])
        assert frontiers.points("demo", priced, None) == ()

    run(body)
