"""Somebody else sets a GPU: the agent sees it, says whose doing it is, and keeps off."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from driven_agent import agent_on, fake_driver
from running_agent import RunningAgent, accepted, eventually

from fixture import FakeNvml

AGAIN_S = 2.5  # a little longer than the agent waits for the effect of an order
ON = "answer = code(n.nvmlDeviceSetPersistenceMode, n.nvmlDeviceGetHandleByIndex({}), 1)"


@dataclass(frozen=True)
class Case:
    """An order for a GPU, what then happens to the GPU, and the cause that the agent names."""

    ours_mhz: int
    befall: Callable[[FakeNvml, int], object]
    cause: str
    backs_off: bool
    lock: tuple[int, int] | None = None  # that is left
    limit_w: float = 700.0  # that is left
    ours_w: float | None = None
    held: bool = False  # whether the lease goes on


CASES = {
    "a lock below ours": Case(
        1200, lambda fake, gpu: fake.foreign_lock(gpu, 345, 900), "external_writer", True,
        lock=(345, 900),
    ),
    "a lock above ours": Case(
        900, lambda fake, gpu: fake.foreign_lock(gpu, 345, 1200), "external_writer", True,
        lock=(345, 1200),
    ),
    "a reset": Case(900, lambda fake, gpu: fake.foreign_reset(gpu), "reset", False),
    "a lower limit": Case(
        900, lambda fake, gpu: fake.foreign_limit(gpu, 250.0), "external_writer", True,
        limit_w=250.0, ours_w=400.0,
    ),
    "a higher limit": Case(
        900, lambda fake, gpu: fake.foreign_limit(gpu, 650.0), "external_writer", True,
        limit_w=650.0, ours_w=400.0,
    ),
    "a limit enforced from outside": Case(
        0, lambda fake, gpu: fake.set_out_of_band_limit(gpu, 400.0), "out_of_band_limit", False,
        limit_w=500.0, ours_w=500.0, held=True,
    ),
    "lost persistence": Case(
        900, lambda fake, gpu: fake.lose_persistence(gpu), "persistence_lost", False
    ),
}  # fmt: skip
RESET, OUTSIDE = list(CASES).index("a reset"), list(CASES).index("a limit enforced from outside")
FREE, CEILING, BRAKE, MIG, STUCK = range(len(CASES), len(CASES) + 5)  # GPUs of the other tests


@pytest.fixture(scope="module")
def driver() -> Iterator[FakeNvml]:
    load = dict.fromkeys(range(STUCK + 1), 0.6)
    with fake_driver(STUCK + 1, model="h100", load=load) as fake:
        yield fake


@pytest.fixture(scope="module")
def node(driver: FakeNvml) -> Iterator[RunningAgent]:
    """Each test has GPUs of its own on it, and leaves none under a lease."""
    with agent_on(driver) as agent:
        yield agent.start()


def _set(node: RunningAgent, uuid: str, mhz: int, generation: int) -> bool:
    return accepted(node.order(uuid, clock_mhz=mhz, generation=generation))


def _settled(node: RunningAgent, gpu: int = 0) -> None:
    """Past the time in which a change may still be under way."""

    def long_ago() -> bool:
        lease = node.gpu(gpu).lease
        return lease is not None and lease.expires_in_s < 58.0

    eventually("in force for long enough", long_ago)


def _judged(node: RunningAgent, gpu: int, cause: str) -> None:
    eventually(f"drift {cause}", lambda: node.gpu(gpu).drift == cause)
    series = f'joulecut_control_drift_total{{cause="{cause}",uuid="{node.gpu(gpu).uuid}"}} 1.0'
    eventually("counted", lambda: series in node.metrics())


def test_what_befalls_a_gpu_is_judged_by_cause_and_nobody_is_fought(
    driver: FakeNvml, node: RunningAgent
) -> None:
    """Each case on a GPU of its own; what others have set stays whatever we do then."""
    uuids, cases = driver.uuids, list(CASES.values())
    for gpu in range(FREE):
        assert driver.ask(ON.format(gpu)) == 0
    sequence = node.watch().sequence
    eventually("the mode read and judged", lambda: node.watch().sequence > sequence + 8)
    for gpu, case in enumerate(cases):
        order = node.order(uuids[gpu], clock_mhz=case.ours_mhz, limit_w=case.ours_w)
        assert accepted(order), order
    for gpu, case in enumerate(cases):
        _settled(node, gpu)
        if case.ours_mhz:
            eventually("in force", lambda gpu=gpu, case=case: (
                node.gpu(gpu).clock_sm_mhz == case.ours_mhz
            ))  # fmt: skip
    ours = len(driver.writes())
    for gpu, case in enumerate(cases):
        case.befall(driver, gpu)
    for gpu, (name, case) in enumerate(CASES.items()):
        _judged(node, gpu, case.cause)
        shown = node.gpu(gpu)
        assert (shown.lease is not None, shown.backoff_s > 0.0) == (case.held, case.backs_off), name
        assert shown.backoff_s <= 60.0, name
    clocks = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"
    touched = {
        w.gpu for w in driver.writes()[ours:] if w.function in clocks and "keeper" in w.command
    }
    assert not touched & {0, 1}, "a lock that is theirs is not written over"
    for gpu, (name, case) in enumerate(CASES.items()):
        again = node.order(uuids[gpu], clock_mhz=900, generation=2, limit_w=case.ours_w)
        assert again[0].accepted is not case.backs_off, name
        assert not case.backs_off or "backs off for" in again[0].reason, name
    assert _set(node, uuids[FREE], 1200, 1), "other GPUs go on"
    driver.foreign_reset(RESET)
    eventually("the second one counts", lambda: node.gpu(RESET).backoff_s > 0.0)
    assert not _set(node, uuids[RESET], 900, 3)
    driver.set_out_of_band_limit(OUTSIDE, 0.0)
    eventually("over", lambda: not node.gpu(OUTSIDE).drift)
    asked = f'joulecut_gpu_power_limit_watts{{kind="requested",uuid="{uuids[OUTSIDE]}"}} 500.0'
    eventually("told", lambda: asked in node.metrics())
    node.clear()
    assert node.restore().stdout == "nothing to restore\n"
    for gpu, (name, case) in enumerate(CASES.items()):
        limit_w = 700.0 if case.held else case.limit_w
        assert (driver.locks()[gpu], driver.limits_w()[gpu]) == (case.lock, limit_w), name


def test_our_lock_that_shows_when_a_lower_ceiling_lifts_is_reset(
    driver: FakeNvml, node: RunningAgent
) -> None:
    """A ceiling that comes late looks like another writer's lock, and leaves ours beneath it."""
    assert _set(node, driver.uuids[CEILING], 1200, 1)
    _settled(node, CEILING)
    driver.set_clock_ceiling(CEILING, 900)
    _judged(node, CEILING, "external_writer")
    assert node.gpu(CEILING).lease is None
    assert driver.locks()[CEILING] is not None
    driver.set_clock_ceiling(CEILING, 0)
    eventually("given back", lambda: driver.locks()[CEILING] is None)
    eventually("free", lambda: node.gpu(CEILING).clock_sm_mhz == 1980)
    eventually("and said", lambda: "cause=lock_shows: done" in node.log)


def test_a_power_brake_is_no_drift_but_a_reason(driver: FakeNvml, node: RunningAgent) -> None:
    uuid = driver.uuids[BRAKE]
    assert _set(node, uuid, 1500, 1)
    driver.set_power_brake(BRAKE, True)
    eventually("the reason", lambda: node.gpu(BRAKE).slow_reason == "power_brake")
    _settled(node, BRAKE)
    assert not node.gpu(BRAKE).drift
    series = f'joulecut_gpu_slow_active{{reason="power_brake",uuid="{uuid}"}} 1.0'
    eventually("told", lambda: series in node.metrics())
    driver.set_power_brake(BRAKE, False)
    eventually("over", lambda: not node.gpu(BRAKE).slow_reason)
    assert accepted(node.clear(uuid))


def test_a_gpu_under_mig_is_restored_whatever_is_renewed(
    driver: FakeNvml, node: RunningAgent
) -> None:
    assert _set(node, driver.uuids[MIG], 1005, 1)
    driver.set_mig(MIG, True)

    def free() -> bool:
        node.renew()
        return driver.locks()[MIG] is None

    eventually("the clocks given back", free)
    eventually("and seen to be", lambda: node.gpu(MIG).lease is None)


def test_a_gpu_that_cannot_be_restored_is_reported(driver: FakeNvml, node: RunningAgent) -> None:
    uuid = driver.uuids[STUCK]
    series = f'joulecut_gpu_stuck_locked{{uuid="{uuid}"}} 1.0'
    assert _set(node, uuid, 1005, 1)
    driver.set_error("nvmlDeviceResetGpuLockedClocks", 999, gpu=STUCK)
    node.clear(uuid)
    assert driver.locks()[STUCK] is not None
    eventually("the series is exported", lambda: series in node.metrics())
    about = node.describe().gpus[STUCK]
    assert (about.controllable, about.reason.split(":")[0]) == (False, "stuck_locked")
    driver.clear_errors()
    eventually("given back", lambda: driver.locks()[STUCK] is None)
    eventually("the series ends", lambda: series not in node.metrics())
    eventually("it can be controlled", lambda: node.describe().gpus[STUCK].controllable)


def test_a_sites_own_lock_bars_control_and_a_reload_of_the_driver_ends_every_lease() -> None:
    load = {0: 0.6, 1: 0.6}
    with fake_driver(2, model="h100", load=load) as driver, agent_on(driver) as node:
        site, other = driver.uuids
        driver.set_site_lock(0, 1200)
        node.start()
        eventually("barred", lambda: not node.describe().gpus[0].controllable)
        about = node.describe().gpus
        assert "site_default" in about[0].reason
        assert about[1].controllable
        assert "site_default" in node.order(site, clock_mhz=900)[0].reason
        assert not driver.writes()
        assert node.gpu().slow_reason == "site_lock"
        node.config["site_default"] = {"clock_max_mhz": 1200}
        assert node.kill(15) == 0
        node.start()
        for _ in range(5):
            assert node.describe().gpus[0].controllable
        assert accepted(node.order(site, other, clock_mhz=900))
        driver.advance(20.0)  # counters that have run for a while, as any real ones have
        for gpu in range(2):
            eventually("energy counted", lambda gpu=gpu: (node.gpu(gpu).energy_j or 0.0) > 1000.0)
            _settled(node, gpu)
        driver.reload_driver()
        for gpu in range(2):
            _judged(node, gpu, "driver_reload")
            assert node.gpu(gpu).lease is None
        eventually("said", lambda: "cause=driver_reload" in node.log)
        eventually("control again", lambda: _set(node, site, 900, 2))
        assert driver.locks()[0] == (345, 900)


def test_a_health_check_sees_who_slows_a_gpu_and_latency_is_learnt_from_commands() -> None:
    with RunningAgent(cards=1, simulated={"set_latency_s": 0.3}, sample_interval_s=1.0) as node:
        node.gpus.put(0, load_ratio=0.5)
        node.start()
        uuid = node.gpus.uuid(0)
        assert node.describe().gpus[0].set_latency_p95_s == 0.0
        assert accepted(node.apply({0: 1005}))
        eventually("in metrics", lambda: "joulecut_gpu_intent_info{" in node.metrics())
        [line] = [
            m for m in node.metrics().splitlines() if m.startswith("joulecut_gpu_intent_info")
        ]
        assert 'workload="demo"' in line
        assert f'joulecut_gpu_intent_slowdown_max_ratio{{uuid="{uuid}"}} 0.403' in node.metrics()
        generations, asked_s = itertools.count(2), float("-inf")

        def measured() -> float:
            """Nothing is learnt from an order whose effect was looked for late: another follows."""
            nonlocal asked_s
            if time.monotonic() - asked_s > AGAIN_S:
                generation, asked_s = next(generations), time.monotonic()
                clock_mhz = 1005 if generation % 2 else 810
                assert accepted(node.apply({0: clock_mhz}, generation=generation))
            return node.describe().gpus[0].set_latency_p95_s

        assert eventually("measured", measured) >= 0.3
        assert "joulecut_gpu_set_latency_p95_seconds{" in node.metrics()
        assert accepted(node.clear())
        eventually("nothing any more", lambda: "joulecut_gpu_intent_info{" not in node.metrics())
