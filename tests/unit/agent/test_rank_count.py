"""Ranks heard against ranks running, and sources of one GPU that disagree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.jobs.rank_count import HEARD_S, REPORTS_MIN, SILENT_S, RankCount
from joulecut_agent.jobs.rate_source import LOG
from joulecut_wire.messages import IterationReport, PipelineShape

GPUS = tuple(f"GPU-{i}" for i in range(8))


class Node:
    """Eight GPUs, each with a process of user 1000, of the Slurm job where it is named."""

    def __init__(self, scheduled: str = "") -> None:
        self.scheduled = dict.fromkeys(GPUS, scheduled)
        self.users = {uuid: {1000} for uuid in GPUS}
        self.ranks = RankCount(lambda: GPUS, self.scheduled.__getitem__, self.users.__getitem__)

    def hear(
        self, uuid: str, at_s: float = 0.0, *, source: str = "", duration_s: float = 1.0,
        world: int = 8, count: int = 1, number: int = 0, pace_s: float = 0.0,
    ) -> None:  # fmt: skip
        shape = PipelineShape("", world, 0)
        for i in range(count):
            report = IterationReport(
                "gpt", uuid, 0, number + i, duration_s, source=source, shape=shape
            )
            self.ranks.heard(report, at_s + i * pace_s)

    def said(self, at_s: float) -> list[str]:
        return [f"{fault.job}: {fault.text}" for fault in self.ranks.faults(at_s)]


@pytest.mark.parametrize("scheduled", ["slurm:7", ""])
def test_one_of_eight_ranks_is_said_with_the_remedy(scheduled: str) -> None:
    node = Node(scheduled)
    node.hear("GPU-7")
    assert not node.said(SILENT_S - 1.0), "the others may be on their way"
    (line,) = node.said(SILENT_S)
    assert line.startswith(f"{scheduled or 'gpt'}: 1 of 8 ranks export")
    assert "joulecut run -- COMMAND on each node" in line
    for uuid in GPUS:
        node.hear(uuid, SILENT_S)
    assert not node.said(SILENT_S)
    (ranks,) = node.ranks.counts(SILENT_S).values()
    assert ranks.heard == ranks.running == set(GPUS)


def test_a_gpu_without_a_process_or_of_another_job_is_no_rank() -> None:
    node = Node("slurm:7")
    node.users["GPU-0"] = set()
    node.scheduled["GPU-1"] = "slurm:8"
    for uuid in GPUS[2:]:
        node.hear(uuid)
    assert not node.said(SILENT_S)


def test_without_a_scheduler_only_as_many_ranks_are_missing_as_the_job_has() -> None:
    node = Node()
    node.hear("GPU-0", world=1)
    assert not node.said(SILENT_S), "the others may be other jobs of this user"
    node.hear("GPU-0", world=4)
    assert "1 of 4 ranks" in node.said(SILENT_S)[0]
    node.users = {uuid: {1001} for uuid in GPUS}
    node.ranks = RankCount(lambda: GPUS, node.scheduled.__getitem__, node.users.__getitem__)
    node.users["GPU-0"] = {1000}
    node.hear("GPU-0", world=4)
    assert not node.said(SILENT_S), "processes of another user"


def test_a_job_that_ended_is_forgotten() -> None:
    node = Node("slurm:7")
    node.hear("GPU-0")
    assert node.ranks.counts(HEARD_S - 1.0)
    assert not node.ranks.counts(HEARD_S)
    assert not node.said(HEARD_S)


def test_sources_that_disagree_are_said() -> None:
    node = Node("slurm:7")
    for uuid in GPUS:
        node.hear(uuid, duration_s=0.5, count=REPORTS_MIN)
        node.hear(uuid, duration_s=0.52, source=LOG, count=REPORTS_MIN)
    assert not node.said(SILENT_S), "4 % apart"
    node.hear("GPU-3", duration_s=4.0, source=LOG, count=3 * REPORTS_MIN)
    (line,) = node.said(SILENT_S)
    assert line.startswith("slurm:7: report says 0.5 s an iteration, log 3.9")


def test_milliseconds_for_seconds() -> None:
    node = Node("slurm:7")
    for number in range(12):
        node.hear("GPU-0", 6.87 * number, duration_s=6870.0, number=number)
        said = [line for line in node.said(6.87 * number) if "ranks export" not in line]
        assert bool(said) == (number >= REPORTS_MIN - 1)
    assert "an iteration is reported every 6.87 s; allowed: seconds, not milliseconds" in said[0]
    node.hear("GPU-0", 100.0, duration_s=6870.0, number=0)
    assert all("ranks export" in line for line in node.said(100.0)), "it began again"


@given(
    duration_s=st.floats(0.01, 1000.0),
    lost=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    noise=st.floats(0.5, 2.0),
)
def test_a_job_in_seconds_gets_no_line(duration_s: float, lost: list[int], noise: float) -> None:
    """Reports may be lost, and come in bursts after a stall."""
    node, number, at_s = Node(), 0, 0.0
    for step in lost:
        number, at_s = number + step, at_s + step * duration_s * noise
        node.hear("GPU-0", at_s, duration_s=duration_s, number=number, world=1)
        assert not node.said(at_s)
    node.hear(
        "GPU-0", at_s, duration_s=duration_s, number=number + 1, world=1, count=100, pace_s=1e-6
    )
    assert not node.said(at_s)
