"""Jobs found by whose the GPUs are, on a virtual clock: they come, go, and change hands."""

from dataclasses import replace

import pytest
from worlds import Controller, World

from joulecut_controller.policy.policy import (
    JobPolicy,
    PodMatch,
    Policy,
    Slo,
    SlurmJobMatch,
)
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.web.job_json import job_json

PASSES_TO_PLAN = 25  # a baseline of 30 iterations, confirmed by several looks


@pytest.fixture
def world() -> World:
    return World(stages=2, microbatches=12)


def owned(world: World, **changes: object) -> Policy:
    """Pods of app gpt3, under a name that is not the one the job reports."""
    pods = PodMatch("train", (("app", "gpt3"),))
    return world.policy(name="by-owner", pods=pods, **changes)


def settled(controller: Controller) -> None:
    """Runs until clocks are lowered, and a while longer."""
    controller.run(4 * PASSES_TO_PLAN, until=lambda: not controller.world.at_default())
    assert not controller.world.at_default(), controller.job.sentence
    controller.run(10)


def test_a_job_is_controlled_while_it_has_its_gpus(world: World, store: DatabaseStore) -> None:
    controller = Controller(world, store, owned(world))
    controller.run(PASSES_TO_PLAN)
    assert world.calls == []
    assert "no agent knows of any owner by kubernetes" in controller.job.sentence
    world.give("theirs", app="bert")  # and it reports all the while
    controller.run(PASSES_TO_PLAN)
    assert world.calls == []

    world.give("run-1", app="gpt3")
    settled(controller)
    assert {call.job for call in world.sent("apply")} == {"by-owner"}

    world.take_away()
    controller.run(3)
    assert "no GPU is given to pods in namespace train with app=gpt3" in controller.job.sentence
    sent = len(world.sent("apply"))
    controller.run(PASSES_TO_PLAN)
    assert world.at_default()
    assert len(world.sent("apply")) == sent

    world.give("run-2", app="gpt3")
    settled(controller)
    assert controller.job.view.running.job == "run-2"


def test_a_job_without_an_entry_is_found_and_only_recommended(
    world: World, store: DatabaseStore
) -> None:
    controller = Controller(world, store, replace(world.policy("enforce"), jobs=()))
    controller.run(3)
    assert controller.boards[-1].jobs == ()
    world.give("4711", source="slurm", slurm_job_id="4711")
    controller.run(PASSES_TO_PLAN)
    (job,) = controller.boards[-1].jobs
    assert (job.view.policy.name, job.mode, job.view.placement.complaint) == (
        "slurm:4711",
        "recommend",
        "",
    )
    assert job.view.measured.baseline is not None
    assert job_json(job, controller.boards[-1].view)["found"] is True

    controller.source.put(replace(owned(world), jobs=(*owned(world).jobs, by_id("4711"))))
    controller.run(3)
    names = {job.view.policy.name for job in controller.boards[-1].jobs}
    assert names == {"by-owner", "mine"}
    assert world.calls == []


def by_id(job_id: str) -> JobPolicy:
    slurm = SlurmJobMatch(job_id=job_id)
    return JobPolicy("mine", "recommend", Slo(max_slowdown=0.01), slurm=slurm)


@pytest.mark.parametrize("trouble", ["drift", "another owner"])
def test_a_gpu_that_is_not_free_means_recommend_only(
    world: World, store: DatabaseStore, trouble: str
) -> None:
    world.give("run", source="slurm", slurm_job_id="run")
    controller = Controller(world, store, world.policy())
    settled(controller)
    agent, uuid = world.agents["n1:1"], world.agents["n1:1"].uuids[0]
    calm = dict(agent.owners)
    if trouble == "drift":
        agent.drift[uuid] = "external_writer"
    else:
        agent.owners[uuid] = replace(agent.owners[uuid], job="else")

    controller.run(5)
    assert world.at_default(), controller.job.sentence
    assert controller.job.mode == "recommend"
    sent = len(world.sent("apply"))
    controller.run(PASSES_TO_PLAN)
    words = {"drift": "drift", "another owner": "it belongs to"}[trouble]
    assert "recommend only: GPU n" in controller.job.sentence
    assert words in controller.job.sentence
    plan = controller.job.decision
    assert plan.mode == "recommend"
    assert any(action.verb == "lower" for action in plan.actions)  # it is still shown
    assert "recommend only" in plan.reason
    assert len(world.sent("apply")) == sent
    assert world.at_default()

    agent.drift.clear()
    agent.owners = calm
    settled(controller)
    assert controller.job.mode == "enforce"


def test_ranks_that_the_reports_contradict_are_never_enforced(
    world: World, store: DatabaseStore
) -> None:
    world.give("run", app="gpt3")
    for number, agent in enumerate(world.agents.values()):
        label = {"batch.kubernetes.io/job-completion-index": str(1 - number)}
        agent.owners = {
            uuid: replace(one, labels={**one.labels, **label}) for uuid, one in agent.owners.items()
        }
    controller = Controller(world, store, owned(world, ranks="completion-index"))
    controller.run(2 * PASSES_TO_PLAN)
    assert world.calls == []
    assert "works stage 0 by completion-index, but stage 1 by its reports" in (
        controller.job.sentence
    )
    for number, agent in enumerate(world.agents.values()):
        label = {"batch.kubernetes.io/job-completion-index": str(number)}
        agent.owners = {
            uuid: replace(one, labels={**one.labels, **label}) for uuid, one in agent.owners.items()
        }
    settled(controller)


def test_a_job_joins_a_class_by_an_annotation_and_leaves_it_again(
    world: World, store: DatabaseStore
) -> None:
    label = "joulecut.dev/policy"
    pods = PodMatch("train", labels=((label, "small"),))
    controller = Controller(world, store, world.policy(name="small", each=True, pods=pods))
    world.give("run-1")
    controller.run(PASSES_TO_PLAN)
    assert world.calls == []
    assert [job.view.policy.name for job in controller.boards[-1].jobs] == [
        "kubernetes:train.run-1"
    ]

    world.give("run-1", **{label: "small"})
    settled(controller)
    (job,) = controller.boards[-1].jobs
    assert job.view.policy.name == "small:train.run-1"
    assert {call.job for call in world.sent("apply")} == {"small:train.run-1"}

    for agent in world.agents.values():  # the annotation goes, under a lease
        agent.owners = {u: replace(one, labels={}) for u, one in agent.owners.items()}
    controller.run(4)
    assert world.at_default()
    assert {job.mode for job in controller.boards[-1].jobs} == {"recommend"}


def test_a_profile_that_was_taken_away_is_cited_nowhere(world: World, store: DatabaseStore) -> None:
    policy = world.policy("recommend")
    controller = Controller(world, store, policy)
    controller.run(2 * PASSES_TO_PLAN)
    assert controller.job.learnt.text
    job = replace(policy.jobs[0], profile=None)
    controller.source.put(replace(policy, jobs=(job,), digest="2"))
    controller.run(3)
    assert (controller.job.decision.forecast, controller.job.learnt.text) == (None, "")
