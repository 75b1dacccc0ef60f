"""What controllers run on: a world with one job and a store on disk, or real processes."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_agent import RunningAgent
from running_cluster import Cluster
from worlds import World

from joulecut_controller.store.database import DatabaseStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DatabaseStore]:
    made = open_store(f"sqlite:///{tmp_path}/controller.db")
    yield made
    made.close()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def node() -> Iterator[RunningAgent]:
    """Four simulated GPUs; the agent is not started yet."""
    with RunningAgent() as running:
        yield running


@pytest.fixture(scope="module")
def lasting() -> Iterator[RunningAgent]:
    with RunningAgent() as running:
        yield running


@pytest.fixture
def live(lasting: RunningAgent) -> RunningAgent:
    """Four simulated GPUs under a running agent that the tests of a module share: each begins with
    none of them held. It may kill what it likes, and leaves the configuration as it was.
    """
    return lasting.afresh()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="jc") as folder:
        made = Cluster(Path(folder))
        try:
            made.up()
            yield made
        finally:
            made.down()
