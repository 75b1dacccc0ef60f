"""An agent on the fake driver, through the unmodified binding; skipped where no compiler is.

from driven_agent import agent_on, fake_driver
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from running_agent import RunningAgent

from fixture import CompilerMissing, FakeNvml


@contextlib.contextmanager
def fake_driver(
    gpus: int, model: str = "a100", load: Mapping[int, float] | None = None
) -> Iterator[FakeNvml]:
    """GPUs of `model` that the caller may set, under `load` by index."""
    with tempfile.TemporaryDirectory(prefix="jc") as folder:
        try:
            driver = FakeNvml(Path(folder) / "gpus", gpus=gpus, model=model)
        except CompilerMissing as missing:
            pytest.skip(str(missing))
        driver.set_permission(True)
        for index, share in (load or {}).items():
            driver.set_load(index, share)
        yield driver


def agent_on(driver: FakeNvml, **config: Any) -> RunningAgent:
    """An agent of its own, not started yet, which believes what the driver says of permission."""
    options = {"permission": "driver"}
    return RunningAgent(env=driver.environment(), device="nvml", nvml=options, **config)


@pytest.fixture
def started(driver: FakeNvml) -> Iterator[RunningAgent]:
    """An agent on the `driver` of the test's own module."""
    with agent_on(driver) as agent:
        yield agent.start()
