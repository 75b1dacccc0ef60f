"""A plan that is not sent for want of control stays a recommendation, in every place alike."""

from worlds import Controller, World

from joulecut_cli import explain
from joulecut_controller.cluster.state import next_step, predicted_saved_ratio, state_of
from joulecut_controller.cluster.summary import cluster_of
from joulecut_controller.metrics.job_metrics import SAMPLES, rows
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.web.board_json import board_json
from joulecut_engine.optimize.check import check
from joulecut_wire import metrics as m


def test_without_a_keeper_the_page_the_commands_and_the_metrics_show_the_plan(
    world: World, store: DatabaseStore
) -> None:
    for agent in world.agents.values():
        agent.controllable = False
    controller = Controller(world, store, world.policy("recommend"))
    controller.run(60, until=lambda: state_of(controller.job) == "recommended")
    board, job = controller.boards[-1], controller.job
    saved = job.decision.forecast.saved_ratio
    assert saved > 0.03
    assert (state_of(job), predicted_saved_ratio(job)) == ("recommended", saved)
    assert "not controllable: MIG is on" in next_step(job)
    assert f"{-saved:+.1%}".replace("%", " %") in cluster_of(board).headline
    api = board_json(board)["jobs"][0]
    assert (api["state"], api["predicted_saved_ratio"]) == ("recommended", saved)
    assert api["money"]["plan"]
    assert "not controllable" in api["hindrance"]
    assert api["decision"]["forecast"]["saved_ratio"] == saved
    assert {row["verb"] for row in api["gpus"]} & {"lower"}
    text = explain.page(api, [], "http://c", board.at_unix_s)
    assert "refused" not in text.lower()
    assert "! Not enforceable now: GPU n1/0: not controllable: MIG is on." in text
    samples = {metric: rows(job, read) for metric, read in SAMPLES}
    name = job.view.policy.name
    assert samples[m.PLAN_SAVED] == [((name, "recommended", "mid"), saved)]
    assert {labels[2] for labels, _ in samples[m.PLAN_CLOCK]} == {"recommended"}
    assert len(samples[m.PLAN_CLOCK]) >= 1
    assert not world.sent("apply")


def test_a_recommendation_that_was_refused_for_a_moment_comes_back(
    world: World, store: DatabaseStore
) -> None:
    doubts = ["not now"]
    policy = world.policy("recommend")
    controller = Controller(
        world, store, policy, judge=lambda *asked: tuple(doubts) or check(*asked)
    )
    controller.run(
        60, until=lambda: bool(controller.job.decision and controller.job.decision.refused)
    )
    assert controller.job.decision.refused == "not now"
    controller.run(3)
    doubts.clear()
    controller.run(3)
    assert state_of(controller.job) == "recommended"
    assert not controller.job.decision.refused
