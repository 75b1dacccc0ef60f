"""A GPU that comes with a later load of the driver is governed like those that were there first."""

import time

from driven_agent import agent_on, fake_driver
from running_agent import RunningAgent, accepted, eventually

from joulecut import Reporter


def test_it_is_described_ordered_heard_of_and_restored() -> None:
    with fake_driver(2) as driver:
        driver.lose(1)
        with agent_on(driver) as node:
            node.start()
            first, late = driver.uuids
            assert [gpu.uuid for gpu in node.describe().gpus] == [first]
            assert "no GPU" in node.order(late, clock_mhz=1005)[0].reason
            reporter = Reporter("demo", late, 0, node.ready["socket"])
            driver.return_gpu(1)
            driver.reload_driver()
            eventually("both are read", lambda: len(node.watch().gpus) == 2)
            node.regains_control()
            assert len(node.describe().gpus) == 2
            assert accepted(node.order(late, clock_mhz=1005))
            assert (driver.locks()[1] or (0, 0))[1] == 1005
            assert eventually("its lease is told", lambda: node.gpu(1).lease).job == "demo"
            bound = f'bound="max",uuid="{late}"'
            eventually("so it is in metrics", lambda: bound in node.metrics())
            assert accepted(node.clear(late))
            assert driver.locks() == (None, None)
            assert reporter.iteration(1, 0.5, {"forward": (4, 0.1)})
            counts = f'source="report",uuid="{late}",workload="demo"'
            eventually("its word counts", lambda: counts in node.metrics())
            _silence_gives_it_back(node, late)
            reporter.close()


def _silence_gives_it_back(node: RunningAgent, late: str) -> None:
    began_s = time.monotonic()
    assert accepted(node.order(late, clock_mhz=1005, generation=2, ttl_s=1.5))
    eventually("given back", lambda: f"restore {late} cause=lease_expired: done" in node.log)
    assert time.monotonic() - began_s >= 1.5, "and not before"
