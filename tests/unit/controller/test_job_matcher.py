"""Whose a GPU is: which running job an entry stands for, and what is none of its business."""

from collections.abc import Mapping
from dataclasses import replace

import hypothesis
import pytest
from hypothesis import strategies as st

from joulecut_controller.observe.iteration_stats import IterationStats
from joulecut_controller.observe.job_matcher import match_jobs
from joulecut_controller.observe.observer import OWNER_AGE_S_MAX, JobObservation, Observer
from joulecut_controller.policy.owner import Instance, foreign, instance_of, matches
from joulecut_controller.policy.policy import (
    GpuRef,
    JobPolicy,
    Mode,
    PodMatch,
    Policy,
    Slo,
    SlurmJobMatch,
)
from joulecut_controller.ports import ArrivedReport, FleetState
from joulecut_controller.view import GpuView, NodeView
from joulecut_engine.graph.pipeline import Pipeline
from joulecut_wire.messages import Allocation, GpuDescription, GpuSnapshot, IterationReport

Gpus = dict[str, GpuView]
GPT3 = PodMatch("train", (("app", "gpt3"),))


def gpus(count: int = 4) -> Gpus:
    return {
        f"G{i}": GpuView(
            GpuDescription(f"G{i}", i, "sim", (900,), controllable=True),
            "n:1", "n", GpuSnapshot(f"G{i}"), 0.0,
        )
        for i in range(count)
    }  # fmt: skip


def pod(job: str, name: str = "", namespace: str = "train", **labels: str) -> Allocation:
    return Allocation("", job, namespace, name or f"{job}-0", "kubernetes", labels or APP)


def slurm(job: str, name: str = "") -> Allocation:
    named = {"slurm_job_name": name} if name else {}
    return Allocation("", job, source="slurm", labels={"slurm_job_id": job, **named})


APP = {"app": "gpt3"}


def given(known: Gpus, **owners: Allocation) -> Gpus:
    return {
        u: replace(g, allocation=replace(owners[u], uuid=u)) if u in owners else g
        for u, g in known.items()
    }


def entry(name: str = "job", mode: Mode = "enforce", **how: object) -> JobPolicy:
    job = JobPolicy(name, mode, Slo(max_slowdown=0.0), pipeline=Pipeline("1f1b", 2, 4))
    return replace(job, **how)


def policy(*jobs: JobPolicy) -> Policy:
    return Policy(jobs=jobs)


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({"slurm": SlurmJobMatch(job_name="llama-*")}, True),
        ({"slurm": SlurmJobMatch(job_name="llama-?b")}, True),
        ({"slurm": SlurmJobMatch(job_name="lama-*")}, False),
        ({"slurm": SlurmJobMatch(user="*")}, False),  # its user is not known
        ({"slurm": SlurmJobMatch(job_name="llama-[78]b")}, False),  # no set of letters
        ({"pods": PodMatch("tr*", (("app", "gpt?"),))}, True),
        ({"pods": PodMatch("train", (("app", "*-x"),))}, False),
        ({"pods": PodMatch("train", (("team", "*"),))}, False),
    ],
)
def test_words_of_a_match_may_be_patterns(how: dict[str, object], found: bool) -> None:
    owner = slurm("7", "llama-7b") if "slurm" in how else pod("run")
    match = match_jobs(policy(entry(**how)), given(gpus(1), G0=owner)).of("job")
    assert bool(match.uuids) is found


# -- which job an entry stands for ---------------------------------------------------------


@hypothesis.given(
    owners=st.lists(
        st.none()
        | st.builds(
            pod,
            st.sampled_from(("run", "other")),
            st.sampled_from(("run-0", "run-1")),
            st.sampled_from(("train", "else")),
            app=st.sampled_from(("gpt3", "bert")),
        )
        | st.builds(slurm, st.sampled_from(("7", "8")), st.sampled_from(("", "gpt3"))),
        max_size=8,
    )
)
def test_entries_match_what_each_gpu_says_alone(owners: list[Allocation | None]) -> None:
    """GPUs are compared in groups; no group may hide one."""
    known = given(gpus(8), **{f"G{i}": one for i, one in enumerate(owners) if one is not None})
    for how in (
        {"pods": GPT3},
        {"pods": PodMatch("train", ())},
        {"slurm": SlurmJobMatch(job_id="7")},
        {"slurm": SlurmJobMatch(job_name="gpt3")},
    ):
        job = entry(**how)
        alone: dict[Instance, set[str]] = {}
        for uuid, gpu in known.items():
            if gpu.allocation is not None and matches(job, gpu.allocation):
                alone.setdefault(instance_of(gpu.allocation), set()).add(uuid)
        found = match_jobs(policy(job), known).of("job")
        if len(alone) != 1:
            assert found.complaint
        elif job.pods is not None:
            assert found.uuids == next(iter(alone.values()))
        else:  # the name may be known of some of its GPUs only
            assert found.uuids >= next(iter(alone.values()))


def test_a_pods_labels_and_namespace_find_all_gpus_of_its_job() -> None:
    known = given(
        gpus(6),
        G0=pod("run", "run-0"), G1=pod("run", "run-1"),
        G2=pod("other", app="bert"), G3=pod("run", namespace="else"),
        G4=Allocation("", "shared", source="kubernetes", labels={"joulecut/owners": "2"}),
    )  # fmt: skip
    found = match_jobs(policy(entry(pods=GPT3)), known).of("job")
    assert found.uuids == {"G0", "G1"}
    assert found.running == Instance("kubernetes", "train", "run")
    assert not found.complaint


def test_a_job_is_left_out_whole_where_one_of_its_gpus_is_excepted() -> None:
    left = PodMatch("*", labels=(("kind", "inference"),))
    known = given(gpus(), G0=pod("a"), G1=pod("a", kind="inference", **APP), G2=pod("b"))
    found = match_jobs(policy(entry(pods=GPT3, excluded=(left,))), known).of("job")
    assert (found.uuids, found.complaint) == ({"G2"}, "")


def test_pods_of_one_workload_without_a_job_label_are_one_job() -> None:
    labels = {**APP, "controller-revision-hash": "gpt3-6d4"}
    known = given(gpus(), G0=pod("p-0", "p-0", **labels), G1=pod("p-1", "p-1", **labels))
    assert match_jobs(policy(entry(pods=GPT3)), known).of("job").uuids == {"G0", "G1"}
    bare = given(gpus(), G0=pod("p-0", "p-0"), G1=pod("p-1", "p-1"))
    assert "2 running jobs" in match_jobs(policy(entry(pods=GPT3)), bare).of("job").complaint


def test_the_first_entry_has_the_job_and_the_next_one_what_is_left() -> None:
    special = entry("special", pods=PodMatch("train", (("run", "s"),)))
    known = given(gpus(), G0=pod("s", app="gpt3", run="s"), G1=pod("t", app="gpt3"))
    found = match_jobs(policy(special, entry(pods=GPT3)), known)
    assert found.of("special").uuids == {"G0"}
    assert found.of("job").uuids == {"G1"}
    turned = match_jobs(policy(entry(pods=GPT3), special), known)
    assert "2 running jobs" in turned.of("job").complaint
    assert "no GPU is given to pods" in turned.of("special").complaint


def test_a_listed_gpu_is_the_first_entrys() -> None:
    listed = entry("listed", gpus=(GpuRef("n", 1),))
    known = given(gpus(), G0=pod("run"), G1=pod("run"))
    found = match_jobs(policy(listed, entry(pods=GPT3)), known)
    assert found.of("job").complaint.startswith("GPU n/1 belongs to listed, an earlier entry")
    turned = match_jobs(policy(entry(pods=GPT3), listed), known)
    assert turned.of("job").uuids == {"G0", "G1"}
    assert turned.of("listed").complaint.startswith("GPU n/1 belongs to job")


def test_an_entry_without_a_match_gets_what_none_with_a_match_has() -> None:
    known = given(gpus(), G0=pod("run"), G1=pod("run"))
    free = entry("free")
    found = match_jobs(policy(free, entry(pods=GPT3)), known)
    assert found.of("free", ("G1", "G2")).uuids == {"G2"}
    assert found.of("job").uuids == {"G0", "G1"}


def test_slurm_jobs_are_found_by_id_and_where_known_by_name() -> None:
    known = given(gpus(), G0=slurm("7", "gpt3"), G1=slurm("7"), G2=slurm("8"))
    by_id = entry("id", slurm=SlurmJobMatch(job_id="8"))
    found = match_jobs(policy(entry(slurm=SlurmJobMatch(job_name="gpt3")), by_id), known)
    assert found.of("job").uuids == {"G0", "G1"}  # a name told of one GPU is the whole job's
    assert found.of("id").uuids == {"G2"}
    unknown = match_jobs(policy(entry(slurm=SlurmJobMatch(job_name="bert"))), known)
    assert unknown.of("job").complaint == (
        "no GPU is given to Slurm jobs with job_name: bert "
        "(of 2 GPUs given by Slurm the agents know ids, not names)"
    )


@pytest.mark.parametrize(
    ("known", "line"),
    [
        (gpus(), "(no agent knows of any owner by kubernetes)"),
        (given(gpus(), G0=replace(pod("run"), labels={})), "the agents do not know labels"),
        (given(gpus(), G0=pod("run", app="bert")), "in namespace train with app=gpt3"),
    ],
)
def test_a_job_that_is_not_there_is_said_in_one_line(known: Gpus, line: str) -> None:
    assert line in match_jobs(policy(entry(pods=GPT3)), known).of("job").complaint


# -- strangers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "owner", "line"),
    [
        ({}, None, ""),
        ({}, Allocation("", "job", source="report"), ""),
        ({}, Allocation("", "else", source="report"), "job else reports from it"),
        ({}, Allocation("", "python", source="process"), ""),
        ({}, slurm("8"), "it belongs to 8 (slurm), not to train/run"),
        ({}, pod("some-pod", "some-pod"), ""),  # a pod's own name is not its job's
        ({}, Allocation("", "shared", source="process"), "it has several owners"),
        ({"pods": GPT3}, None, "its agent reports no owner"),
        ({"pods": GPT3}, pod("run"), ""),
        ({"pods": GPT3}, pod("next"), "it belongs to train/next (kubernetes), not to train/run"),
    ],
)
def test_who_is_a_stranger(how: Mapping[str, object], owner: Allocation | None, line: str) -> None:
    running = Instance("kubernetes", "train", "run")
    assert foreign(entry(**how), running, owner) == line


# -- what the observer makes of it ---------------------------------------------------------


class Watching:
    """An observer and its clock."""

    def __init__(self, job: JobPolicy, *others: JobPolicy) -> None:
        self.policy = policy(job, *others)
        self.observer = Observer(stale_s=5.0)
        self.stats = {one.name: IterationStats(lag_s=1.0) for one in self.policy.jobs}
        self.now_s = 100.0
        self.node = NodeView("n:1", "n", connected=True)

    def look(
        self, known: Gpus, *reporters: tuple[str, int], called: str = "job", source: str = ""
    ) -> JobObservation:
        self.now_s += 1.0
        reports = tuple(
            ArrivedReport(
                IterationReport(called, uuid, stage, int(self.now_s), 0.5, source=source),
                self.now_s,
            )
            for uuid, stage in reporters
        )
        state = FleetState((self.node,), tuple(known.values()))
        self.observer.arrange(self.policy, state, self.now_s)
        routed, _ = self.observer.route(reports)
        seen = {
            job.name: self.observer.observe(
                job,
                state,
                routed.get(job.name, []),
                self.now_s,
                stats=self.stats[job.name],
            )[0]
            for job in self.policy.jobs
        }
        return seen["job"]


def test_estimates_of_older_agents_from_power_are_no_reports() -> None:
    watching = Watching(entry(pods=GPT3))
    known = given(gpus(), G0=pod("a"), G1=pod("a"))
    seen = watching.look(known, ("G0", 0), ("G1", 1), source="power")
    assert seen.job.placement.stages == ()
    assert seen.job.measured.current is None
    assert watching.look(known, ("G0", 0), ("G1", 1)).job.placement.stages == (("G0",), ("G1",))


def test_the_same_name_on_anothers_gpus_is_nobodys_business_here() -> None:
    watching = Watching(entry(pods=GPT3))
    known = given(gpus(), G0=pod("a"), G1=pod("a"), G2=pod("b", app="x"))
    seen = watching.look(known, ("G0", 0), ("G1", 1), ("G2", 1))
    assert seen.job.placement.stages == (("G0",), ("G1",))
    assert not seen.job.placement.complaint
    unowned = watching.look(known, ("G0", 0), ("G1", 1), ("G3", 1))
    assert not unowned.job.placement.complaint
    assert (
        "G3 reports this job, but its agent does not say whose it is"
        in unowned.job.placement.ignored
    )


def test_a_node_that_the_list_does_not_name_says_nothing_of_the_job() -> None:
    listed = entry(gpus=(GpuRef("n", 0), GpuRef("n", 1)))
    liar = replace(gpus()["G3"], node="liar", address="liar:1")
    seen = Watching(listed).look({**gpus(2), "G3": liar}, ("G0", 0), ("G1", 1), ("G3", 1))
    assert seen.job.placement.stages == (("G0",), ("G1",))
    assert not seen.job.placement.complaint


def test_gpus_of_two_jobs_do_not_make_one() -> None:
    known = given(gpus(2), G0=slurm("7"), G1=slurm("8"))
    seen = Watching(entry()).look(known, ("G0", 0), ("G1", 1))
    assert seen.job.reservation == "GPU n/1: it belongs to 8 (slurm), not to 7"
    one = given(gpus(2), G0=slurm("7"), G1=slurm("7"))
    assert Watching(entry()).look(one, ("G0", 0), ("G1", 1)).job.policy.mode == "enforce"


def test_an_owner_is_believed_for_a_while_after_its_agent_fell_silent() -> None:
    watching = Watching(entry(pods=GPT3))
    known = given(gpus(2), G0=pod("a"), G1=pod("a"))
    for age_s, whole in ((OWNER_AGE_S_MAX - 1.0, True), (OWNER_AGE_S_MAX + 1.0, False)):
        aged = {uuid: replace(gpu, age_s=age_s) for uuid, gpu in known.items()}
        seen = watching.look(aged, ("G0", 0), ("G1", 1))
        assert bool(seen.job.placement.stages) is whole


def test_a_job_that_ended_in_silence_leaves_its_gpus_to_the_next() -> None:
    watching = Watching(entry("old"), entry())
    watching.look(gpus(2), ("G0", 0), ("G1", 1), called="old")
    watching.now_s += 60.0
    watching.look(gpus(2), ("G0", 0), ("G1", 1))
    assert watching.observer._placements.reporting("old") == set()
    assert watching.observer._placements.reporting("job") == {"G0", "G1"}
