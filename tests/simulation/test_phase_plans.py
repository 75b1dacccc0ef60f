"""Each phase of a job has a plan of its own, and returns to it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from life import Knows, LifeWorld, Lived, Phase, saved_of, slowdown_of
from worlds import Controller, ends

from joulecut_controller.store.database import open_store

BUDGET, PHASE_S = 0.05, 80.0
TRAIN, EVALUATE = Phase("train", lasts_s=PHASE_S), Phase("evaluate", "evaluate", lasts_s=PHASE_S)
SHORT, LONG = (Phase(f"{n}", lasts_s=PHASE_S, microbatches=n) for n in (8, 16))


def stays(lived: Sequence[Lived]) -> list[list[Lived]]:
    """Iterations of each stay in a phase."""
    made: dict[int, list[Lived]] = {}
    for one in lived:
        made.setdefault(one.phase, []).append(one)
    return list(made.values())


@pytest.mark.parametrize("knows", ["profile", pytest.param("operations", marks=pytest.mark.long)])
@pytest.mark.first
def test_evaluations_save_beside_training_and_end_with_the_plan_of_training(
    tmp_path: Path, knows: Knows
) -> None:
    world = LifeWorld((TRAIN, EVALUATE), knows=knows, budget=BUDGET, stages=4, microbatches=8)
    store = open_store(f"sqlite:///{tmp_path}/controller.db")
    controller = Controller(world, store, world.asked(), frontier=ends)
    controller.run(int(4.5 * PHASE_S))
    store.close()
    first, evaluated, second, again, *_ = stays(world.lived)
    assert first[0].kind == second[0].kind == "train"
    for stay in (evaluated, again):
        assert saved_of(stay) > 0.03
        assert slowdown_of(stay) <= BUDGET + 0.005
    # The clocks of one phase are not those of the other: between them are default ones.
    for stay in (evaluated, second, again):
        assert any(one.at_default for one in stay[:8])
    usual = saved_of(first[len(first) // 2 :])
    assert saved_of(second[len(second) // 4 :]) >= 0.8 * usual
    shown = [board.jobs[0] for board in controller.boards if board.jobs]
    evaluates = [one for one in shown if one.view.measured.phase.kind == "evaluate"]
    assert evaluates
    assert any(one.frontier for one in shown)
    assert not any(one.frontier for one in evaluates), "it is that of training"
    assert max(one.trips for one in shown) == 0


@pytest.mark.long
def test_a_shape_that_returns_goes_on_with_what_was_learnt_of_it_across_restarts(
    tmp_path: Path,
) -> None:
    world = LifeWorld((SHORT, LONG), budget=BUDGET, stages=4, shaped=True)
    store = open_store(f"sqlite:///{tmp_path}/controller.db")
    controller = Controller(world, store, world.asked())
    controller.run(int(1.5 * PHASE_S))
    controller.stop()
    controller = Controller(world, store, world.asked())
    controller.run(int(3 * PHASE_S))
    store.close()
    _, _, returned, *_ = stays(world.lived)
    assert saved_of(returned[60:]) > 0.06
    assert saved_of(returned[20:60]) >= 0.9 * saved_of(returned[60:]), "it is probed again"
