"""Jobs that no entry of the policy names."""

from dataclasses import replace

import pytest

from joulecut_controller.observe.found_jobs import FOUND_MAX, FoundJobs
from joulecut_controller.policy.policy import (
    FoundJobsPolicy,
    GpuRef,
    JobPolicy,
    PodMatch,
    Policy,
    Slo,
    SlurmJobMatch,
    policy_json,
)
from joulecut_controller.view import GpuView
from joulecut_wire.messages import Allocation, GpuDescription

SLURM = Allocation("GPU-0", "4711", source="slurm", labels={"slurm_job_id": "4711"})
POD = Allocation("GPU-0", "gpt", namespace="train", pod="gpt-0", source="kubernetes")


def gpus(*owners: Allocation | None) -> dict[str, GpuView]:
    return {
        f"GPU-{i}": GpuView(
            GpuDescription(f"GPU-{i}", i, "A100", ()), "n1:1", "n1", None, 0.0, owner
        )
        for i, owner in enumerate(owners)
    }


def reports(count: int = 1, job: str = "gpt3") -> list[tuple[str, str]]:
    return [(job, f"GPU-{i}") for i in range(count)]


def found(policy: Policy, seen: dict[str, GpuView]) -> tuple[JobPolicy, ...]:
    jobs = FoundJobs()
    jobs.note(reports(len(seen)), seen)
    return jobs.with_found(policy, seen).jobs[len(policy.jobs) :]


@pytest.mark.parametrize(("owner", "name"), [(SLURM, "slurm:4711"), (POD, "kubernetes:train.gpt")])
def test_a_reporting_job_of_a_scheduler_is_recommended_and_never_more(
    owner: Allocation, name: str
) -> None:
    (job,) = found(Policy(mode="enforce"), gpus(owner, owner))
    assert (job.name, job.mode, job.found) == (name, "recommend", True)


@pytest.mark.parametrize(
    "owner",
    [
        None,
        Allocation("GPU-0", "gpt3", source="report"),
        Allocation("GPU-0", "python", source="process"),
        Allocation("GPU-0", "shared", source="slurm"),
    ],
)
def test_without_one_owner_by_a_scheduler_nothing_is_found(owner: Allocation | None) -> None:
    assert found(Policy(), gpus(owner)) == ()


@pytest.mark.parametrize(
    "entry",
    [
        JobPolicy("mine", "off", Slo(0.0), slurm=SlurmJobMatch(job_id="4711")),
        JobPolicy("mine", "off", Slo(0.0), gpus=(GpuRef("n1", 1),)),
        JobPolicy("gpt3", "off", Slo(0.0)),
        JobPolicy("slurm:4711", "off", Slo(0.0), pods=PodMatch("x")),
    ],
)
def test_what_an_entry_takes_is_not_found_beside_it(entry: JobPolicy) -> None:
    assert found(Policy(jobs=(entry,)), gpus(SLURM, SLURM)) == ()


def test_it_ends_with_its_last_gpu_and_not_with_its_reports() -> None:
    jobs, seen = FoundJobs(), gpus(SLURM)
    jobs.note(reports(), seen)
    for _ in range(3):
        assert len(jobs.with_found(Policy(), seen).jobs) == 1
    assert jobs.with_found(Policy(), gpus(POD)).jobs == ()
    assert jobs.with_found(Policy(), seen).jobs == ()


def test_the_policy_leaves_them_out_or_names_their_budget() -> None:
    assert found(Policy(found_jobs=FoundJobsPolicy(mode="off")), gpus(SLURM)) == ()
    assert found(Policy(mode="off"), gpus(SLURM)) == ()
    (job,) = found(Policy(found_jobs=FoundJobsPolicy(max_slowdown=0.03)), gpus(SLURM))
    assert job.slo.max_slowdown == 0.03


def test_they_are_no_difference_to_the_file() -> None:
    policy = Policy(jobs=(JobPolicy("mine", "recommend", Slo(0.0)),))
    jobs = FoundJobs()
    jobs.note(reports(), gpus(SLURM))
    assert policy_json(jobs.with_found(policy, gpus(SLURM))) == policy_json(policy)


def test_their_number_is_bounded() -> None:
    owners = [replace(SLURM, job=str(i)) for i in range(2 * FOUND_MAX)]
    assert len(found(Policy(), gpus(*owners))) == FOUND_MAX
