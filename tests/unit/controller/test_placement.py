"""Who works what: taken from reports or from the operator, and complained about."""

from dataclasses import replace

import pytest

from joulecut_controller.observe.job_matcher import JobMatch, match_jobs
from joulecut_controller.observe.placement import SILENCE_S_MIN, UNMATCHED, Placements
from joulecut_controller.policy.policy import GpuRef, JobPolicy, Policy, Slo
from joulecut_controller.ports import ArrivedReport
from joulecut_controller.view import GpuView
from joulecut_engine.graph.pipeline import Pipeline
from joulecut_wire.messages import GpuDescription, GpuSnapshot, IterationReport

POLICY = JobPolicy("job", "enforce", Slo(max_slowdown=0.0), pipeline=Pipeline("1f1b", 2, 4))


def gpus(count: int = 4) -> dict[str, GpuView]:
    return {
        f"G{i}": GpuView(GpuDescription(f"G{i}", i, "sim", (900,)), "n:1", "n", None, 0.0)
        for i in range(count)
    }


def matched(policy: JobPolicy) -> JobMatch:
    return match_jobs(Policy(jobs=(policy,)), gpus()).of(policy.name)


def reported(*reporters: tuple[str, int], at_s: float = 10.0) -> list[ArrivedReport]:
    return [
        ArrivedReport(IterationReport("job", uuid, stage, 1, 0.5), at_s)
        for uuid, stage in reporters
    ]


def test_siblings_share_a_stage() -> None:
    placements = Placements()
    placements.note("job", reported(("G1", 0), ("G0", 0), ("G2", 1), ("G3", 1)), gpus())
    twofold = replace(POLICY, pipeline=Pipeline("1f1b", 2, 4, data_parallel=2))
    assert placements.placement(twofold, gpus(), 10.5).stages == (("G0", "G1"), ("G2", "G3"))
    assert "tensor_parallel" in placements.placement(POLICY, gpus(), 10.5).complaint


def test_a_group_of_which_a_part_does_not_report_is_a_complaint() -> None:
    groups = replace(POLICY, pipeline=Pipeline("1f1b", 1, 4, tensor_parallel=2, data_parallel=2))
    placements = Placements()
    placements.note("job", reported(("G0", 0), ("G2", 0)), gpus())  # one GPU of each group
    assert "do not make whole groups" in placements.placement(groups, gpus(), 10.5).complaint
    placements.note("job", reported(("G1", 0), ("G3", 0)), gpus())
    assert not placements.placement(groups, gpus(), 10.5).complaint


def test_groups_are_known_where_reports_name_the_replica() -> None:
    shape = Pipeline("1f1b", 1, 4, tensor_parallel=2, data_parallel=2)
    policy, placements = replace(POLICY, pipeline=shape), Placements()
    reports = reported(("G0", 0), ("G1", 0), ("G2", 0), ("G3", 0))
    placements.note("job", reports, gpus())
    placement = placements.placement(policy, gpus(), 10.5)
    assert placement.groups == ()
    for arrived, replica in zip(reports, (1, 0, 1, 0), strict=True):
        told = replace(arrived, report=replace(arrived.report, replica=replica))
        placements.note("job", [told], gpus())
    placement = placements.placement(policy, gpus(), 10.5)
    assert placement.groups == ((("G0", "G2"), ("G1", "G3")),)
    alone = replace(POLICY, pipeline=Pipeline("1f1b", 1, 4, data_parallel=4))
    assert placements.placement(alone, gpus(), 10.5).groups[0] == (
        ("G0",), ("G1",), ("G2",), ("G3",),
    )  # fmt: skip


def test_what_does_not_fit_is_a_complaint() -> None:
    known = gpus()
    cases = {
        "no GPU reports stage 1 of 2": reported(("G0", 0)),
        "the job's GPUs show 3": reported(("G0", 0), ("G1", 1), ("G2", 2)),
        "stages have 1 to 2 GPUs": reported(("G0", 0), ("G1", 1), ("G2", 1)),
        "which no agent describes": reported(("G9", 0)),
        "has not reported yet": [],
        "show 0": reported(("G0", 60_000)),
    }
    for expected, reports in cases.items():
        placements = Placements()
        placements.note("job", reports, known)
        assert expected in placements.placement(POLICY, known, 10.5).complaint


def test_a_gpu_outside_the_match_is_a_complaint() -> None:
    placements = Placements()
    listed = replace(POLICY, gpus=(GpuRef("n", 0), GpuRef("n", 1)))
    placements.note("job", reported(("G0", 0), ("G3", 1)), gpus())
    assert "G3 reports this job but is not in its match.gpus" in (
        placements.placement(listed, gpus(), 10.5, matched(listed)).complaint
    )


def test_a_list_is_in_rank_order_with_the_pipeline_outermost() -> None:
    placements = Placements()
    listed = replace(
        POLICY,
        ranks="list",
        gpus=tuple(GpuRef("n", i) for i in (3, 2, 1, 0)),
        pipeline=Pipeline("1f1b", 2, 4, tensor_parallel=2),
    )
    placements.note("job", reported(("G0", 7)), gpus())  # reported stages do not count
    placement = placements.placement(listed, gpus(), 10.5, matched(listed))
    assert placement.stages == (("G2", "G3"), ("G0", "G1"))
    assert not placement.complaint
    missing = replace(listed, gpus=(*listed.gpus, GpuRef("other", 0)))
    complaint = placements.placement(missing, gpus(), 10.5, matched(missing)).complaint
    assert "no agent describes GPU other/0" in complaint


def test_silence_is_counted_in_iterations_but_not_below_seconds() -> None:
    placements = Placements()
    placements.note("job", reported(("G0", 0), ("G1", 1)), gpus())
    assert not placements.placement(POLICY, gpus(), 10.0 + SILENCE_S_MIN - 0.1).silent
    assert placements.placement(POLICY, gpus(), 10.0 + SILENCE_S_MIN + 0.1).silent


def test_a_job_that_moved_leaves_its_old_seat() -> None:
    placements = Placements()
    placements.note("job", reported(("G0", 0), ("G1", 1)), gpus())
    placements.note("job", reported(("G2", 0), ("G3", 1), at_s=100.0), gpus())
    assert placements.placement(POLICY, gpus(), 100.0).stages == (("G2",), ("G3",))


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    "lie",
    [
        {"duration_s": 86_400.0},
        {"duration_s": 0.5},
        {"age_s": 900.0},
        {"stage": 2},
        {"stage": 40, "duration_s": 86_400.0},
    ],
)
def test_a_gpu_that_nobody_placed_is_named_and_changes_nothing(
    *, listed: bool, lie: dict[str, float]
) -> None:
    """One report for an idle GPU, with whatever duration, and the job goes on, and ends."""
    policy = replace(POLICY, gpus=(GpuRef("n", 0), GpuRef("n", 1))) if listed else POLICY
    match = matched(policy) if listed else UNMATCHED
    placements = Placements()
    for n in range(40):
        placements.note("job", reported(("G0", 0), ("G1", 1), at_s=10.0 + 0.5 * n), gpus())
        if n == 20:
            (one,) = reported(("G3", 0), at_s=20.0)
            told = replace(one, report=replace(one.report, **lie))
            placements.note("job", [told], gpus())
        placement = placements.placement(policy, gpus(), 10.0 + 0.5 * n, match)
        assert (placement.stages, placement.complaint) == ((("G0",), ("G1",)), "")
        assert ("G3" in placement.ignored) == (20 <= n <= 30)  # forgotten by then
        assert placement.silence_limit_s == SILENCE_S_MIN
    # What it goes on to say keeps no dead job alive.
    placements.note("job", reported(("G3", 0), at_s=35.5), gpus())
    dead = placements.placement(policy, gpus(), 35.5, match)
    assert dead.silent or dead.complaint


def test_many_that_nobody_placed_change_nothing_either() -> None:
    """A hostile agent reports another node's job, for all of its GPUs and at every pace; the job
    takes far longer for an iteration than they claim, or far less.
    """
    known, policy = gpus(20), replace(POLICY, pipeline=Pipeline("1f1b", 1, 4))
    for own_s, claimed_s in ((10.0, 0.001), (0.5, 86_400.0)):
        placements, begun_s = Placements(), 10.0
        for n in range(400):
            at_s = begun_s + n
            if n % own_s < 1.0:
                (own,) = reported(("G0", 0), at_s=at_s)
                paced = replace(own, report=replace(own.report, duration_s=own_s))
                placements.note("job", [paced], known)
            if n > 100:
                lies = reported(*((f"G{i}", i % 3) for i in range(1, 20)), at_s=at_s)
                told = [replace(o, report=replace(o.report, duration_s=claimed_s)) for o in lies]
                placements.note("job", told, known)
            placement = placements.placement(policy, known, at_s)
            assert (placement.stages, placement.complaint) == ((("G0",),), "")
            assert placement.silence_limit_s == max(SILENCE_S_MIN, 8 * own_s)
            assert not placement.silent


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("stages", "width"), [(2, 1), (1, 1), (1, 2)])
@pytest.mark.parametrize("stage", [0, 1, 40])
def test_a_report_for_an_idle_gpu_before_the_job_runs_is_named_and_changes_nothing(
    *, again: bool, stages: int, width: int, stage: int
) -> None:
    """Any local user's datagram, once or with each iteration of the job that begins later."""
    policy = replace(POLICY, pipeline=Pipeline("1f1b", stages, 4, data_parallel=width))
    known = {
        uuid: replace(gpu, snapshot=GpuSnapshot(uuid, utilization_gpu_ratio=float(uuid != "G3")))
        for uuid, gpu in gpus().items()
    }
    own = tuple((f"G{i}", i % stages) for i in range(stages * width))
    placements = Placements()
    for n in range(40):
        if n == 0 or again:
            (lie,) = reported(("G3", stage), at_s=10.0 + 0.5 * n)
            lie = replace(lie, report=replace(lie.report, duration_s=86_400.0))
            placements.note("job", [lie], known)
        if n < 5:
            assert placements.placement(policy, known, 10.0 + 0.5 * n).complaint or stages == 1
            continue
        placements.note("job", reported(*own, at_s=10.0 + 0.5 * n), known)
        placement = placements.placement(policy, known, 10.0 + 0.5 * n)
        assert placement.complaint == ""
        assert sorted(uuid for uuids in placement.stages for uuid in uuids) == sorted(dict(own))
        assert placement.silence_limit_s == SILENCE_S_MIN
        assert ("G3" in placement.ignored) == (again or n <= 10)


def test_a_gpu_takes_the_place_of_one_that_fell_silent() -> None:
    placements = Placements()
    for n in range(40):
        at_s = 10.0 + 0.5 * n
        first = ("G0", 0) if n < 20 else ("G3", 0)
        placements.note("job", reported(first, ("G1", 1), at_s=at_s), gpus())
        placement = placements.placement(POLICY, gpus(), at_s)
        assert not placement.complaint
    assert placement.stages == (("G3",), ("G1",))
    assert not placement.ignored
