"""Release windows: no process of ours holds the driver while somebody replaces it."""

import signal
import subprocess
import time
from collections.abc import Iterator

import commands
import grpc
import pytest
from driven_agent import agent_on, fake_driver, started
from running_agent import PATIENCE_S, RunningAgent, eventually

from fixture import FakeNvml
from joulecut_agent.main import main
from joulecut_wire.v1 import agent_pb2 as pb


@pytest.fixture
def driver() -> Iterator[FakeNvml]:
    with fake_driver(2) as fake:
        yield fake


node = started


@pytest.fixture
def simulated() -> Iterator[RunningAgent]:
    with RunningAgent(cards=2) as agent:
        yield agent.start()


def _ask(node: RunningAgent, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.run(*words, env=node.env)


def _on_node(node: RunningAgent, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the agent, which finds the node by its configuration."""
    config = str(node.home / "agent.yaml")
    return commands.run(words[0], "--config", config, *words[1:], env=node.env, main=main)


def _lock(driver: FakeNvml, node: RunningAgent, generation: int) -> bool:
    settings = [pb.Setting(uuid=uuid, clock_max_mhz=1005) for uuid in driver.uuids]
    request = pb.ApplyRequest(
        epoch=1, job="demo", generation=generation, ttl_s=60.0, settings=settings
    )
    results = node.stub.Apply(request, timeout=PATIENCE_S).results
    return all(result.accepted for result in results)


def test_inside_a_window_no_process_holds_the_driver(driver: FakeNvml, node: RunningAgent) -> None:
    assert _lock(driver, node, 1)
    assert len(driver.clients()) >= 2, "a reader and a writer"
    done = _ask(node, "release", node.address, "--for", "10m", "--reason", "upgrade")
    assert (done.returncode, done.stderr) == (0, "")
    assert driver.clients() == ()
    assert driver.locks() == (None, None)
    calls = driver.calls_total()
    tick = node.watch()
    assert tick.gpus == ()
    assert "released for" in tick.stopped
    about = node.describe()
    assert "released for" in about.stopped
    assert not any(gpu.controllable for gpu in about.gpus)
    assert not _lock(driver, node, 2)
    text = node.metrics()
    for line in ("agent_released 1.0", "collect_success 0.0", "control_stopped 1.0"):
        assert f"joulecut_{line}" in text
    assert "joulecut_gpu_energy_joules_total{" not in text
    assert driver.calls_total() == calls, "nobody asked the driver anything"
    driver.reload_driver()
    done = _ask(node, "resume", node.address)
    assert (done.returncode, done.stderr) == (0, "")
    eventually("read again", lambda: len(node.watch().gpus) == 2)
    eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
    assert _lock(driver, node, 3)
    assert "(upgrade)" in node.log


def test_an_order_in_a_window_opens_no_device(driver: FakeNvml, node: RunningAgent) -> None:
    """Of a GPU without clocks the keeper would have to ask again."""
    driver.set_error("nvmlDeviceGetSupportedMemoryClocks", 3, gpu=1)  # not supported
    node.kill_keeper()  # one that knows of no clocks yet
    eventually("its end is seen", lambda: node.log.count("another one is started") == 1)
    eventually("a new keeper", lambda: "joulecut_keeper_up 1.0" in node.metrics())
    eventually("why not all", lambda: node.describe().gpus[1].reason)
    node.stub.Release(pb.ReleaseRequest(duration_s=60.0), timeout=PATIENCE_S)
    assert driver.clients() == ()
    setting = pb.Setting(uuid=driver.uuids[1], clock_max_mhz=1005)
    request = pb.ApplyRequest(epoch=1, job="demo", generation=9, ttl_s=60.0, settings=[setting])
    (result,) = node.stub.Apply(request, timeout=PATIENCE_S).results
    assert result.reason.startswith("released for ")
    assert driver.clients() == ()


def test_a_window_ends_by_itself(simulated: RunningAgent) -> None:
    node = simulated
    began_s = time.monotonic()
    left_s = node.stub.Release(pb.ReleaseRequest(duration_s=1.0), timeout=PATIENCE_S).until_s
    shown = node.watch().gpus
    if time.monotonic() - began_s < 1.0:  # on a machine that is not overrun
        assert 0.0 < left_s <= 1.0
        assert shown == ()
    eventually("over", lambda: len(node.watch().gpus) == 2)
    eventually("orders again", lambda: node.watch().stopped == "")
    assert node.apply({0: 1005})[0].accepted
    assert "joulecut_agent_released 0.0" in node.metrics()


def test_a_keeper_that_dies_in_a_window_does_not_end_it(
    driver: FakeNvml, node: RunningAgent
) -> None:
    node.stub.Release(pb.ReleaseRequest(duration_s=600.0), timeout=PATIENCE_S)
    calls = driver.calls_total()
    node.kill_keeper()
    eventually("its end is seen", lambda: node.log.count("ended with signal 9") == 1)
    time.sleep(1.5)  # more than a turn of the agent's loop: it must stay so
    assert driver.calls_total() == calls, "the next keeper would open the driver: it waits"
    assert "joulecut_keeper_up" not in node.metrics(), "none is wanted now"
    assert not _lock(driver, node, 1)
    assert "released for" in node.describe().stopped
    node.stub.Release(pb.ReleaseRequest(duration_s=900.0), timeout=PATIENCE_S)
    assert driver.calls_total() == calls, "a longer window needs no keeper either"
    node.stub.Resume(pb.ResumeRequest(), timeout=PATIENCE_S)
    eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
    assert _lock(driver, node, 2)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_an_agent_that_starts_inside_a_window_opens_no_device(
    driver: FakeNvml, node: RunningAgent, how: signal.Signals
) -> None:
    assert _lock(driver, node, 1)
    node.stub.Release(pb.ReleaseRequest(duration_s=600.0), timeout=PATIENCE_S)
    calls = driver.calls_total()
    assert node.kill(how) == (0 if how == signal.SIGTERM else -how)
    assert node.restore().stdout == "nothing to restore\n", "as systemd does after each end"
    driver.unload_driver()
    node.start()
    assert driver.calls_total() == calls, "nobody asked the driver anything"
    tick = node.watch()
    assert tick.gpus == ()
    assert "released for" in tick.stopped
    about = node.describe()
    assert [gpu.uuid for gpu in about.gpus] == list(driver.uuids)
    assert not any(gpu.controllable for gpu in about.gpus)
    assert not _lock(driver, node, 2)
    assert "joulecut_agent_released 1.0" in node.metrics()
    assert node.metrics("/healthz") == "ok\n"
    assert node.metrics("/readyz").startswith("ok\nreleased for ")
    time.sleep(1.5)  # more than a turn of the agent's loop: it must stay so
    assert driver.calls_total() == calls
    driver.load_driver()
    node.stub.Resume(pb.ResumeRequest(), timeout=PATIENCE_S)
    eventually("read again", lambda: len(node.watch().gpus) == 2)
    eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
    assert _lock(driver, node, 3)
    assert not (node.state_dir / "release.json").exists()


def test_a_window_that_an_agent_starts_in_ends_when_it_was_to_end(
    driver: FakeNvml, node: RunningAgent
) -> None:
    began_s = time.monotonic()
    node.stub.Release(pb.ReleaseRequest(duration_s=6.0), timeout=PATIENCE_S)
    node.kill()
    node.start()
    clients = driver.clients()
    if time.monotonic() - began_s < 6.0:  # on a machine that is not overrun
        assert clients == ()
    eventually("read again", lambda: len(node.watch().gpus) == 2)
    assert time.monotonic() - began_s >= 6.0, "not before"
    eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
    assert _lock(driver, node, 1)


def test_on_the_node_a_window_is_ended_that_no_keeper_knows_of(
    driver: FakeNvml, node: RunningAgent
) -> None:
    assert _on_node(node, "release", "--for", "10m").returncode == 0
    eventually("the agent follows", (node.state_dir / "release.json").exists)
    node.kill()
    node.start()
    assert driver.clients() == ()
    done = _on_node(node, "resume")
    assert (done.returncode, done.stdout) == (0, "resumed\n")
    eventually("read again", lambda: len(node.watch().gpus) == 2)
    eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))


def test_a_lock_that_is_left_comes_before_a_window(driver: FakeNvml, node: RunningAgent) -> None:
    """No window begins with a lock; a file that says so all the same is not obeyed."""
    node.stub.Release(pb.ReleaseRequest(duration_s=600.0), timeout=PATIENCE_S)
    kept = (node.state_dir / "release.json").read_bytes()
    node.stub.Resume(pb.ResumeRequest(), timeout=PATIENCE_S)
    eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
    assert _lock(driver, node, 1)
    driver.hang("nvmlDeviceResetGpuLockedClocks", count=-1)  # the child keeper cannot give back
    node.kill()
    node.kill_keeper()
    (node.state_dir / "release.json").write_bytes(kept)
    driver.clear_errors()
    node.start()
    assert driver.locks() == (None, None)
    assert len(node.watch().gpus) == 2


def test_on_the_node_no_network_is_needed(driver: FakeNvml, node: RunningAgent) -> None:
    assert _lock(driver, node, 1)
    done = _on_node(node, "release", "--for", "10m")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("released until ")
    assert driver.clients() == ()
    assert driver.locks() == (None, None)
    done = _on_node(node, "resume")
    assert (done.returncode, done.stdout) == (0, "resumed\n")
    eventually("read again", lambda: len(node.watch().gpus) == 2)
    assert _lock(driver, node, 2)


def test_an_agent_without_a_keeper_lets_go_too(driver: FakeNvml) -> None:
    with RunningAgent(env=driver.environment(), device="nvml", keeper="none") as node:
        node.start()
        assert driver.clients()
        node.stub.Release(pb.ReleaseRequest(duration_s=600.0), timeout=PATIENCE_S)
        assert driver.clients() == ()
        node.stub.Resume(pb.ResumeRequest(), timeout=PATIENCE_S)
        eventually("read again", lambda: len(node.watch().gpus) == 2)


def test_a_file_on_the_node_stops_all_control(simulated: RunningAgent) -> None:
    node = simulated
    assert node.apply({0: 1005})[0].accepted
    (node.state_dir / "stop").touch()
    eventually("given back", lambda: not node.locked())
    eventually("said", lambda: "stops all control" in node.watch().stopped)
    assert "stops all control" in node.apply({0: 1005}, generation=2)[0].reason
    assert len(node.watch().gpus) == 2, "measuring goes on"
    assert "joulecut_control_stopped 1.0" in node.metrics()
    (node.state_dir / "stop").unlink()
    eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
    assert node.apply({0: 1005}, generation=3)[0].accepted


def test_a_release_that_makes_no_sense_is_one_line(simulated: RunningAgent) -> None:
    node = simulated
    address = node.address
    for (asked, *words), sentence in (
        ((_ask, "release", address), "--for"),
        ((_ask, "release", address, "--for", "2h"), "up to 3600 s"),
        ((_ask, "release", address, "--for", "-1"), "--for"),
        ((_ask, "release", address, "--for", "nan"), "up to 3600 s"),
        ((_ask, "release", "node:x", "--for", "1m"), "is not the address of an agent"),
        ((_ask, "release", "node:" + "9" * 5000, "--for", "1m"), "is not the address of an agent"),
        ((_ask, "release", "192.0.2.1", "--for", "1m"), "without TLS"),
        ((_on_node, "release"), "--for"),
        ((_on_node, "release", "--for", "61m"), "up to 3600 s"),
        ((_on_node, "resume", "--for", "1m"), "--for"),
    ):
        done = asked(node, *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert sentence in done.stderr
    for duration_s in (0.0, -1.0, 3601.0, float("nan"), float("inf")):
        with pytest.raises(grpc.RpcError) as caught:
            node.stub.Release(pb.ReleaseRequest(duration_s=duration_s), timeout=PATIENCE_S)
        assert caught.value.code().name == "INVALID_ARGUMENT"
    assert node.watch().stopped == ""
    assert node.kill(15) == 0
    for asked, *words in (
        (_ask, "release", address, "--for", "1m"),
        (_on_node, "release", "--for", "1m"),
        (_on_node, "resume"),
    ):
        done = asked(node, *words)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr


def _with_its_own_keeper(node: RunningAgent) -> subprocess.Popen[str]:
    node.config["keeper"] = "state/keeper.sock"
    keeper = node.start_keeper()
    node.start()
    eventually("control", lambda: all(gpu.controllable for gpu in node.describe().gpus))
    return keeper


def _again(node: RunningAgent, keeper: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """The next keeper, as a supervisor starts it after a kill; it has looked for a window."""
    keeper.kill()
    keeper.wait(timeout=PATIENCE_S)
    before = node.log.count("started inside a release window: nothing is opened")
    following = node._spawn("keeper")
    node.keepers.append(following)
    said = "started inside a release window: nothing is opened"
    eventually("the next one waits", lambda: node.log.count(said) == before + 1)
    return following


def test_a_keeper_of_its_own_that_starts_inside_a_window_opens_no_device(
    driver: FakeNvml,
) -> None:
    with agent_on(driver) as node:
        keeper = _with_its_own_keeper(node)
        assert _lock(driver, node, 1)
        node.stub.Release(pb.ReleaseRequest(duration_s=600.0), timeout=PATIENCE_S)
        calls = driver.calls_total()
        keeper = _again(node, keeper)
        driver.unload_driver()
        time.sleep(1.5)  # more than a turn of either: it must stay so
        assert (driver.clients(), driver.calls_total()) == ((), calls)
        assert keeper.poll() is None
        assert not _lock(driver, node, 2)
        node.stub.Release(pb.ReleaseRequest(duration_s=900.0), timeout=PATIENCE_S)
        driver.load_driver()
        assert driver.clients() == (), "a longer one needs no keeper either"
        node.stub.Resume(pb.ResumeRequest(), timeout=PATIENCE_S)
        eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
        assert _lock(driver, node, 3)


def test_its_window_ends_by_itself_and_by_hand(driver: FakeNvml) -> None:
    with agent_on(driver) as node:
        keeper = _with_its_own_keeper(node)
        assert _on_node(node, "release", "--for", "9m").returncode == 0
        keeper = _again(node, keeper)
        began_s = time.monotonic()
        node.stub.Release(pb.ReleaseRequest(duration_s=2.0), timeout=PATIENCE_S)
        eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
        assert time.monotonic() - began_s >= 2.0, "not before"
        assert _lock(driver, node, 1)
        assert _on_node(node, "release", "--for", "9m").returncode == 0
        _again(node, keeper)
        done = _on_node(node, "resume")
        assert (done.returncode, done.stdout) == (0, "resumed\n")
        eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
        assert _lock(driver, node, 2)


def test_a_keeper_that_waits_for_the_end_of_a_window_can_be_asked_to_go(driver: FakeNvml) -> None:
    with agent_on(driver) as node:
        keeper = _with_its_own_keeper(node)
        node.stub.Release(pb.ReleaseRequest(duration_s=600.0), timeout=PATIENCE_S)
        keeper = _again(node, keeper)
        keeper.terminate()
        assert keeper.wait(timeout=PATIENCE_S) == 0
        assert driver.clients() == ()


def test_a_lock_that_a_killed_keeper_left_comes_before_a_window(driver: FakeNvml) -> None:
    with agent_on(driver) as node:
        keeper = _with_its_own_keeper(node)
        node.stub.Release(pb.ReleaseRequest(duration_s=600.0), timeout=PATIENCE_S)
        kept = (node.state_dir / "release.json").read_bytes()
        node.stub.Resume(pb.ResumeRequest(), timeout=PATIENCE_S)
        eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
        assert _lock(driver, node, 1)
        node.kill()
        keeper.kill()
        keeper.wait(timeout=PATIENCE_S)
        assert driver.locks() != (None, None)
        (node.state_dir / "release.json").write_bytes(kept)
        node.keepers.append(node._spawn("keeper"))
        eventually("given back", lambda: driver.locks() == (None, None))
