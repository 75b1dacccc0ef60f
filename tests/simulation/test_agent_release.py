"""Release windows: no process of ours holds the driver while somebody replaces it."""

import itertools
import signal
import subprocess
import time
from collections.abc import Iterator

import commands
import grpc
import pytest
from driven_agent import agent_on, fake_driver
from running_agent import PATIENCE_S, RunningAgent, accepted, eventually

from fixture import FakeNvml
from joulecut_wire.v1 import agent_pb2 as pb

GENERATIONS = itertools.count(1)
WAITS = "started inside a release window: nothing is opened"


@pytest.fixture(scope="module")
def driver() -> Iterator[FakeNvml]:
    with fake_driver(2) as fake:
        yield fake


@pytest.fixture(scope="module")
def node(driver: FakeNvml) -> Iterator[RunningAgent]:
    """Each test ends outside a window."""
    with agent_on(driver) as agent:
        yield agent.start()


@pytest.fixture(scope="module")
def simulated() -> Iterator[RunningAgent]:
    with RunningAgent(cards=2) as agent:
        yield agent.start()


def _ask(node: RunningAgent, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.run(*words, env=node.env)


def _release(node: RunningAgent, duration_s: float = 600.0) -> float:
    request = pb.ReleaseRequest(duration_s=duration_s)
    return float(node.stub.Release(request, timeout=PATIENCE_S).until_s)


def _resume(node: RunningAgent) -> None:
    node.stub.Resume(pb.ResumeRequest(), timeout=PATIENCE_S)


def _lock(driver: FakeNvml, node: RunningAgent) -> bool:
    return accepted(node.order(*driver.uuids, clock_mhz=1005, generation=next(GENERATIONS)))


def _governs(driver: FakeNvml, node: RunningAgent) -> None:
    """Both GPUs are read and take commands again."""
    eventually("read again", lambda: len(node.watch().gpus) == 2)
    node.regains_control()
    assert _lock(driver, node)


def test_inside_a_window_no_process_holds_the_driver(driver: FakeNvml, node: RunningAgent) -> None:
    assert _lock(driver, node)
    samples = node.stub.ReadSamples(pb.ReadSamplesRequest(), timeout=PATIENCE_S)
    next(samples)
    assert len(driver.clients()) >= 2, "a reader and a writer"
    done = _ask(node, "release", node.address, "--for", "10m", "--reason", "upgrade")
    assert (done.returncode, done.stderr) == (0, "")
    assert driver.clients() == ()
    assert driver.locks() == (None, None)
    calls = driver.calls_total()
    tick, about = node.watch(), node.describe()
    assert tick.gpus == ()
    assert "released for" in tick.stopped
    assert "released for" in about.stopped
    assert not any(gpu.controllable for gpu in about.gpus)
    assert not _lock(driver, node)
    text = node.metrics()
    for line in ("agent_released 1.0", "collect_success 0.0", "control_stopped 1.0"):
        assert f"joulecut_{line}" in text
    assert "joulecut_gpu_energy_joules_total{" not in text
    assert driver.calls_total() == calls, "nobody asked the driver anything"
    driver.reload_driver()
    done = _ask(node, "resume", node.address)
    assert (done.returncode, done.stderr) == (0, "")
    _governs(driver, node)
    assert "(upgrade)" in node.log
    samples.cancel()


def test_a_keeper_that_dies_in_a_window_does_not_end_it(
    driver: FakeNvml, node: RunningAgent
) -> None:
    _release(node)
    calls, ends = driver.calls_total(), node.log.count("ended with signal 9")
    node.kill_keeper()
    eventually("its end is seen", lambda: node.log.count("ended with signal 9") > ends)
    time.sleep(1.5)  # more than a turn of the agent's loop: it must stay so
    assert driver.calls_total() == calls, "the next keeper would open the driver: it waits"
    assert "joulecut_keeper_up" not in node.metrics(), "none is wanted now"
    assert not _lock(driver, node)
    assert "released for" in node.describe().stopped
    _release(node, 900.0)
    assert driver.calls_total() == calls, "a longer window needs no keeper either"
    _resume(node)
    _governs(driver, node)


def test_an_agent_that_starts_inside_a_window_opens_no_device() -> None:
    with fake_driver(2) as driver, agent_on(driver) as node:
        node.start()
        for how in (signal.SIGTERM, signal.SIGKILL):
            _governs(driver, node)
            _release(node)
            calls = driver.calls_total()
            assert node.kill(how) == (0 if how == signal.SIGTERM else -how)
            restored = node.restore().stdout
            assert restored == "nothing to restore\n", "as systemd does after each end"
            driver.unload_driver()
            node.start()
            assert driver.calls_total() == calls, "nobody asked the driver anything"
            tick, about = node.watch(), node.describe()
            assert tick.gpus == ()
            assert "released for" in tick.stopped
            assert [gpu.uuid for gpu in about.gpus] == list(driver.uuids)
            assert not any(gpu.controllable for gpu in about.gpus)
            assert not _lock(driver, node)
            assert "joulecut_agent_released 1.0" in node.metrics()
            assert node.metrics("/healthz") == "ok\n"
            assert node.metrics("/readyz").startswith("ok\nreleased for ")
            time.sleep(1.5)  # more than a turn of the agent's loop: it must stay so
            assert driver.calls_total() == calls
            driver.load_driver()
            if how == signal.SIGTERM:
                _resume(node)
            else:
                _release(node, 1.0)  # and it ends by itself
            _governs(driver, node)
            assert not (node.state_dir / "release.json").exists()


def test_a_lock_that_is_left_comes_before_a_window(driver: FakeNvml, node: RunningAgent) -> None:
    """No window begins with a lock; a file that says so all the same is not obeyed."""
    _release(node)
    kept = (node.state_dir / "release.json").read_bytes()
    _resume(node)
    _governs(driver, node)
    driver.hang("nvmlDeviceResetGpuLockedClocks", count=-1)  # the child keeper cannot give back
    node.kill()
    node.kill_keeper()
    (node.state_dir / "release.json").write_bytes(kept)
    driver.clear_errors()
    node.start()
    assert driver.locks() == (None, None)
    assert len(node.watch().gpus) == 2


def test_an_agent_without_a_keeper_lets_go_too() -> None:
    with fake_driver(2) as driver, agent_on(driver, keeper="none") as node:
        node.start()
        assert driver.clients()
        _release(node)
        assert driver.clients() == ()
        _resume(node)
        eventually("read again", lambda: len(node.watch().gpus) == 2)


def test_a_window_ends_by_itself(simulated: RunningAgent) -> None:
    node, began_s = simulated, time.monotonic()
    left_s = _release(node, 1.0)
    shown = node.watch().gpus
    if time.monotonic() - began_s < 1.0:  # on a machine that is not overrun
        assert 0.0 < left_s <= 1.0
        assert shown == ()
    eventually("over", lambda: len(node.watch().gpus) == 2)
    eventually("orders again", lambda: node.watch().stopped == "")
    assert accepted(node.apply({0: 1005}))
    assert "joulecut_agent_released 0.0" in node.metrics()


def test_a_file_on_the_node_stops_all_control(simulated: RunningAgent) -> None:
    node = simulated
    assert accepted(node.apply({0: 1005}, generation=2))
    (node.state_dir / "stop").touch()
    eventually("given back", lambda: not node.locked())
    eventually("said", lambda: "stops all control" in node.watch().stopped)
    assert "stops all control" in node.apply({0: 1005}, generation=3)[0].reason
    assert len(node.watch().gpus) == 2, "measuring goes on"
    assert "joulecut_control_stopped 1.0" in node.metrics()
    (node.state_dir / "stop").unlink()
    node.regains_control()
    assert accepted(node.apply({0: 1005}, generation=4))


def test_a_release_that_makes_no_sense_is_one_line(simulated: RunningAgent) -> None:
    """The last one on its node."""
    node, address = simulated, simulated.address
    for words, sentence in (
        ((address,), "--for"),
        ((address, "--for", "2h"), "up to 3600 s"),
        ((address, "--for", "-1"), "--for"),
        ((address, "--for", "nan"), "up to 3600 s"),
        (("node:x", "--for", "1m"), "is not the address of an agent"),
        (("node:" + "9" * 5000, "--for", "1m"), "is not the address of an agent"),
        (("192.0.2.1", "--for", "1m"), "without TLS"),
    ):
        done = _ask(node, "release", *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert sentence in done.stderr
    for duration_s in (0.0, -1.0, 3601.0, float("nan"), float("inf")):
        with pytest.raises(grpc.RpcError) as caught:
            _release(node, duration_s)
        assert caught.value.code().name == "INVALID_ARGUMENT"
    assert node.watch().stopped == ""
    assert node.kill(15) == 0
    done = _ask(node, "release", address, "--for", "1m")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr


# -- a keeper of its own ---------------------------------------------------------------------------


def _again(node: RunningAgent) -> subprocess.Popen[str]:
    """The next keeper, as a supervisor starts it after a kill; it has looked for a window."""
    node.keepers[-1].kill()
    node.keepers[-1].wait(timeout=PATIENCE_S)
    before = node.log.count(WAITS)
    node.keepers.append(node._spawn("keeper"))
    eventually("the next one waits", lambda: node.log.count(WAITS) == before + 1)
    return node.keepers[-1]


def test_a_keeper_of_its_own_that_starts_inside_a_window_opens_no_device() -> None:
    with fake_driver(2) as driver, agent_on(driver, keeper="state/keeper.sock") as node:
        node.start_keeper()
        node.start()
        node.regains_control()
        assert _lock(driver, node)
        _release(node)
        calls = driver.calls_total()
        keeper = _again(node)
        driver.unload_driver()
        time.sleep(1.5)  # more than a turn of either: it must stay so
        assert (driver.clients(), driver.calls_total()) == ((), calls)
        assert keeper.poll() is None
        assert not _lock(driver, node)
        _release(node, 900.0)
        driver.load_driver()
        assert driver.clients() == (), "a longer one needs no keeper either"
        _resume(node)
        _governs(driver, node)
        for ended_by in ("itself", "hand"):
            _release(node, 540.0)
            _again(node)
            began_s = time.monotonic()
            if ended_by == "itself":
                _release(node, 2.0)
            else:
                _resume(node)
            node.regains_control()
            assert ended_by == "hand" or time.monotonic() - began_s >= 2.0, "not before"
            assert _lock(driver, node)
