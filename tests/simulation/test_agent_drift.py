"""Somebody else sets a GPU: the agent sees it, says whose doing it is, and keeps off."""

import itertools
import json
import time
from collections.abc import Iterator

import pytest
from driven_agent import agent_on, fake_driver, started
from running_agent import PATIENCE_S, RunningAgent, eventually

from fixture import FakeNvml
from joulecut_sim.card import now_s
from joulecut_sim.physics import Work
from joulecut_wire import codec
from joulecut_wire.messages import Command, GpuSnapshot, Result, Setting

AGAIN_S = 2.5  # a little longer than the agent waits for the effect of an order


@pytest.fixture
def driver() -> Iterator[FakeNvml]:
    with fake_driver(2, model="h100", load={0: 0.6}) as fake:
        yield fake


node = started


@pytest.fixture
def simulated() -> Iterator[RunningAgent]:
    with RunningAgent(cards=2) as agent:
        agent.gpus.set_load(0, 0.5)
        yield agent.start()


def _apply(
    node: RunningAgent, uuid: str, clock_mhz: int, generation: int, limit_w: float | None = None
) -> Result:
    settings = (Setting(uuid, clock_mhz, power_limit_w=limit_w),)
    command = codec.encode_command(Command(1, "demo", generation, 60.0, settings, "test"))
    (result,) = codec.decode_results(node.stub.Apply(command, timeout=PATIENCE_S))
    return result


def _drift(node: RunningAgent, cause: str) -> GpuSnapshot:
    def seen() -> GpuSnapshot | None:
        gpus = node.watch().gpus
        return gpus[0] if gpus and gpus[0].drift == cause else None

    found = eventually(f"drift {cause}", seen)
    assert found is not None
    series = f'joulecut_control_drift_total{{cause="{cause}",uuid="{found.uuid}"}} 1.0'
    eventually("counted", lambda: series in node.metrics())
    return found


def test_a_foreign_lock_is_not_fought(driver: FakeNvml, node: RunningAgent) -> None:
    uuid = driver.uuids[0]
    assert _apply(node, uuid, 1200, 1).accepted
    eventually("the clock in force", lambda: node.gpu().clock_sm_mhz == 1200)
    eventually("seen in force for long enough", lambda: _settled(node))
    ours = len(driver.writes())
    driver.foreign_lock(0, 345, 900)
    gpu = _drift(node, "external_writer")
    assert gpu.lease is None
    assert 0.0 < gpu.backoff_s <= 60.0
    refused = _apply(node, uuid, 1200, 2)
    assert not refused.accepted
    assert "backs off for" in refused.reason
    assert driver.locks()[0] == (345, 900), "it is theirs"
    assert len(driver.writes()) == ours + 1, "nothing was written but by them"
    assert node.restore().stdout == "nothing to restore\n"
    assert driver.locks()[0] == (345, 900)
    assert _apply(node, driver.uuids[1], 1200, 2).accepted, "other GPUs go on"


def test_our_lock_that_shows_when_a_lower_ceiling_lifts_is_reset(
    driver: FakeNvml, node: RunningAgent
) -> None:
    """A ceiling that comes late looks like another writer's lock, and leaves ours beneath it."""
    assert _apply(node, driver.uuids[0], 1200, 1).accepted
    eventually("seen in force for long enough", lambda: _settled(node))
    driver.set_clock_ceiling(0, 900)
    assert _drift(node, "external_writer").lease is None
    assert driver.locks()[0] is not None
    driver.set_clock_ceiling(0, 0)
    eventually("given back", lambda: driver.locks()[0] is None)
    eventually("free", lambda: node.gpu().clock_sm_mhz == 1980)
    eventually("and said", lambda: "cause=lock_shows: done" in node.log)


def _settled(node: RunningAgent) -> bool:
    """Past the time in which a change may still be under way."""
    lease = node.gpu().lease
    return lease is not None and lease.expires_in_s < 58.0


def test_a_foreign_lock_above_ours_is_not_fought(driver: FakeNvml, node: RunningAgent) -> None:
    assert _apply(node, driver.uuids[0], 900, 1).accepted
    driver.foreign_lock(0, 345, 1200)
    gpu = _drift(node, "external_writer")
    assert gpu.backoff_s > 0.0
    assert driver.locks()[0] == (345, 1200)


def test_a_step_that_ends_with_a_reset_ends_the_lease_alone(
    driver: FakeNvml, node: RunningAgent
) -> None:
    uuid = driver.uuids[0]
    assert _apply(node, uuid, 900, 1).accepted
    driver.foreign_reset(0)
    gpu = _drift(node, "reset")
    assert (gpu.lease, gpu.backoff_s) == (None, 0.0)
    assert _apply(node, uuid, 900, 2).accepted, "the next step may be slowed again"
    driver.foreign_reset(0)
    eventually("the second one counts", lambda: node.gpu().backoff_s > 0.0)
    assert not _apply(node, uuid, 900, 3).accepted
    assert driver.locks()[0] is None


def test_a_limit_enforced_from_outside_is_reported_and_kept(
    driver: FakeNvml, node: RunningAgent
) -> None:
    assert _apply(node, driver.uuids[0], 0, 1, limit_w=500.0).accepted
    assert driver.limits_w()[0] == 500.0
    eventually("shown", lambda: node.gpu().lease is not None)
    lease = node.gpu().lease
    assert lease is not None
    assert (lease.clock_max_mhz, lease.power_limit_w) == (0, 500.0)
    driver.set_out_of_band_limit(0, 400.0)
    gpu = _drift(node, "out_of_band_limit")
    assert gpu.lease is not None
    assert gpu.backoff_s == 0.0
    driver.set_out_of_band_limit(0, 0.0)
    eventually("over", lambda: not node.gpu().drift)
    asked = f'joulecut_gpu_power_limit_watts{{kind="requested",uuid="{driver.uuids[0]}"}} 500.0'
    eventually("told", lambda: asked in node.metrics())


def test_a_limit_that_a_person_has_lowered_ends_the_lease_and_stays(
    driver: FakeNvml, node: RunningAgent
) -> None:
    uuid = driver.uuids[0]
    assert _apply(node, uuid, 900, 1, limit_w=400.0).accepted
    driver.foreign_limit(0, 250.0)
    gpu = _drift(node, "external_writer")
    assert gpu.lease is None
    assert gpu.backoff_s > 0.0
    assert driver.locks()[0] is None, "the clocks were ours"
    assert not _apply(node, uuid, 900, 2, limit_w=400.0).accepted
    node.clear(uuid)
    assert node.restore().stdout == "nothing to restore\n"
    assert driver.limits_w()[0] == 250.0


def test_a_foreign_limit_costs_the_limit_and_gives_the_clocks_back(
    driver: FakeNvml, node: RunningAgent
) -> None:
    assert _apply(node, driver.uuids[0], 900, 1, limit_w=400.0).accepted
    driver.foreign_limit(0, 650.0)
    gpu = _drift(node, "external_writer")
    assert gpu.lease is None
    assert driver.locks()[0] is None, "the clocks were ours"
    assert driver.limits_w()[0] == 650.0, "the limit is theirs"
    assert node.restore().stdout == "nothing to restore\n"
    assert driver.limits_w()[0] == 650.0


def test_lost_persistence_ends_the_lease_and_is_reported(
    driver: FakeNvml, node: RunningAgent
) -> None:
    uuid = driver.uuids[0]
    on = "answer = code(n.nvmlDeviceSetPersistenceMode, n.nvmlDeviceGetHandleByIndex(0), 1)"
    assert driver.ask(on) == 0
    sequence = node.watch().sequence
    eventually("the mode read and judged", lambda: node.watch().sequence > sequence + 8)
    assert _apply(node, uuid, 900, 1).accepted
    driver.lose_persistence(0)
    gpu = _drift(node, "persistence_lost")
    assert (gpu.lease, gpu.backoff_s) == (None, 0.0)
    assert _apply(node, uuid, 900, 2).accepted


def test_a_reload_of_the_driver_ends_the_lease(driver: FakeNvml, node: RunningAgent) -> None:
    uuid = driver.uuids[0]
    assert _apply(node, uuid, 900, 1).accepted
    driver.advance(20.0)  # a counter that has run for a while, as any real one has
    eventually("energy counted", lambda: (node.gpu().energy_j or 0.0) > 1000.0)
    eventually("looked at", lambda: _settled(node))
    driver.reload_driver()
    gpu = _drift(node, "driver_reload")
    assert gpu.lease is None
    again = eventually("control again", lambda: _apply(node, uuid, 900, 2).accepted)
    assert again
    assert driver.locks()[0] == (345, 900)


def test_a_power_brake_is_no_drift_but_a_reason(driver: FakeNvml, node: RunningAgent) -> None:
    assert _apply(node, driver.uuids[0], 1500, 1).accepted
    driver.set_power_brake(0, True)
    eventually("the reason", lambda: node.gpu().slow_reason == "power_brake")
    eventually("long enough for drift", lambda: _settled(node))
    gpu = node.gpu()
    assert (gpu.drift, gpu.lease is None) == ("", False)
    series = f'joulecut_gpu_slow_active{{reason="power_brake",uuid="{driver.uuids[0]}"}} 1.0'
    eventually("told", lambda: series in node.metrics())
    driver.set_power_brake(0, False)
    eventually("over", lambda: not node.gpu().slow_reason)


def test_a_sites_own_lock_bars_control_until_it_is_explained(driver: FakeNvml) -> None:
    driver.set_site_lock(0, 1200)
    with agent_on(driver) as node:
        node.start()
        eventually("barred", lambda: not node.describe().gpus[0].controllable)
        about = node.describe().gpus
        assert "site_default" in about[0].reason
        assert about[1].controllable
        refused = _apply(node, driver.uuids[0], 900, 1)
        assert not refused.accepted
        assert "site_default" in refused.reason
        assert not driver.writes()
        assert node.gpu().slow_reason == "site_lock"
        node.config["site_default"] = {"clock_max_mhz": 1200}
        assert node.kill(15) == 0
        node.start()
        for _ in range(5):
            assert node.describe().gpus[0].controllable
        assert _apply(node, driver.uuids[0], 900, 1).accepted


def test_a_driver_reload_ends_every_lease(simulated: RunningAgent) -> None:
    node = simulated
    assert node.apply({0: 1005, 1: 1005})[0].accepted
    # More than they can count again before the next look, however late that is.
    begin_s = now_s()
    node.gpus.deposit({n: Work(begin_s, begin_s + 1.0, 30_000.0, 1410) for n in range(2)})
    for n in range(2):
        eventually("energy counted", lambda n=n: (node.gpu(n).energy_j or 0.0) > 29_000.0)
    node.gpus.reload()
    gpu = _drift(node, "driver_reload")
    assert gpu.lease is None
    eventually("both", lambda: node.gpu(1).drift == "driver_reload")
    assert not node.locked()
    eventually("said", lambda: "cause=driver_reload" in node.log)
    assert node.apply({0: 1005}, generation=2)[0].accepted


def test_a_foreign_lock_on_a_simulated_gpu(simulated: RunningAgent) -> None:
    node = simulated
    assert node.apply({0: 1005})[0].accepted
    node.gpus.set_lock(0, 210, 1305)
    gpu = _drift(node, "external_writer")
    assert gpu.lease is None
    assert node.locked() == {0: 1305}
    assert not node.apply({0: 1005}, generation=2)[0].accepted
    assert node.kill(15) == 0
    assert node.locked() == {0: 1305}


def test_who_looks_for_sick_gpus_finds_the_intent(simulated: RunningAgent) -> None:
    node = simulated
    assert node.apply({0: 1005})[0].accepted
    path = node.state_dir / "intent.json"

    def told() -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = json.loads(path.read_text())["gpus"]
        return found

    eventually("the file", lambda: path.exists() and told())
    one = told()[node.gpus.uuid(0)]
    assert (one["job"], one["reason"], one["clock_max_mhz"]) == ("demo", "test", 1005)
    assert one["max_slowdown_ratio"] == round(1410 / 1005 - 1, 4)
    assert path.stat().st_mode & 0o777 == 0o644
    series = "joulecut_gpu_intent_info{"
    [line] = eventually(
        "in metrics", lambda: [m for m in node.metrics().splitlines() if m.startswith(series)]
    )
    assert 'workload="demo"' in line
    most = node.gpus.uuid(0)
    assert f'joulecut_gpu_intent_slowdown_max_ratio{{uuid="{most}"}} 0.403' in node.metrics()
    assert node.clear()[0].accepted
    eventually("nothing is meant any more", lambda: told() == {})
    assert node.kill(15) == 0
    assert not path.exists()


def test_the_time_until_a_clock_follows_is_learnt_from_orders() -> None:
    with RunningAgent(cards=1, simulated={"set_latency_s": 0.3}, sample_interval_s=1.0) as node:
        node.gpus.set_load(0, 0.5)
        node.start()
        assert node.describe().gpus[0].set_latency_p95_s == 0.0
        generations = itertools.count(1)
        asked_s = float("-inf")

        def measured() -> float:
            """Nothing is learnt from an order whose effect was looked for late: another follows."""
            nonlocal asked_s
            if time.monotonic() - asked_s > AGAIN_S:
                generation, asked_s = next(generations), time.monotonic()
                clock_mhz = 1005 if generation % 2 else 810
                assert node.apply({0: clock_mhz}, generation=generation)[0].accepted
            return node.describe().gpus[0].set_latency_p95_s

        seen_s = eventually("measured", measured)
        assert seen_s >= 0.3
        assert "joulecut_gpu_set_latency_p95_seconds{" in node.metrics()


def test_a_gpu_under_mig_is_restored_whatever_is_renewed(
    driver: FakeNvml, node: RunningAgent
) -> None:
    assert _apply(node, driver.uuids[0], 1005, 1).accepted
    driver.set_mig(0, True)

    def free() -> bool:
        node.renew()
        return driver.locks()[0] is None

    eventually("the clocks given back", free)
    eventually("and seen to be", lambda: node.gpu().lease is None)


def test_a_power_profile_is_reported_and_not_fought() -> None:
    load = {0: 0.6}  # below the board's power limit
    with fake_driver(1, model="b200", load=load) as driver, agent_on(driver) as node:
        node.start()
        clock_mhz = node.describe().gpus[0].clocks_mhz[-5]
        assert _apply(node, driver.uuids[0], clock_mhz, 1).accepted
        eventually("the clock", lambda: node.gpu().clock_sm_mhz == clock_mhz)
        driver.set_profiles(0, requested=(1,), enforced=(1,))
        eventually("it is slower", lambda: node.gpu().slow_reason == "power_profile")
        series = f'joulecut_gpu_power_profile_active{{profile="max_q",uuid="{driver.uuids[0]}"}} 1'
        eventually("told", lambda: series in node.metrics())
        sequence = node.watch().sequence
        eventually("fifteen pictures more", lambda: node.watch().sequence > sequence + 15)
        assert not node.gpu().drift
        lease = node.gpu().lease
        assert lease is not None
        assert lease.clock_max_mhz == clock_mhz


def test_a_gpu_that_cannot_be_restored_is_reported(driver: FakeNvml, node: RunningAgent) -> None:
    uuid = driver.uuids[0]
    series = f'joulecut_gpu_stuck_locked{{uuid="{uuid}"}} 1.0'
    assert _apply(node, uuid, 1005, 1).accepted
    driver.set_error("nvmlDeviceResetGpuLockedClocks", 999, gpu=0)
    node.clear(uuid)
    assert driver.locks()[0] is not None
    eventually("it is told", lambda: series in node.metrics())
    about = node.describe().gpus[0]
    assert (about.controllable, about.reason.split(":")[0]) == (False, "stuck_locked")
    driver.clear_errors()
    eventually("given back", lambda: driver.locks()[0] is None)
    eventually("it is told no more", lambda: series not in node.metrics())
    eventually("it can be controlled", lambda: node.describe().gpus[0].controllable)
