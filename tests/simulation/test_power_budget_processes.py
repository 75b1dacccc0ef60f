"""The power budget with real processes: the sum of power while controller, agent and keeper die."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from driven_agent import agent_on, fake_driver
from running_agent import RunningAgent, alive, eventually
from running_cluster import BIN, TTL_S, get

EXCESS_RATIO = 0.02  # allowed for one second
WINDOW_S = 1.0
BUDGETED = {"lease": {"ttl_s_max": TTL_S}, "power": {"keep_hours": 1}}

pytestmark = pytest.mark.long


def worst_w(
    energy_j: Callable[[], float], duration_s: float, during: Callable[[float], None]
) -> float:
    """The highest mean power of any second; `during` is called with the seconds passed."""
    begun_s = time.monotonic()
    samples, worst = [(begun_s, energy_j())], 0.0
    while samples[-1][0] - begun_s < duration_s:
        time.sleep(0.05)
        at_s, used_j = time.monotonic(), energy_j()
        during(at_s - begun_s)
        while at_s - samples[0][0] > 1.5 * WINDOW_S:
            samples.pop(0)
        samples.append((at_s, used_j))
        old_s, old_j = samples[0]
        if at_s - old_s >= WINDOW_S:
            worst = max(worst, (used_j - old_j) / (at_s - old_s))
    return worst


@contextlib.contextmanager
def controller_over(
    folder: Path,
    agents: list[str],
    budget_w: float = 0.0,
    interval_s: float = 0.5,
    jobs: str = "[]",
) -> Iterator[tuple[int, str]]:
    """A controller with these jobs and a power budget, if any; its process id and URL."""
    budget = f"cluster: {{power_budget_w: {budget_w}}}\n" if budget_w else ""
    (folder / "policy.yaml").write_text(
        f"apiVersion: joulecut/v1\nkind: Policy\nmode: enforce\n{budget}jobs: {jobs}\n"
    )
    config = {
        "agents": agents,
        "policy": "policy.yaml",
        "store": "sqlite:///controller.db",
        "listen": {"http": "127.0.0.1:0"},
        "interval_s": interval_s,
        "lease": {"ttl_s": TTL_S},
    }
    (folder / "controller.yaml").write_text(yaml.safe_dump(config))
    argv = [str(BIN / "joulecut-controller"), "--config", str(folder / "controller.yaml")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ready = next(filter(None, (re.search(r"ready http=(\S+)", line) for line in child.stdout)))
        try:
            yield child.pid, f"http://{ready[1]}"
        finally:
            child.kill()


def kept(url: str) -> bool:
    """Whether the budget holds for certain. A first pass may come before an agent's first reading;
    its GPUs make the budget best effort until they are limited, and never again."""
    with contextlib.suppress(OSError, ValueError):
        budget = json.loads(get(f"{url}/api/v1/board"))["power_budget"]
        if not budget or budget["state"] != "kept" or budget["best_effort"]:
            return False
        assert budget["in_force_w"] <= budget["budget_w"] + 1.0, budget  # whole watts
        return True
    return False


def kill_node(node: RunningAgent) -> None:
    keeper = node.keeper_pid
    node.kill(signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(keeper, signal.SIGKILL)
    eventually("the keeper's end", lambda: not alive(keeper))


@pytest.mark.smoke
def test_on_the_driver_no_death_exceeds_the_budget(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        drivers = [stack.enter_context(fake_driver(3, load={0: 1.0, 1: 1.0})) for _ in range(2)]
        for n, driver in enumerate(drivers):
            driver.name_gpus(n + 1)
        nodes = [
            stack.enter_context(agent_on(driver, node=f"n{n}", **BUDGETED))
            for n, driver in enumerate(drivers)
        ]
        agents = [node.start().address for node in nodes]
        budget_w = 1300.0  # six cards of 400 W, four of them at work

        def energy_j() -> float:
            return sum(sum(driver.energies_j()) for driver in drivers)

        def limits_w() -> float:
            return sum(sum(driver.limits_w()) for driver in drivers)

        assert limits_w() == 6 * 400.0
        controller = controller_over(tmp_path, agents, budget_w)
        pid, url = stack.enter_context(controller)
        eventually("the budget in force", lambda: kept(url))
        assert 0.9 * budget_w <= limits_w() <= budget_w
        os.kill(pid, signal.SIGKILL)
        kill_node(nodes[0])

        def work_begins(passed_s: float) -> None:
            if passed_s > 1.0:  # on the GPUs that were idle
                for driver in drivers:
                    driver.set_load(2, 1.0)

        worst = worst_w(energy_j, 3.0 * TTL_S, work_begins)
        assert worst <= (1.0 + EXCESS_RATIO) * budget_w
        assert worst >= 0.8 * budget_w, "worth limiting"
        nodes[0].start()  # its keeper restores what its journal names
        assert worst_w(energy_j, 3.0, lambda _: None) <= (1.0 + EXCESS_RATIO) * budget_w
        assert limits_w() <= budget_w
        assert nodes[0].gpu().power_limit_kept_w > 0.0
