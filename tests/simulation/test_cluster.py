"""A small cluster of real gRPC agents: every job held, each agent watched once, no lease lost."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import cluster

AGENTS, JOBS = 60, 4
LIMIT_S = 240.0  # for a machine that does much else

pytestmark = pytest.mark.long


def test_jobs_that_arrive_together_are_all_held(tmp_path: Path) -> None:
    found = cluster.run(
        Namespace(
            agents=AGENTS,
            jobs=JOBS,
            arriving=2,
            mode="enforce",
            no_profiles=False,
            iteration_s=0.5,
            interval_s=2.0,
            microbatches=24,
            steady_s=5.0,
            limit_s=LIMIT_S,
            takeover=False,
            profile_log=False,
        ),
        tmp_path,
    )
    assert found.unheld == 0
    assert found.streams == AGENTS
    assert found.expired == 0
