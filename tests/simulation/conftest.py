"""A world with one job, and a store on disk, for whoever runs a controller on both; an agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from running_agent import RunningAgent
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
