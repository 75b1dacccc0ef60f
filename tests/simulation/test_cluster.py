"""A small cluster of real gRPC agents: every job held, each agent watched once, no lease lost."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import cluster

LIMIT_S = 240.0  # for a machine that does much else


@pytest.mark.parametrize(
    ("agents", "jobs", "arriving"),
    [
        pytest.param(60, 4, 2, marks=pytest.mark.long),
        pytest.param(60, 60, 0, marks=pytest.mark.nightly),
        pytest.param(100, 100, 20, marks=pytest.mark.nightly),
    ],
)
def test_jobs_that_arrive_together_are_all_held(
    tmp_path: Path, agents: int, jobs: int, arriving: int
) -> None:
    found = cluster.run(
        Namespace(
            agents=agents,
            jobs=jobs,
            arriving=arriving,
            mode="enforce",
            no_profiles=False,
            iteration_s=0.5,
            interval_s=2.0,
            microbatches=24,
            steady_s=5.0,
            limit_s=LIMIT_S,
            takeover=False,
            controllers=1,
            profile_log=False,
        ),
        tmp_path,
    )
    assert found.unheld == 0
    assert found.streams == agents
    assert found.expired == 0
