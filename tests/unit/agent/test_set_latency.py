"""The time from an order to the clock: measured where it can be seen, silent where not."""

from dataclasses import replace

from joulecut_agent.control.set_latency import SAMPLES_MAX, WAIT_S_MAX, SetLatency
from joulecut_agent.control.timed_schedule import SetLatencies
from joulecut_wire.messages import GpuSnapshot, NodeSnapshot


def _see(latency: SetLatency, clock_mhz: int, now_s: float, busy: float = 1.0) -> None:
    gpu = GpuSnapshot("GPU-0", clock_sm_mhz=clock_mhz, utilization_gpu_ratio=busy)
    latency.seen(NodeSnapshot(1, now_s, (gpu,)))


def test_from_the_order_to_the_first_reading_that_shows_it() -> None:
    latency = SetLatency()
    _see(latency, 1410, 9.9)
    assert latency.started({"GPU-0": 1005}, 10.0)
    _see(latency, 1410, 10.02)
    assert latency.p95_s("GPU-0") == 0.0
    _see(latency, 1005, 10.04)
    assert abs(latency.p95_s("GPU-0") - 0.04) < 1e-9
    _see(latency, 1005, 10.06)
    assert abs(latency.p95_s("GPU-0") - 0.04) < 1e-9, "one order is one sample"


def test_what_cannot_be_seen_is_not_measured() -> None:
    latency = SetLatency()
    assert not latency.started({"GPU-0": 1005}, 1.0), "never read"
    _see(latency, 210, 2.0, busy=0.0)
    assert not latency.started({"GPU-0": 1005}, 3.0), "idle"
    _see(latency, 1005, 4.0)
    assert not latency.started({"GPU-0": 1005}, 5.0), "there already"
    assert not latency.started({"GPU-0": 0}, 6.0), "a power limit alone"
    _see(latency, 1410, 7.0)
    assert latency.started({"GPU-0": 1005}, 8.0)
    _see(latency, 1005, 8.1 + WAIT_S_MAX)
    assert latency.p95_s("GPU-0") == 0.0, "too late to be that order's doing"
    assert latency.p95_s("GPU-elsewhere") == 0.0


def test_the_newest_samples_count_and_a_full_set_needs_few_more() -> None:
    latency, now_s = SetLatency(), 0.0
    for n in range(3 * SAMPLES_MAX):
        _see(latency, (1410, 1005)[n % 2], now_s)
        now_s += 1.0
        worth = latency.started({"GPU-0": (1005, 1410)[n % 2]}, now_s)
        assert worth == (n < SAMPLES_MAX)
        now_s += 0.15 if n < SAMPLES_MAX else 0.1
        _see(latency, (1005, 1410)[n % 2], now_s)
    assert abs(latency.p95_s("GPU-0") - 0.1) < 1e-6


def test_a_look_that_came_late_proves_nothing() -> None:
    latency = SetLatency()
    _see(latency, 1410, 9.9)
    assert latency.started({"GPU-0": 1005}, 10.0)
    snapshot = NodeSnapshot(1, 10.1, (GpuSnapshot("GPU-0", clock_sm_mhz=1410),))
    assert latency.seen(replace(snapshot, gpus=())), "still waited for"
    _see(latency, 1005, 11.0)
    assert latency.p95_s("GPU-0") == 0.0
    assert not latency.seen(replace(snapshot, gpus=()))


def test_spread_and_error_of_changes_that_were_wanted_at_a_time() -> None:
    latency, now_s = SetLatency(), 0.0
    assert latency.latencies("GPU-0") == SetLatencies()
    for n in range(40):
        _see(latency, (1410, 1005)[n % 2], now_s)
        now_s += 1.0
        latency.started({"GPU-0": (1005, 1410)[n % 2]}, now_s, wanted_s=now_s + 0.03)
        for step in range(1, 6):  # between 20 and 40 ms, read each 10 ms
            late_s = 0.01 * step
            _see(
                latency,
                (1005, 1410)[(n + (late_s < 0.02 + 0.02 * (n % 3) / 2)) % 2],
                now_s + late_s,
            )
        now_s += 1.0
    known = latency.latencies("GPU-0")
    assert 0.01 - 1e-6 <= known.p5_s <= 0.02 + 1e-6, "no change came before"
    assert 0.04 - 1e-6 <= known.p95_s <= 0.05 + 1e-6
    assert known.spread_s == known.p95_s - known.p5_s
    assert known.raise_ahead_s == known.p95_s
    assert 0.0 < latency.change_error_s("GPU-0") <= 0.02
    assert latency.change_error_s("GPU-elsewhere") == 0.0


def test_late_readings_of_a_busy_machine_make_no_spread() -> None:
    """Every change takes 30 ms; half of the readings are 150 ms apart."""
    latency, now_s = SetLatency(), 0.0
    for n in range(40):
        before_mhz, after_mhz = (1410, 1005) if n % 2 else (1005, 1410)
        _see(latency, before_mhz, now_s)
        now_s += 1.0
        latency.started({"GPU-0": after_mhz}, now_s)
        if n % 4 < 2:
            _see(latency, before_mhz, now_s + 0.02)
            _see(latency, after_mhz, now_s + 0.04)
        else:
            _see(latency, after_mhz, now_s + 0.15)
        if n == 20:
            few = latency.latencies("GPU-0")
    known = latency.latencies("GPU-0")
    assert known.spread_s <= 0.02 + 1e-9
    assert known.p95_s == few.p95_s
    assert 0.04 - 1e-9 <= known.p95_s <= 0.04 + 1e-9


def test_where_all_readings_are_late_the_sharpest_count() -> None:
    latency, now_s = SetLatency(), 0.0
    for n in range(40):
        before_mhz, after_mhz = (1410, 1005) if n % 2 else (1005, 1410)
        _see(latency, before_mhz, now_s)
        now_s += 1.0
        latency.started({"GPU-0": after_mhz}, now_s)
        _see(latency, after_mhz, now_s + 0.1 + 0.001 * n)
    assert 0.1 - 1e-9 <= latency.latencies("GPU-0").p95_s <= 0.108
