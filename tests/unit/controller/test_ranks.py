"""From ranks to stages: against nested loops, and against pods that come and go."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.observe.job_matcher import JobMatch
from joulecut_controller.observe.placement import Placements
from joulecut_controller.observe.ranks import (
    JOB_INDICES,
    POD_INDEX,
    by_completion,
    coordinates,
    seats,
)
from joulecut_controller.policy.policy import GpuRef, JobPolicy, PodMatch, Slo
from joulecut_controller.ports import ArrivedReport
from joulecut_controller.view import GpuView
from joulecut_engine.graph.pipeline import Pipeline
from joulecut_wire.messages import Allocation, GpuDescription, IterationReport

DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")


@given(
    st.permutations(DIMENSIONS),
    st.dictionaries(st.sampled_from(DIMENSIONS), st.integers(1, 3), max_size=5),
)
def test_coordinates_are_those_of_nested_loops(order: list[str], sizes: dict[str, int]) -> None:
    loops = [range(sizes.get(dimension, 1)) for dimension in reversed(order)]
    rank = -1
    for rank, values in enumerate(itertools.product(*loops)):
        expected = dict(zip(reversed(order), values, strict=True))
        assert coordinates(rank, "-".join(order), sizes) == expected
    for outside in (-1, rank + 1):
        with pytest.raises(ValueError, match="outside"):
            coordinates(outside, "-".join(order), sizes)


def groups(ranked: str, order: str, pipeline: Pipeline) -> list[str]:
    """The members of each lock-step group, by stage and replica."""
    found = seats(ranked, order, pipeline)
    places = sorted({(seat.stage, seat.replica) for seat in found.values()})
    return [
        "".join(u for u, seat in found.items() if (seat.stage, seat.replica) == place)
        for place in places
    ]


def test_seats_by_the_order_of_parallelisms() -> None:
    usual = "tp-cp-ep-dp-pp"
    tensor = Pipeline("1f1b", 2, 4, tensor_parallel=2, data_parallel=2)
    assert groups("abcdefgh", usual, tensor) == ["ab", "cd", "ef", "gh"]
    assert groups("abcdefgh", "tp-cp-ep-pp-dp", tensor) == ["ab", "ef", "cd", "gh"]
    plain = Pipeline("1f1b", 2, 4, data_parallel=4)
    assert groups("abcdefgh", "pp-tp-cp-ep-dp", plain) == list("acegbdfh")
    context = Pipeline("1f1b", 2, 4, context_parallel=2, data_parallel=2)
    assert groups("abcdefgh", usual, context) == ["ab", "cd", "ef", "gh"]
    experts = Pipeline("1f1b", 1, 4, tensor_parallel=2, expert_parallel=2, data_parallel=4)
    assert groups("abcdefgh", usual, experts) == ["abcd", "efgh"]
    both = Pipeline("1f1b", 1, 4, context_parallel=2, expert_parallel=4, data_parallel=4)
    assert groups("abcdefgh", usual, both) == ["abcd", "efgh"]
    assert (both.lockstep, both.replicas, both.width) == (4, 2, 8)
    assert seats("abcdefgh", usual, Pipeline("1f1b", 3, 4)) == {}
    assert seats("", usual, Pipeline("1f1b", 1, 4)) == {}


def gpu(uuid: str, index: int, pod: str, completion: str | None, part: str = "") -> GpuView:
    labels = {POD_INDEX: completion} if completion is not None else {}
    if part:
        labels[JOB_INDICES[0]] = part
    allocation = Allocation(uuid, "job", "train", pod, "kubernetes", labels)
    description = GpuDescription(uuid, index, "sim", (900,))
    return GpuView(description, f"{pod}:1", f"node-{pod}", None, 0.0, allocation)


def test_pods_are_counted_by_number_and_gpus_by_place() -> None:
    pods = [gpu("d", 1, "p10", "10"), gpu("a", 0, "p0", "0"), gpu("c", 0, "p10", "10")]
    pods += [gpu(f"m{i}{j}", j, f"p{i}", str(i)) for i in range(1, 10) for j in (0, 1)]
    pods.append(gpu("b", 1, "p0", "0"))
    ranked, wrong = by_completion(pods)
    assert ranked[:3] == ("a", "b", "m10")
    assert ranked[-2:] == ("c", "d")
    assert not wrong


def test_a_jobset_counts_its_jobs_first() -> None:
    pods = [gpu("c", 0, "y0", "0", "1"), gpu("b", 0, "x1", "1", "0"), gpu("a", 0, "x0", "0", "0")]
    assert by_completion([*pods, gpu("d", 0, "y1", "1", "1")]) == (("a", "b", "c", "d"), "")
    assert by_completion(pods[:1])[1] == "no pod of job index 0 is there"


@pytest.mark.parametrize(
    ("pods", "line"),
    [
        ([gpu("a", 0, "p", None)], "pod p has no label"),
        ([gpu("a", 0, "p", "-1")], "pod p has no label"),
        ([gpu("a", 0, "p", "0"), gpu("b", 0, "q", "0")], "have the same completion index 0"),
        ([gpu("a", 0, "p", "1")], "no pod with completion index 0 is there"),
        (
            [gpu("a", 0, "p", "0"), gpu("b", 1, "p", "0"), gpu("c", 0, "q", "1")],
            "pods have 1 to 2 GPUs",
        ),
        ([replace(gpu("a", 0, "p", "0"), allocation=None)], "names no owner"),
    ],
)
def test_pods_that_do_not_count_are_a_complaint(pods: list[GpuView], line: str) -> None:
    assert line in by_completion(pods)[1]


# -- believed only where reports say the same ----------------------------------------------

JOB = JobPolicy("job", "enforce", Slo(max_slowdown=0.0), pipeline=Pipeline("1f1b", 2, 4))
COUNTED = replace(JOB, pods=PodMatch("train"), ranks="completion-index")
LISTED = replace(JOB, gpus=(GpuRef("node-p", 0), GpuRef("node-q", 0)), ranks="list")
PODS = {"b": gpu("b", 0, "p", "0"), "a": gpu("a", 0, "q", "1")}


@pytest.mark.parametrize("job", [COUNTED, LISTED])
@pytest.mark.parametrize(
    ("reporters", "doubt"),
    [
        ({"b": 0, "a": 1}, ""),
        ({"b": 1, "a": 0}, "GPU node-p/0 works stage 0 by {}, but stage 1 by its reports"),
        ({"b": 0, "a": 0}, "ranks by {} are not verified: the job's reports tell no stages"),
        ({"b": 0}, "ranks by {} are not verified: the job's reports tell no stages"),
    ],
)
def test_counted_ranks_are_believed_where_reports_bear_them_out(
    job: JobPolicy, reporters: dict[str, int], doubt: str
) -> None:
    placements = Placements()
    reports = [
        ArrivedReport(IterationReport("job", uuid, stage, 1, 0.5), 10.0)
        for uuid, stage in reporters.items()
    ]
    placements.note("job", reports, PODS)
    match = JobMatch(frozenset(PODS), listed=tuple(PODS) if job.gpus else ())
    placement = placements.placement(job, PODS, 10.5, match)
    assert placement.stages == (("b",), ("a",))
    assert not placement.complaint
    assert placement.doubt == doubt.format(job.ranks)
