"""Leaving out what has no choice changes no plan's time or energy, and no best plan."""

import itertools

import numpy as np
import pytest

from joulecut_engine.graph import graph_of
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Operation, Pipeline, Profile, Transfers
from joulecut_engine.graph.shape import kinds_of
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.contraction import Contracted, contracted
from joulecut_engine.optimize.formulation import priced
from joulecut_engine.optimize.formulation import problem as made
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.schedule import baseline, energy, makespan, solution
from joulecut_engine.optimize.solver import Solver

FIXED: dict[Kind, tuple[float, float]] = {
    "send-forward": (0.004, 0.3),
    "send-backward": (0.006, 0.4),
    "tensor-forward": (0.01, 2.0),
    "tensor-backward": (0.02, 3.0),
    "collective": (0.2, 22.0),
    "optimizer": (0.04, 6.0),
}


def _job(pipeline: Pipeline, clocks: int, seed: int, send_s: float = 0.0) -> Problem:
    """Clocks like dice; everything but computation costs the same at all of them."""
    dice = np.random.default_rng(seed)
    rows: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
    for stage, kind in itertools.product(range(pipeline.stages), kinds_of(pipeline)):
        if kind in FIXED:
            time_s, energy_j = FIXED[kind]
            own_s = send_s if send_s and kind.startswith("send") else time_s
            rows[stage, kind] = (ClockOption(0, own_s, energy_j),)
            continue
        times, joules = (
            np.sort(dice.uniform(0.1, 0.2, clocks)),
            np.sort(dice.uniform(20, 40, clocks)),
        )
        rows[stage, kind] = tuple(
            ClockOption(1400 - 100 * k, float(t), float(e))
            for k, (t, e) in enumerate(zip(times, joules[::-1], strict=True))
        )
    return made(
        pipeline, Profile(rows), [70.0 + 5 * stage for stage in range(pipeline.stages)], 9.0
    )


def _of(whole: Problem) -> Contracted:
    found = contracted(whole)
    assert found is not None
    return found


def _dice(found: Contracted, dice: np.random.Generator) -> list[int]:
    return [int(dice.integers(len(menu))) for menu in found.problem.options]


def _whole(found: Contracted, picks: list[int]) -> tuple[ClockOption, ...]:
    clocks = [menu[0] for menu in found.whole.options]
    for k, pick in zip(found.kept.tolist(), picks, strict=True):
        clocks[k] = found.whole.options[k][pick]
    return tuple(clocks)


PIPELINES = [
    Pipeline("1f1b", 3, 5, transfers="synchronous"),
    Pipeline("1f1b", 4, 6, transfers="synchronous", tensor_collective=True, optimizer=True),
    Pipeline("gpipe", 3, 4, transfers="synchronous", data_collective=True),
    Pipeline("1f1b", 3, 4, tensor_collective=True),
    Pipeline("zb-h1", 3, 5, transfers="synchronous", data_collective=True, optimizer=True),
    Pipeline("interleaved-1f1b", 2, 4, chunks=2, transfers="overlapped", tensor_collective=True),
    Pipeline("1f1b", 1, 2, data_collective=True),
]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=str)
@pytest.mark.parametrize("send_s", [0.0, 0.005])
def test_every_plan_keeps_its_time_and_its_energy(pipeline: Pipeline, send_s: float) -> None:
    found = _of(_job(pipeline, 4, 1, send_s))
    dice = np.random.default_rng(2)
    for _ in range(20):
        picks = _dice(found, dice)
        clocks, short = _whole(found, picks), found.problem
        own = tuple(menu[k] for menu, k in zip(short.options, picks, strict=True))
        time_s, _ = makespan(found.whole, clocks)
        short_s, _ = makespan(short, own)
        assert short_s == pytest.approx(time_s, rel=1e-13)
        for paid_s in (time_s, 2 * time_s):
            joules = energy(found.whole, clocks, paid_s)
            assert energy(short, own, paid_s) == pytest.approx(joules, rel=1e-13)


@pytest.mark.parametrize("waits", [False, True])
def test_a_plan_goes_in_and_comes_out_again(waits: bool) -> None:
    found = _of(_job(PIPELINES[1], 4, 3))
    goal = Goal(baseline(found.whole).iteration_time_s * 1.5, waits)
    clocks = _whole(found, _dice(found, np.random.default_rng(4)))
    plan = solution(found.whole, goal, "computation", clocks, 1.0)
    inside = found.inside(plan, goal)
    assert inside is not None
    assert inside.energy_j == pytest.approx(plan.energy_j, rel=1e-13)
    assert found.outside(inside, goal) == plan
    assert (
        found.inside(solution(found.problem, goal, "computation", inside.clocks, 1.0), goal) is None
    )


def test_sends_that_both_sides_wait_for_leave_the_graph_without_them() -> None:
    """In the steady part of 1F1B; while the pipeline fills, a stage waits for others than it
    sends to."""
    without = Pipeline("1f1b", 4, 24)
    sends = Pipeline("1f1b", 4, 24, transfers="synchronous")
    plain, whole = _job(without, 3, 5), _job(sends, 3, 5, send_s=0.005)
    count, full = len(plain.graph.operations), len(whole.graph.operations)
    left = len(_of(whole).problem.graph.operations)
    assert full == count + 2 * 3 * 24
    assert count <= left <= count + 30


def test_sends_of_two_lengths_at_one_meeting_take_as_long_as_the_longer() -> None:
    menu = (ClockOption(1400, 0.1, 30.0), ClockOption(1000, 0.13, 24.0))
    kinds: list[Kind] = [
        "forward",
        "forward",
        "send-forward",
        "send-backward",
        "forward",
        "forward",
    ]
    operations = [Operation(k % 2, k, kind) for k, kind in enumerate(kinds)]
    edges = {(a, b) for a, b in itertools.product((0, 1), (2, 3))}
    edges |= {(a, b) for a, b in itertools.product((2, 3), (4, 5))}
    graph = graph_of(operations, edges | {(0, 4), (1, 5)}, 2)
    lasts_s = {"send-forward": 0.01, "send-backward": 0.03}
    menus = [
        (ClockOption(0, lasts_s[o.kind], 1.0),) if o.kind in lasts_s else menu
        for o in graph.operations
    ]
    found = _of(priced(graph, menus, 50.0))
    assert len(found.problem.graph.operations) == 4
    first = [
        menu
        for o, menu in zip(found.problem.graph.operations, found.problem.options, strict=True)
        if o.microbatch < 2
    ]
    assert [option.time_s for menu in first for option in menu] == pytest.approx([0.13, 0.16] * 2)


def test_what_others_need_not_wait_for_stays() -> None:
    """Sends beside computation, and an operation that a send is not all to."""
    assert contracted(_job(Pipeline("zb-h1", 3, 4, transfers="overlapped"), 3, 1)) is None
    assert contracted(_job(Pipeline("1f1b", 3, 4), 3, 1)) is None


@pytest.mark.parametrize("transfers", ["synchronous", "overlapped"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("slower", [1.0, 1.07])
def test_the_answer_holds_for_the_whole(transfers: Transfers, seed: int, slower: float) -> None:
    """Against every plan there is."""
    pipeline = Pipeline("1f1b", 2, 2, transfers=transfers, tensor_collective=True, optimizer=True)
    whole = _job(pipeline, 3, seed)
    goal = Goal(baseline(whole).iteration_time_s * slower, waits=seed % 2 == 1)
    best_j = np.inf
    for clocks in itertools.product(*whole.options):
        time_s, _ = makespan(whole, clocks)
        if time_s <= goal.deadline_s:
            best_j = min(best_j, energy(whole, clocks, goal.deadline_s if goal.waits else time_s))
    found = Solver(whole, "computation", "thorough").solve(goal)
    assert check(whole, goal, found) == ()
    assert found.lower_bound_j <= best_j <= found.energy_j * (1.0 + 1e-12)
    assert found.gap <= 1e-3


def test_stages_that_send_to_each_other_meet() -> None:
    """Sends hid that before, and the relaxation's bound was all there was."""
    whole = _job(Pipeline("1f1b", 4, 16, transfers="synchronous"), 4, 3)
    goal = Goal(baseline(whole).iteration_time_s * 1.01)
    short = Computation(_of(whole).problem)
    relaxed = short.relax(goal)
    raised = short.raised(goal, relaxed)
    assert raised.bound_j > 1.001 * relaxed.bound_j
    found = Solver(whole, "computation", "quick").solve(goal)
    assert raised.bound_j <= found.energy_j
    assert relaxed.bound_j == pytest.approx(Computation(whole).relax(goal).bound_j, rel=1e-8)


def test_a_hint_competes() -> None:
    whole = _job(Pipeline("1f1b", 2, 3, transfers="synchronous"), 3, 3)
    goal = Goal(baseline(whole).iteration_time_s * 1.1)
    solver = Solver(whole, "computation", "thorough")
    first = solver.solve(goal)
    again = solver.solve(goal, [first])
    assert check(whole, goal, again) == ()
    assert again.energy_j <= first.energy_j
