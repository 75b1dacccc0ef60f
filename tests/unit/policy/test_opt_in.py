"""Jobs that opt in by themselves get what the operator's entry allows, and a reason otherwise."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.policy.opt_in import MAX_SLOWDOWN, POLICY, with_opted_in
from joulecut_controller.policy.owner import matches
from joulecut_controller.policy.parse import parse
from joulecut_controller.policy.policy import Policy
from joulecut_engine.graph.pipeline import Profile
from joulecut_wire.document import parse as document
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import Allocation

HEAD = "apiVersion: joulecut/v1\nkind: Policy\nmode: enforce\njobs:\n"
TEMPLATE = (
    "  - {name: small, slo: {max_slowdown: 1%}, opt_in: {allow: true, max_slowdown_up_to: 2%}}\n"
)
CLOSED = "  - {name: closed, slo: {max_slowdown: 1%}}\n"
MATCHED = (
    "  - {name: mine, slo: {max_slowdown: 1%}, match: {kubernetes: {namespace: train, labels: "
    "{app: gpt3}}}, opt_in: {allow: true}}\n"
)


def policy(*jobs: str) -> Policy:
    return parse(document((HEAD + "".join(jobs)).encode(), "policy.yaml"), _no_profile)


def _no_profile(name: str) -> Profile:
    raise BadInput(name, "no profile", "none here")


def pod(job: str, *, name: str = "", slowdown: str = "", app: str = "other") -> Allocation:
    labels = {"app": app, POLICY: name, MAX_SLOWDOWN: slowdown}
    kept = {key: value for key, value in labels.items() if value}
    return Allocation("G", job, "train", f"{job}-0", "kubernetes", kept)


def slurm(job: str, *, name: str = "", slowdown: str = "", account: str = "") -> Allocation:
    labels = {"slurm_job_id": job, POLICY: name, MAX_SLOWDOWN: slowdown, "slurm_account": account}
    return Allocation("G", job, source="slurm", labels={k: v for k, v in labels.items() if v})


def test_a_template_alone_is_no_job_and_a_policy_without_any_stays_itself() -> None:
    assert with_opted_in(policy(TEMPLATE), [pod("a")]).jobs == ()
    closed = policy(CLOSED, MATCHED)
    assert with_opted_in(closed, [pod("a")]) is closed


def test_a_template_for_one_account_refuses_the_jobs_of_others() -> None:
    limited = TEMPLATE.replace("2%}", "2%, slurm: {account: physics}}")
    owners = [slurm("47", name="small", account="physics"), slurm("48", name="small", account="x")]
    pods, mine, other = with_opted_in(policy(limited), [*owners, pod("a", name="small")]).jobs
    assert (mine.name, mine.mode, mine.opt_in_refused) == ("small:47", "enforce", "")
    refusal = "entry small is for Slurm jobs with account: physics"
    for refused, name in ((pods, "small:train.a"), (other, "small:48")):
        assert (refused.name, refused.mode, refused.opt_in_refused) == (name, "off", refusal)


@pytest.mark.parametrize("owner", [pod("a", name="small"), slurm("47", name="small")])
def test_every_job_that_names_the_template_gets_a_copy(owner: Allocation) -> None:
    other = pod("b", name="small", slowdown="1.5%")
    found = {job.name: job for job in with_opted_in(policy(TEMPLATE), [owner, other]).jobs}
    name = "small:47" if owner.source == "slurm" else "small:train.a"
    assert set(found) == {name, "small:train.b"}
    assert found[name].slo.max_slowdown == 0.01
    assert found["small:train.b"].slo.max_slowdown == 0.015
    assert {job.mode for job in found.values()} == {"enforce"}
    assert matches(found[name], owner)
    assert not matches(found[name], other)
    assert not matches(found[name], replace(owner, job="c"))


@pytest.mark.parametrize(
    ("jobs", "owner", "said"),
    [
        (TEMPLATE, pod("a", name="small", slowdown="3%"), "more than entry small allows, 2%"),
        (TEMPLATE, pod("a", name="small", slowdown="2"), "a percentage from 0%"),
        (TEMPLATE, pod("a", name="small", slowdown="nan%"), "a percentage from 0%"),
        (TEMPLATE, pod("a", name="big"), "the policy has no entry 'big'"),
        (TEMPLATE, pod("a", slowdown="1%"), "it names no entry"),
        (CLOSED, pod("a", name="closed"), "entry closed does not allow it"),
        (MATCHED, pod("a", name="mine"), "entry mine has a match of its own"),
    ],
)
def test_a_refused_job_is_off_and_says_why(jobs: str, owner: Allocation, said: str) -> None:
    *_, job = with_opted_in(policy(jobs), [owner]).jobs
    assert job.mode == "off"
    assert said in job.opt_in_refused
    assert matches(job, owner)


@pytest.mark.parametrize(
    ("jobs", "slowdown", "ratio", "said"),
    [
        (MATCHED, "0.5%", 0.005, ""),
        (MATCHED, "1.5%", 0.01, "more than entry mine allows, 1%"),
        (MATCHED.replace(", opt_in: {allow: true}", ""), "0.5%", 0.01, "does not allow it"),
        (
            MATCHED.replace("max_slowdown: 1%", "max_iteration_time: 1s"), "0.5%", None,
            "the target of entry mine is max_iteration_time",
        ),
    ],
)  # fmt: skip
def test_the_target_of_a_matched_job(
    jobs: str, slowdown: str, ratio: float | None, said: str
) -> None:
    (job,) = with_opted_in(policy(jobs), [pod("a", slowdown=slowdown, app="gpt3")]).jobs
    assert (job.mode, job.slo.max_slowdown) == ("enforce", ratio)
    assert said in job.opt_in_refused
    assert bool(said) == bool(job.opt_in_refused)


def test_pods_that_disagree_are_refused() -> None:
    owners = [pod("a", name="small", slowdown=one) for one in ("1%", "2%")]
    (job,) = with_opted_in(policy(TEMPLATE), owners).jobs
    assert (job.mode, job.opt_in_refused) == ("off", "its pods do not ask for the same")


@given(
    st.lists(
        st.builds(
            pod, st.sampled_from("abc"), name=st.text(max_size=6), slowdown=st.text(max_size=6)
        )
    ),
    st.floats(0.0, 5.0),
)
def test_no_words_move_a_target_beyond_the_operators(
    owners: list[Allocation], percent: float
) -> None:
    owners.append(pod("d", name="small", slowdown=f"{percent:.4f}%"))
    before = policy(TEMPLATE, CLOSED, MATCHED)
    after = with_opted_in(before, owners)
    assert len({job.name for job in after.jobs}) == len(after.jobs)
    for job in after.jobs:
        assert job.slo.max_slowdown is not None
        assert job.slo.max_slowdown <= 0.02
        assert job.mode == "off" or job.name in {"closed", "mine"} or not job.opt_in_refused
    kept = {job.name: job for job in after.jobs}
    assert [kept[job.name] for job in before.jobs[1:]] == list(before.jobs[1:])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("allow: yes please", "neither true nor false"),
        ("max_slowdown_up_to: 2%", "max_slowdown_up_to: means nothing alone"),
        ("allow: true, max_slowdown_up_to: 0.5%", "0.5% is below the job's own max_slowdown"),
        ("allow: true, max_slowdown_up_to: 2", "could be a fraction or a percentage"),
        ("allowed: true", "unknown key"),
    ],
)
def test_wrong_keys_are_one_line(words: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        policy(f"  - {{name: a, slo: {{max_slowdown: 1%}}, opt_in: {{{words}}}}}\n")
