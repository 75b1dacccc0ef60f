"""A driver that cannot be read, and could be written: what was left is given back all the same."""

import subprocess

from driven_agent import agent_on, fake_driver
from running_agent import COMMAND, PATIENCE_S, accepted

UNKNOWN = 999


def test_an_agent_that_cannot_start_restores_what_another_left() -> None:
    with fake_driver(3) as driver, agent_on(driver) as node:
        node.start()
        assert accepted(node.order(*driver.uuids, clock_mhz=1005))
        driver.hang("nvmlDeviceResetGpuLockedClocks", count=-1)  # nobody restores in between
        node.kill()
        node.kill_keeper()
        driver.clear_errors()
        driver.set_error("nvmlDeviceGetCount_v2", UNKNOWN)
        done = subprocess.run(
            [COMMAND, "run", "--config", str(node.write_config())],
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE_S,
            env=node.env,
        )
        assert done.returncode == 1
        assert "nvmlDeviceGetCount: unknown" in done.stderr
        assert driver.locks() == (None, None, None)
        driver.clear_errors()
        assert node.restore().returncode == 0
