"""Whose a job is, as a report shows it: by the agents' word first, then the policy's."""

from dataclasses import replace

import boards

from joulecut_controller.policy.owner import Instance
from joulecut_controller.policy.policy import PodMatch, SlurmJobMatch, Verify
from joulecut_controller.savings.stored import known_jobs, tenant_of
from joulecut_wire.messages import Allocation
from joulecut_wire.slurm import SlurmJob


def test_the_tenant_is_the_namespace_that_is_known_best() -> None:
    board = boards.board()
    [job] = board.jobs
    gpus = {
        uuid: replace(gpu, allocation=Allocation(uuid, "j", namespace="seen"))
        for uuid, gpu in board.view.gpus.items()
    }
    plain = replace(job.view, policy=replace(job.view.policy, verify=Verify(0.05)))
    named = replace(plain, policy=replace(plain.policy, pods=PodMatch("asked")))
    running = replace(named, running=Instance("kubernetes", "runs", "j"))
    name = plain.policy.name
    assert known_jobs([plain], board.view.gpus)[name].tenant == "-"
    assert known_jobs([plain], gpus)[name].tenant == "seen"
    assert known_jobs([named], gpus)[name].tenant == "asked"
    assert known_jobs([running], gpus)[name].tenant == "runs"
    assert known_jobs([plain], gpus)[name].holdout == 0.05
    reported = replace(running, policy=replace(running.policy, tenant="physics"))
    assert known_jobs([reported], gpus)[name].tenant == "physics", "the operator's own word"


def test_a_job_on_gpus_of_two_tenants_has_none() -> None:
    board = boards.board()
    [job] = board.jobs
    gpus = {
        uuid: replace(gpu, allocation=Allocation(uuid, "j", namespace=f"n{place % 2}"))
        for place, (uuid, gpu) in enumerate(board.view.gpus.items())
    }
    assert known_jobs([job.view], gpus)[job.view.policy.name].tenant == "-"


def test_the_tenant_of_a_slurm_job_is_its_account() -> None:
    board = boards.board()
    [job] = board.jobs
    labels = SlurmJob("4711", account="physics").labels()
    gpus = {
        uuid: replace(gpu, allocation=Allocation(uuid, "4711", source="slurm", labels=labels))
        for uuid, gpu in board.view.gpus.items()
    }
    by_account = SlurmJobMatch(account="bio")
    policy = replace(job.view.policy, slurm=by_account)
    assert known_jobs([job.view], gpus)[job.view.policy.name].tenant == "physics"
    assert tenant_of(policy) == "bio"
    assert tenant_of(replace(policy, tenant="theirs")) == "theirs"
