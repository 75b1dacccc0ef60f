"""Replicas with clocks of their own: as cheap as by trying all, and never dearer than shared."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_states import changed
from planning import costs_of, seen, view_of
from shapes import ShapeWorld

from joulecut_controller.plan.costs import Costs, price
from joulecut_controller.plan.evaluation import default_clocks, evaluate
from joulecut_controller.plan.replicas import APART_RATIO, CLASSES_MAX, classes_of, clocks_for
from joulecut_controller.view import JobState, Stages
from joulecut_engine.estimate.estimator import Sample, Subject
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph import build
from joulecut_engine.graph.graph import Graph, side_by_side
from joulecut_engine.graph.pipeline import KINDS, Pipeline
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.solver import Solver

WORLD = ShapeWorld(Pipeline("1f1b", 2, 3, data_parallel=2))
VIEW = view_of(WORLD, WORLD.now_s)
SLOW = {"GPU-0-0-0": 1.0, "GPU-0-1-0": 0.9, "GPU-1-0-0": 0.97, "GPU-1-1-0": 1.0}


def taught(ratios: dict[str, float]) -> OnlineEstimator:
    """That has seen every GPU work at its own pace."""
    estimator = OnlineEstimator({WORLD.job: WORLD.profile()})
    mhz = WORLD.sku.clock_max_mhz
    for uuid, ratio in ratios.items():
        subject = Subject(WORLD.job, uuid, WORLD.stage_of[uuid], "forward")
        known = estimator.predict(replace(subject, uuid=""), (mhz,))
        assert known is not None
        for _ in range(20):
            estimator.learn((Sample(subject, mhz, ratio * float(known.time_s[0]), None, 100.0),))
    return estimator


ESTIMATOR = taught(SLOW)


def job_of(ratios: dict[str, float], *, named: bool = True) -> JobState:
    pipelines = tuple(tuple((f"GPU-{s}-{r}-0",) for s in range(2)) for r in range(2))
    stages = tuple(tuple(f"GPU-{s}-{r}-0" for r in range(2)) for s in range(2))
    job = seen(WORLD, 0.02)
    clocks = replace(job.policy.clocks, min_mhz=1335)
    return changed(
        job,
        policy=replace(job.policy, clocks=clocks),
        stages=stages,
        pipelines=pipelines if named else (),
        time_ratios=ratios,
    )


def ends_s(graph: Graph, seconds: list[float]) -> float:
    ends = list(seconds)
    for before, after in graph.edges:
        ends[after] = max(ends[after], ends[before] + seconds[after])
    return max(ends)


def cheapest_j(deadline_s: float, clocks: tuple[int, ...]) -> float:
    """Joules of both replicas, by trying every clock of every GPU."""
    graph, waits_w = build(WORLD.pipeline), WORLD.sku.blocking_power_w
    predicted = {
        (stage, kind): ESTIMATOR.predict(Subject(WORLD.job, "", stage, kind), clocks)
        for stage, kind in product(range(2), KINDS)
    }
    choices: list[list[tuple[float, float]]] = []  # by replica: seconds, joules beside waiting
    for replica in range(2):
        found = []
        for picked in product(range(len(clocks)), repeat=2):
            seconds, joules = [], 0.0
            for operation in graph.operations:
                made = predicted[operation.stage, operation.kind]
                assert made is not None
                at = picked[operation.stage]
                ratio = SLOW[f"GPU-{operation.stage}-{replica}-0"]
                seconds.append(ratio * float(made.time_s[at]))
                joules += seconds[-1] * (float(made.power_w[at]) - waits_w)
            found.append((ends_s(graph, seconds), joules))
        choices.append(found)
    return min(
        one_j + other_j + 4 * waits_w * max(one_s, other_s)
        for (one_s, one_j), (other_s, other_j) in product(*choices)
        if max(one_s, other_s) <= deadline_s
    )


@pytest.mark.parametrize("slowdown", [0.0, 0.02, 0.05])
def test_each_replica_has_its_cheapest_clocks(slowdown: float) -> None:
    costs = costs_of(job_of(SLOW), VIEW, ESTIMATOR)
    shared = costs_of(job_of(SLOW, named=False), VIEW, ESTIMATOR)
    assert (len(costs.classes), len(shared.classes)) == (2, 1)
    default = evaluate(costs, default_clocks(costs), uniform=True)
    assert default is not None
    goal = Goal(default.iteration_time_s * (1.0 + slowdown) * (1 + 1e-9))
    found = Solver(costs.problem, "gpu").solve(goal)
    assert not list(check(costs.problem, goal, found))
    clocks = costs.allowed_mhz[0]
    assert costs.width * found.energy_j == pytest.approx(cheapest_j(goal.deadline_s, clocks))
    together = Solver(shared.problem, "gpu")
    if goal.deadline_s >= together.fastest_s:
        assert found.energy_j <= together.solve(goal).energy_j * (1 + 1e-9)
    asked = costs.asked_mhz([option.clock_mhz for option in found.clocks])
    assert asked.keys() == SLOW.keys()


def test_equal_replicas_share_one_pipeline() -> None:
    costs = costs_of(job_of(dict.fromkeys(SLOW, 1.0)), VIEW, ESTIMATOR)
    assert (len(costs.classes), costs.share) == (1, (1.0, 1.0))
    assert costs.problem.graph == costs.graph


def test_noise_at_the_edge_of_two_classes_changes_nothing() -> None:
    def priced(ratio: float, held: Costs | None) -> Costs:
        ratios = SLOW | {"GPU-0-1-0": ratio, "GPU-1-0-0": 1.0}
        costs = price(job_of(ratios), VIEW.gpus, taught(ratios), 0.0, held)
        assert isinstance(costs, Costs)
        return costs

    first = priced(1.0 - APART_RATIO - 0.0005, None)
    assert len(first.classes) == 2
    assert priced(1.0 - APART_RATIO + 0.0005, first) is first
    assert len(priced(1.0, first).classes) == 1


def test_the_slowest_gpu_is_known_from_the_others_before_it_is_learnt() -> None:
    world = ShapeWorld(Pipeline("1f1b", 2, 3, data_parallel=8))
    ratios = dict.fromkeys(world.uuids, 0.95) | {"GPU-0-0-0": 1.0}
    stages = tuple(tuple(f"GPU-{s}-{r}-0" for r in range(8)) for s in range(2))
    job = changed(seen(world, 0.02), stages=stages, time_ratios=ratios)
    mhz = world.sku.clock_max_mhz
    profile = world.profile()
    costs = costs_of(job, view_of(world, 0.0), OnlineEstimator({world.job: profile}))
    usual_s = next(o.time_s for o in profile.options[0, "forward"] if o.clock_mhz == mhz)
    assert costs.table[0, "forward"][mhz].time_s == pytest.approx(usual_s / 0.95, rel=0.01)


@given(st.lists(st.lists(st.floats(0.7, 1.0), min_size=2, max_size=2), min_size=1, max_size=9))
def test_every_replica_is_in_one_class(paces: list[list[float]]) -> None:
    pipelines: list[Stages] = [(((f"{r}a"),), ((f"{r}b"),)) for r in range(len(paces))]
    ratios = {f"{r}{'ab'[s]}": pace for r, one in enumerate(paces) for s, pace in enumerate(one)}
    found = classes_of(pipelines, ratios)
    assert sorted(replica for one in found for replica in one) == list(range(len(paces)))
    assert len(found) <= CLASSES_MAX
    leaders = [paces[one[0]] for one in found]
    for one in found if len(found) < CLASSES_MAX else ():
        apart = [abs(paces[replica][s] - paces[one[0]][s]) for replica in one for s in range(2)]
        assert max(apart) < 2 * APART_RATIO
    assert len(leaders) == len(found)
    assert classes_of(pipelines, {}) == (tuple(range(len(paces))),)


def test_pipelines_side_by_side_end_with_the_last() -> None:
    one = build(Pipeline("1f1b", 3, 4))
    both = side_by_side(one, 2)
    assert len(both.order) == 6
    for slow in (1.0, 1.5):
        seconds = [slow if o.stage >= 3 else 1.0 for o in both.operations]
        alone = ends_s(one, [1.0] * len(one.operations))
        assert ends_s(both, seconds) == pytest.approx(slow * alone)
    rows = [[both.operations[i]._replace(stage=s % 3) for i in both.order[s]] for s in range(6)]
    assert rows[:3] == rows[3:] == [[one.operations[i] for i in order] for order in one.order]


def test_clocks_go_over_to_other_classes_with_the_highest() -> None:
    order = [[0, 2], [1, 3]]
    both = [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert clocks_for([[900, 1000], [1100, 1200]], order, 2) == (900, 1100, 1000, 1200)
    apart = clocks_for([[900, 1000], [1100, 1200]], both, 2)
    assert apart == (900, 1100, 900, 1100, 1000, 1200, 1000, 1200)
    split = [[900, 1000], [1100, 1200], [950, 990], [1150, 1100]]
    assert clocks_for(split, order, 2) == (950, 1150, 1000, 1200)
    assert clocks_for([[900]], order, 2) is None
    assert clocks_for([[900], [900, 900]], order, 2) is None
