"""S7, S9 and S10 on the fake driver: what breaks costs its own numbers, and heals by itself."""

import json
import re
import signal
import statistics
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise

import grpc
import pytest
from driven_agent import agent_on, fake_driver
from running_agent import PATIENCE_S, RunningAgent, accepted, eventually

from fixture import FakeNvml
from joulecut import Reporter
from joulecut_wire.v1 import agent_pb2 as pb

ENERGY = "joulecut_gpu_energy_joules_total"
POWER_W_MAX = 4 * 400.0  # of four A100
CLOSE_J = 600.0  # what a busy and three idle ones use in a second


@pytest.fixture(scope="module")
def driver() -> Iterator[FakeNvml]:
    with fake_driver(4) as fake:
        yield fake


@pytest.fixture(scope="module")
def node(driver: FakeNvml) -> Iterator[RunningAgent]:
    """Each test leaves it as it was: what breaks heals."""
    with agent_on(driver) as agent:
        yield agent.start()


def series(node: RunningAgent, name: str, label: str = "uuid") -> dict[str, float]:
    found = {}
    for line in node.metrics().splitlines():
        if match := re.match(rf'{name}(?:\{{.*?{label}="(.*?)".*?\}})? (\S+)$', line):
            found[match[1] or ""] = float(match[2])
    return found


def shown(node: RunningAgent, driver: FakeNvml) -> list[int]:
    """Indices of the GPUs whose energy is in a scrape now."""
    told = series(node, ENERGY)
    return [index for index, uuid in enumerate(driver.uuids) if uuid in told]


def shows(node: RunningAgent, driver: FakeNvml, *indices: int) -> Callable[[], bool]:
    return lambda: shown(node, driver) == list(indices)


def alive(node: RunningAgent) -> bool:
    return node.process.poll() is None


def keeps_ticking(node: RunningAgent, but: int = 0) -> None:
    before = node.watch().sequence
    eventually("more ticks", lambda: node.watch().sequence > before + 2 + but)


def test_a_call_that_hangs_costs_that_gpu_alone_and_says_so_once(
    node: RunningAgent, driver: FakeNvml
) -> None:
    eventually("all four", shows(node, driver, 0, 1, 2, 3))
    driver.hang("nvmlDeviceGetTotalEnergyConsumption", gpu=1, count=-1)
    eventually("it hung", lambda: driver.hits("nvmlDeviceGetTotalEnergyConsumption"))
    eventually("three of four", shows(node, driver, 0, 2, 3))
    hangs = {driver.uuids[1]: 1.0}
    eventually("said", lambda: series(node, "joulecut_driver_unresponsive") == hangs)
    keeps_ticking(node)
    eventually("it was tried again", lambda: driver.hits("nvmlDeviceGetTotalEnergyConsumption") > 1)
    assert set(shown(node, driver)) <= {0, 2, 3}, "never a number of the one that hangs"
    assert node.log.count("driver_unresponsive: GPU 1") == 1
    driver.clear_errors()
    eventually("all four again", shows(node, driver, 0, 1, 2, 3))
    eventually("none hangs", lambda: series(node, "joulecut_driver_unresponsive") == {})
    assert alive(node)


def test_a_gpu_that_hangs_in_every_call_does_not_keep_an_agent_from_starting() -> None:
    with fake_driver(4) as driver, agent_on(driver, keeper="none") as node:
        driver.hang("*", gpu=2, count=-1)
        node.start()
        eventually("three of four", shows(node, driver, 0, 1, 3))
        driver.clear_errors()
        eventually("the fourth is found", shows(node, driver, 0, 1, 2, 3))


def unready(node: RunningAgent) -> str:
    """What it says of why it is of no use now."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        node.metrics("/readyz")
    assert caught.value.code == 503
    with caught.value as answer:
        return answer.read().decode()


def test_the_drivers_own_lock_takes_every_number_and_not_the_agent(
    node: RunningAgent, driver: FakeNvml
) -> None:
    pid = node.process.pid
    driver.hang("*", count=-1)
    eventually("nothing is shown", shows(node, driver))
    eventually("the driver is named", lambda: "" in series(node, "joulecut_driver_unresponsive"))
    for _ in range(20):
        assert shown(node, driver) == []
        assert node.metrics("/healthz").startswith("ok\ndriver_unresponsive: the driver")
        assert unready(node).startswith("no GPU was read recently\ndriver_unresponsive: the driver")
    assert series(node, "joulecut_collect_success") == {"": 0.0}
    driver.clear_errors()
    eventually("everything is back", shows(node, driver, 0, 1, 2, 3))
    eventually("well", lambda: node.metrics("/healthz") == node.metrics("/readyz") == "ok\n")
    assert (node.process.pid, alive(node)) == (pid, True)
    assert node.log.count("driver_unresponsive: the driver") == 1


def test_no_scrape_and_no_probe_asks_the_driver() -> None:
    without = {"keeper": "none", "sample_interval_s": 60.0}
    with fake_driver(4) as driver, agent_on(driver, **without) as node:
        node.start()
        before = driver.calls_total()
        for _ in range(10):
            assert shown(node, driver) == [0, 1, 2, 3]
            node.metrics("/healthz")
            node.metrics("/readyz")
            node.describe()
            node.watch()
        assert driver.calls_total() == before


def test_a_gpu_lost_and_returned(node: RunningAgent, driver: FakeNvml) -> None:
    driver.lose(3, xid=79)
    eventually("three of four", shows(node, driver, 0, 1, 2))
    eventually("said", lambda: series(node, "joulecut_collect_success") == {"": 0.0})
    assert driver.uuids[3] not in {gpu.uuid for gpu in node.watch().gpus}
    assert "gpu_is_lost" in series(node, "joulecut_nvml_errors_total", "code")
    driver.return_gpu(3)
    eventually("all four", shows(node, driver, 0, 1, 2, 3))
    assert series(node, ENERGY)[driver.uuids[3]] < 1e6, "a counter of the new load"
    eventually("a whole tick", lambda: series(node, "joulecut_collect_success") == {"": 1.0})


def test_a_driver_reloaded_under_it(node: RunningAgent, driver: FakeNvml) -> None:
    def fresh() -> bool:
        counters_j = series(node, ENERGY)
        return len(counters_j) == 4 and max(counters_j.values()) < 50_000

    for upgraded in (False, True):
        driver.advance(3600)
        eventually("an hour's energy", lambda: min(series(node, ENERGY).values(), default=0) > 5e4)
        driver.reload_driver(upgraded=upgraded)
        eventually("fresh counters of all", fresh)
        node.regains_control()

        def set_again(generation: int = 1 + upgraded) -> bool:
            # The writer's library may be the old one until the first order, which is refused then.
            return accepted(node.order(*driver.uuids, clock_mhz=1005, generation=generation))

        eventually("all are set", set_again)
        assert accepted(node.clear())
    assert alive(node)


def test_a_driver_unloaded_for_a_while() -> None:
    with fake_driver(4) as driver, agent_on(driver, keeper="none") as node:
        node.start()
        driver.unload_driver()
        eventually("nothing is shown", shows(node, driver))
        eventually("said", lambda: "driver is not loaded" in node.log)
        began_s, before = time.monotonic(), driver.calls_total()
        time.sleep(2.0)
        calls = driver.calls_total() - before
        assert calls < 33 * (time.monotonic() - began_s), "asked for now and then, not in a loop"
        driver.load_driver()
        eventually("everything is back", shows(node, driver, 0, 1, 2, 3))
        assert node.log.count("driver is not loaded") == 1


def test_mig_switched_on_at_run_time(node: RunningAgent, driver: FakeNvml) -> None:
    driver.set_mig(0, True)
    name = "joulecut_gpu_utilization_ratio"
    eventually("no utilisation", lambda: driver.uuids[0] not in series(node, name))
    eventually("all four", shows(node, driver, 0, 1, 2, 3))
    eventually("it is said", lambda: node.describe().gpus[0].reason == "MIG is on")
    assert not node.describe().gpus[0].controllable
    driver.set_mig(0, False)
    node.regains_control()


def test_fast_samples_come_while_they_are_read_and_cost_nothing_else(
    node: RunningAgent, driver: FakeNvml
) -> None:
    driver.set_load(1, 1.0)
    driver.set_traffic(1, nvlink_tx=3e9, nvlink_rx=1e9, pcie_tx=5e8)
    clients = len(driver.clients())
    request = pb.ReadSamplesRequest(uuids=[driver.uuids[1]])
    call = node.stub.ReadSamples(request, timeout=PATIENCE_S)
    power: list[pb.Sample] = []
    links: list[pb.Sample] = []
    for answer in call:
        assert answer.uuid == driver.uuids[1]
        power += answer.power
        links += answer.nvlink_bytes_per_s
        if len(power) > 200 and len(links) > 5:
            break
    call.cancel()
    times_s = [sample.time_s for sample in power]
    assert times_s == sorted(set(times_s))
    steps_s = [later - now for now, later in pairwise(times_s)]
    assert statistics.median(steps_s) < 0.025, "50 each second"
    assert power[-1].value > 200.0
    assert links[-1].value == pytest.approx(4e9, rel=0.2)
    assert answer.utilization[-1].value == 1.0
    assert answer.clock_sm_mhz[-1].value == 1410
    assert answer.pcie_bytes_per_s[-1].value == pytest.approx(5e8, rel=0.2)
    eventually("the second process is gone", lambda: len(driver.clients()) == clients)
    since_s = power[-1].time_s
    again = pb.ReadSamplesRequest(uuids=[driver.uuids[1]], since_s=since_s)
    later = next(node.stub.ReadSamples(again, timeout=PATIENCE_S))
    assert later.power[0].time_s > since_s, "it goes on from where it stopped"
    for wrong in (
        pb.ReadSamplesRequest(uuids=["GPU-x"]),
        pb.ReadSamplesRequest(since_s=-1.0),
    ):
        with pytest.raises(grpc.RpcError, match=r"no GPU|since_s") as refused:
            next(node.stub.ReadSamples(wrong, timeout=PATIENCE_S))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


class TestJobEnergy:
    JOB = "joulecut_job_energy_joules_total"
    IDLE = "joulecut_gpu_idle_energy_joules_total"

    @pytest.mark.first
    def test_jobs_and_idle_add_up_to_the_boards_over_a_reload_and_a_kill(
        self, node: RunningAgent, driver: FakeNvml
    ) -> None:
        uuid = driver.uuids[0]
        before_j, began_j = self._both(node, driver)
        driver.set_load(0, 1.0)
        with closing(Reporter("red", uuid, 0, str(node.home / "jobs.sock"))) as reporter:
            reporter.iteration(1, 0.01)
            eventually("its first joules", lambda: self._jobs(node).get("red", 0.0) > 100.0)
            self._pass(node, driver, 300.0)
            held_j = self._jobs(node)["red"]
            assert held_j > 100_000.0
            eventually("kept", lambda: self._kept(node).get("red", 0.0) >= held_j)
            node.kill(signal.SIGKILL)
            eventually("no process has the driver open", lambda: driver.clients() == ())
            driver.advance(20.0)
            node.start()
            eventually("it reports again", lambda: reporter.iteration(2, 0.01))
            assert self._jobs(node)["red"] > held_j + 5_000.0, "the gap is the job's too"
            used_j, told_j = self._both(node, driver)
            assert told_j - began_j == pytest.approx(used_j - before_j, rel=0.005)
            driver.reload_driver()
            reloading_j = (time.monotonic() - self._read_s) * POWER_W_MAX  # told by nobody
            eventually("read again", shows(node, driver, 0, 1, 2, 3))
            self._pass(node, driver, 300.0)
            assert self._jobs(node)["red"] > 1.9 * held_j
            began_j, (used_j, told_j) = told_j, self._both(node, driver)
            slack_j = 0.005 * used_j + reloading_j
            assert told_j - began_j == pytest.approx(used_j, abs=slack_j)

    def _both(self, node: RunningAgent, driver: FakeNvml) -> tuple[float, float]:
        """What the boards have used and what is told of it, read while little was used."""

        def close() -> tuple[float, float] | None:
            least_j = sum(driver.energies_j())
            keeps_ticking(node, but=-1)
            self._read_s = time.monotonic()
            told_j, most_j = self._total(node), sum(driver.energies_j())
            return (most_j, told_j) if most_j - least_j < CLOSE_J else None

        return eventually("two readings at about the same time", close)

    def _pass(self, node: RunningAgent, driver: FakeNvml, seconds: float) -> None:
        """In steps, because a board that draws more than 10 kW is not believed."""
        for _ in range(int(seconds / 20.0)):
            driver.advance(20.0)
            keeps_ticking(node, but=-1)

    def _kept(self, node: RunningAgent) -> dict[str, float]:
        raw = (node.state_dir / "energy.json").read_bytes().partition(b" ")[2]
        return json.loads(raw)[2]["measured_j"]

    def _jobs(self, node: RunningAgent) -> dict[str, float]:
        return series(node, self.JOB, "workload")

    def _total(self, node: RunningAgent) -> float:
        return sum(self._jobs(node).values()) + sum(series(node, self.IDLE).values())
