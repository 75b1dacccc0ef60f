"""An entry with `each` stands for every running job that matches, but for those it excepts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.policy.job_classes import with_instances
from joulecut_controller.policy.owner import matches
from joulecut_controller.policy.parse import parse
from joulecut_controller.policy.policy import JobPolicy, Policy
from joulecut_engine.graph.pipeline import Profile
from joulecut_wire.document import parse as document
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import Allocation

HEAD = "apiVersion: joulecut/v1\nkind: Policy\nmode: enforce\njobs:\n"
TEAM = (
    "  - {name: team, each: true, slo: {max_slowdown: 1%}, match: {kubernetes: {namespace: "
    "'team-*'}}, except: [{kubernetes: {namespace: '*', labels: {kind: inference}}}]}\n"
)
ONE = (
    "  - {name: one, slo: {max_slowdown: 2%}, match: {kubernetes: {namespace: team-a, labels: "
    "{app: gpt3}}}}\n"
)
BATCH = (
    "  - {name: batch, each: true, mode: recommend, slo: {max_slowdown: 5%}, match: {slurm: "
    "{account: bio}}, except: [{slurm: {user: eve}}, {slurm: {partition: debug*}}]}\n"
)


def policy(*jobs: str) -> Policy:
    return parse(document((HEAD + "".join(jobs)).encode(), "policy.yaml"), _no_profile)


def _no_profile(name: str) -> Profile:
    raise BadInput(name, "no profile", "none here")


def pod(job: str, namespace: str = "team-a", **labels: str) -> Allocation:
    return Allocation("G", job, namespace, f"{job}-0", "kubernetes", labels)


def slurm(job: str, *, user: str = "ada", account: str = "bio", partition: str = "") -> Allocation:
    labels = {"slurm_job_id": job, "slurm_user": user, "slurm_account": account}
    labels["slurm_partition"] = partition
    return Allocation("G", job, source="slurm", labels=labels)


def made(policy: Policy, *owners: Allocation) -> dict[str, JobPolicy]:
    return {job.name: job for job in with_instances(policy, owners).jobs}


def test_a_class_alone_is_no_job_and_a_policy_without_any_stays_itself() -> None:
    assert made(policy(TEAM)) == {}
    single = policy(ONE)
    assert with_instances(single, [pod("a")]) is single


def test_every_running_job_of_a_class_has_an_entry_of_its_own_with_the_class_target() -> None:
    owners = [pod("a"), pod("b", "team-b"), pod("c", "web"), slurm("47"), slurm("48", account="x")]
    found = made(policy(TEAM, BATCH), *owners)
    assert list(found) == ["team:team-a.a", "team:team-b.b", "batch:47"]
    assert {job.mode for job in found.values()} == {"enforce", "recommend"}
    assert found["team:team-a.a"].slo.max_slowdown == 0.01
    takes = {name: [matches(job, one) for one in owners] for name, job in found.items()}
    assert [row.index(True) for row in takes.values()] == [0, 1, 3]
    assert all(sum(row) == 1 for row in takes.values())


def test_what_an_entry_excepts_is_left_out_even_where_one_gpu_shows_it() -> None:
    owners = [pod("a", kind="inference"), pod("b"), slurm("1", user="eve")]
    owners += [slurm("2", partition="debug-8"), slurm("3"), slurm("3", user="eve")]
    assert list(made(policy(TEAM, BATCH), *owners)) == ["team:team-a.b"]
    single = policy(ONE.replace("}}}}", "}}}, except: [{kubernetes: {namespace: team-a, "
                                        "labels: {kind: inference}}}]}"))  # fmt: skip
    (job,) = single.jobs
    assert matches(job, pod("a", app="gpt3"))
    assert not matches(job, pod("a", app="gpt3", kind="inference"))


def test_the_first_entry_of_the_file_that_matches_takes_a_job() -> None:
    owner = pod("a", app="gpt3")
    assert list(made(policy(ONE, TEAM), owner, pod("b"))) == ["one", "team:team-a.b"]
    assert list(made(policy(TEAM, ONE), owner)) == ["team:team-a.a", "one"]


def test_a_gpu_with_several_owners_is_of_no_class() -> None:
    assert made(policy(TEAM), Allocation("G", "shared", "", "", "kubernetes", {})) == {}


@given(st.lists(st.builds(pod, st.sampled_from("abc"), st.sampled_from(["team-a", "web"]))))
def test_entries_have_one_name_each_and_keep_the_order_of_the_file(
    owners: list[Allocation],
) -> None:
    before = policy(ONE, TEAM, BATCH)
    after = [job.name for job in with_instances(before, owners).jobs]
    assert len({*after}) == len(after)
    assert after[0] == "one"
    assert after[1:] == sorted({f"team:team-a.{one.job}" for one in owners
                                if one.namespace == "team-a"})  # fmt: skip


def test_long_names_of_two_running_jobs_stay_two() -> None:
    """Names of 253 letters that differ at the end alone, in an entry of 63."""
    entry = TEAM.replace("name: team", f"name: {'t' * 63}")
    owners = [pod("a" * 252 + last) for last in "bc"]
    found = made(policy(entry), *owners)
    assert len(found) == 2
    assert all(len(name) == 253 for name in found)
    assert [sum(matches(job, owner) for owner in owners) for job in found.values()] == [1, 1]


def test_opt_in_of_an_older_file_is_read_changes_no_clock_and_says_so() -> None:
    template, other = policy(
        "  - {name: small, slo: {max_slowdown: 1%}, opt_in: {allow: true}}\n",
        ONE.replace("}}}}", "}}}, opt_in: {allow: true}}"),
    ).jobs
    assert (template.mode, other.mode) == ("off", "enforce")
    assert "each: true" in template.warning
    assert "each: true" in other.warning


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("each: yes please", "neither true nor false"),
        ("each: true", "each: stands for the running jobs that match, and nothing matches"),
        ("each: true, match: {gpus: [n/0]}", "nothing matches"),
        ('each: true, match: {slurm: {job_id: "4"}}', "a job id is one job"),
        ("except: [{}], match: {slurm: {user: a}}", r"except\[0\]: not one match"),
        ("except: [{slurm: {user: a}}]", r"except\[0\]: leaves nothing out"),
        ("except: [{slurm: {user: a}}], match: {kubernetes: {namespace: t}}", "nothing out"),
        ("match: {slurm: {job_name: 'llama-[ab]'}}", "no pattern with"),
        ("match: {slurm: {partition: 'gpu-.*'}}", "no pattern with"),
        ("except: [{slurm: {}}], match: {slurm: {user: a}}", "nothing to match"),
    ],
)
def test_wrong_keys_are_one_line(words: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        policy(f"  - {{name: a, slo: {{max_slowdown: 1%}}, {words}}}\n")
