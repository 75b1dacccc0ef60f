"""What every device back end tells of power, energy, use and clocks, and of when that was."""

import itertools
import time

import pytest
from device_rigs import (
    COUNTER_STEP_S,
    PATIENCE_S,
    Rig,
    energy_at,
    middle,
    uuid_and_clocks,
    wait,
)

SAMPLED = ("power_w", "utilization_ratio", "clock_sm_mhz")


def test_power_falls_with_the_clock(rig: Rig) -> None:
    client = rig.client()
    uuid, clocks_mhz = uuid_and_clocks(client)
    idle_w = client.snapshot(0)["power_instant_w"]
    rig.set_load(0, 1.0)
    powers_w = []
    for clock_mhz in (clocks_mhz[-1], middle(clocks_mhz), clocks_mhz[1]):
        client.ask("writer", "lock", uuid, 0, clock_mhz)
        wait(f"{clock_mhz} MHz", lambda asked=clock_mhz: client.clock_mhz(0) == asked)
        powers_w.append(client.snapshot(0)["power_instant_w"])
    assert powers_w == sorted(set(powers_w), reverse=True)
    assert powers_w[-1] > idle_w
    assert powers_w[0] <= client.snapshot(0)["power_limit_enforced_w"]


def test_energy_is_the_integral_of_power(rig: Rig) -> None:
    """Bounds that hold however late a busy machine answers: each reading is bracketed."""
    client = rig.client()
    rig.set_load(0, 1.0)
    power_w = client.snapshot(0)["power_instant_w"]
    first = energy_at(client)
    seen_j = [first.value]
    while (last := energy_at(client)).began_s < first.ended_s + 1.0 or len(set(seen_j)) < 5:
        seen_j.append(last.value)
        time.sleep(0.01)
    assert seen_j == sorted(seen_j)
    least_j = power_w * (last.began_s - COUNTER_STEP_S - first.ended_s)
    most_j = power_w * (last.ended_s - first.began_s + COUNTER_STEP_S)
    assert 0.99 * least_j <= last.value - first.value <= 1.01 * most_j


def test_a_change_of_load_does_not_rewrite_the_past(rig: Rig) -> None:
    client = rig.client()
    rig.set_load(0, 1.0)
    first = energy_at(client)
    busy_w = client.snapshot(0)["power_instant_w"]
    time.sleep(0.5)
    busy_until_s = time.monotonic()
    rig.set_load(0, 0.0)  # nobody looked in between
    wait("the counter steps", lambda: energy_at(client).began_s > busy_until_s + COUNTER_STEP_S)
    risen_j = energy_at(client).value - first.value
    assert risen_j >= 0.99 * busy_w * (busy_until_s - first.ended_s)


def test_a_reading_says_what_its_calls_cost(rig: Rig) -> None:
    for reading in rig.client().ask("reader", "read"):
        assert reading["call_seconds"]
        for call, seconds in reading["call_seconds"]:
            assert call
            assert 0.0 <= seconds < PATIENCE_S


def test_a_snapshot_is_in_base_units(rig: Rig) -> None:
    client = rig.client()
    rig.set_load(0, 0.5)
    snapshot = client.snapshot(0)
    assert snapshot["utilization_gpu_ratio"] == 0.5
    assert 0.0 <= snapshot["utilization_memory_ratio"] <= 1.0
    assert 50.0 < snapshot["power_instant_w"] < snapshot["power_limit_enforced_w"] < 2000.0
    assert 10.0 < snapshot["temperature_celsius"] < 110.0
    assert snapshot["clock_memory_mhz"] > 400
    assert snapshot["lease"] is None  # the keeper's to know


def test_a_gpu_left_out_is_not_even_described(rig: Rig) -> None:
    client = rig.client()
    uuids = [gpu["uuid"] for gpu in client.ask("reader", "describe")]
    readings = client.ask("reader", "read", [1])
    assert [reading["uuid"] for reading in readings] == [uuids[0], *uuids[2:]]


def test_a_reading_says_when_it_was_taken(rig: Rig) -> None:
    readings, began_s, ended_s = rig.client().timed("reader", "read")
    taken_s = [reading["taken_at_s"] for reading in readings]
    assert began_s <= taken_s[0] <= taken_s[-1] <= ended_s
    assert taken_s == sorted(taken_s)


def test_bursts_tell_every_sample_of_the_device_once_and_in_order(rig: Rig) -> None:
    client = rig.client()
    rig.set_load(0, 1.0)
    told: dict[str, list[list[float]]] = {}

    def enough() -> bool:
        burst = client.ask("reader", "burst", 0)
        for name, series in burst.items():
            told.setdefault(name, []).extend(series)
        return min(len(told[name]) for name in SAMPLED) > 50

    wait("fifty samples", enough)
    for name in SAMPLED:
        times_s = [at_s for at_s, _ in told[name]]
        assert times_s == sorted(set(times_s)), name
        assert abs(times_s[-1] - time.time()) < PATIENCE_S
        steps_s = sorted(after - before for before, after in itertools.pairwise(times_s))
        assert 0.005 < steps_s[len(steps_s) // 2] < 0.2, "as fast as the driver samples"

    def agrees() -> bool:
        """The driver's buffer also holds what was before the load."""
        enough()
        snapshot, newest = client.snapshot(0), {name: told[name][-1][1] for name in SAMPLED}
        near = pytest.approx(snapshot["power_instant_w"], rel=0.05)
        used = pytest.approx(snapshot["utilization_gpu_ratio"])
        return (
            newest["power_w"] == near
            and newest["utilization_ratio"] == used
            and newest["clock_sm_mhz"] == snapshot["clock_sm_mhz"]
        )

    wait("the newest sample is what a reading tells", agrees)


def test_hardware_counters_are_of_known_kinds_or_absent(rig: Rig) -> None:
    client = rig.client()
    for reading in client.ask("reader", "read"):
        counted = reading["hardware"]
        if counted is None:
            continue
        errors = {(error, scope) for error, scope, _ in counted["ecc_errors"]}
        assert errors <= {
            (error, scope)
            for error in ("corrected", "uncorrected")
            for scope in ("volatile", "aggregate")
        }
        assert dict(counted["nvlink_bytes"]).keys() <= {"tx", "rx"}
        known = {"crc_flit", "crc_data", "replay", "recovery"}
        assert dict(counted["nvlink_errors"]).keys() <= known
        assert all(isinstance(xid, int) and n > 0 for xid, n in counted["xid_errors"])
        assert counted["since_s"] <= time.monotonic()
