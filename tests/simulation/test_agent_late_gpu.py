"""A GPU that comes with a later load of the driver is governed like those that were there first."""

import time
from collections.abc import Iterator

import pytest
from driven_agent import fake_driver, started
from running_agent import PATIENCE_S, RunningAgent, eventually

from fixture import FakeNvml
from joulecut import Reporter
from joulecut_wire import codec
from joulecut_wire.messages import Command, Setting
from joulecut_wire.v1 import agent_pb2 as pb


@pytest.fixture
def driver() -> Iterator[FakeNvml]:
    with fake_driver(2) as fake:
        fake.lose(1)
        yield fake


node = started


def _come(driver: FakeNvml, node: RunningAgent) -> None:
    driver.return_gpu(1)
    driver.reload_driver()
    eventually("both are read", lambda: len(node.watch().gpus) == 2)


def _apply(node: RunningAgent, uuid: str, generation: int = 1, ttl_s: float = 60.0) -> str:
    command = Command(1, "demo", generation, ttl_s, (Setting(uuid, 1005),), "test")
    request = codec.encode_command(command)
    (result,) = codec.decode_results(node.stub.Apply(request, timeout=PATIENCE_S))
    return result.reason


def test_it_is_described_ordered_and_restored(driver: FakeNvml, node: RunningAgent) -> None:
    late = driver.uuids[1]
    assert [gpu.uuid for gpu in node.describe().gpus] == [driver.uuids[0]]
    assert "no GPU" in _apply(node, late)
    _come(driver, node)
    (about,) = eventually(
        "described and free",
        lambda: [g for g in node.describe().gpus if g.uuid == late and g.controllable],
    )
    assert about.reason == ""
    assert _apply(node, late) == ""
    locked = driver.locks()[1]
    assert locked is not None
    assert locked[1] == 1005
    lease = eventually("its lease is told", lambda: node.gpu(1).lease)
    assert lease.job == "demo"
    eventually("so it is in metrics", lambda: f'bound="max",uuid="{late}"' in node.metrics())
    request = pb.ClearRequest(epoch=1, job="demo", uuids=[late])
    assert node.stub.Clear(request, timeout=PATIENCE_S).results[0].accepted
    assert driver.locks() == (None, None)


def test_silence_gives_it_back_too(driver: FakeNvml, node: RunningAgent) -> None:
    _come(driver, node)
    began_s = time.monotonic()
    assert _apply(node, driver.uuids[1], ttl_s=1.5) == ""
    eventually("given back", lambda: driver.locks() == (None, None))
    assert time.monotonic() - began_s >= 1.5, "and not before"
    eventually("said", lambda: f"restore {driver.uuids[1]} cause=lease_expired: done" in node.log)


def test_its_job_may_speak_and_its_end_gives_it_back(driver: FakeNvml, node: RunningAgent) -> None:
    late, reporter = driver.uuids[1], Reporter("demo", driver.uuids[1], 0, node.ready["socket"])
    _come(driver, node)
    assert reporter.iteration(1, 0.5, {"forward": (4, 0.1)})
    eventually(
        "its word counts",
        lambda: f'source="report",uuid="{late}",workload="demo"' in node.metrics(),
    )
    reporter.close()
