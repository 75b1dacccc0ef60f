"""How every device back end fails: by name, at its own cost alone, and until it is mended."""

import time

import pytest
from device_rigs import COUNTER_STEP_S, GPUS, Failed, Rig, energy_at, middle, uuid_and_clocks, wait

UNKNOWN = "GPU-00000000-0000-0000-0000-000000000000"


def test_a_process_killed_while_writing_blocks_nobody(rig: Rig) -> None:
    watcher = rig.client()
    uuid, clocks_mhz = uuid_and_clocks(watcher)
    for delay_s in (0.0, 0.013, 0.031):
        victim = rig.client()
        victim.ask("writer", "hammer", uuid, clocks_mhz[0], middle(clocks_mhz))
        time.sleep(delay_s)  # somewhere inside its writes
        victim.kill()
        watcher.snapshot(0)
        watcher.ask("writer", "lock", uuid, clocks_mhz[1], middle(clocks_mhz))
        assert rig.locks()[0] == (clocks_mhz[1], middle(clocks_mhz))


@pytest.mark.parametrize("method", ["lock", "reset", "reading"])
def test_an_unknown_gpu_is_refused(rig: Rig, method: str) -> None:
    client = rig.client()
    clocks_mhz = uuid_and_clocks(client)[1]
    asked = (clocks_mhz[0], clocks_mhz[-1]) if method == "lock" else ()
    with pytest.raises(Failed) as refused:
        client.ask("writer", method, UNKNOWN, *asked)
    assert (refused.value.kind, refused.value.code) == ("Unsupported", "not_found")
    assert client.ask("writer", "clocks_mhz", UNKNOWN) == []
    assert client.ask("writer", "uncontrollable", UNKNOWN)
    assert rig.locks() == (None,) * GPUS


def test_a_clock_that_is_not_offered_is_refused_and_changes_nothing(rig: Rig) -> None:
    client = rig.client()
    uuid, clocks_mhz = uuid_and_clocks(client)
    client.ask("writer", "lock", uuid, clocks_mhz[1], clocks_mhz[-1])
    low, high = clocks_mhz[1], clocks_mhz[-2]
    bad = [(low, high + 1), (low + 1, high), (high, low), (low, 10**6), (low, 0), (-1, high)]
    for pair in bad:
        with pytest.raises(Failed) as refused:
            client.ask("writer", "lock", uuid, *pair)
        assert (refused.value.kind, refused.value.code) == ("Unsupported", "invalid_argument")
    assert rig.locks()[0] == (clocks_mhz[1], clocks_mhz[-1])


def test_a_lost_gpu_costs_only_its_own_data(rig: Rig) -> None:
    client = rig.client()
    before = client.ask("reader", "describe")
    rig.lose(2)
    readings = client.ask("reader", "read")
    assert [reading["uuid"] for reading in readings] == [gpu["uuid"] for gpu in before]
    assert [reading["snapshot"] is None for reading in readings] == [False, False, True, False]
    assert readings[2]["error"][:2] == ["Gone", "gpu_is_lost"]
    assert [gpu["uuid"] for gpu in client.ask("reader", "describe")] == [g["uuid"] for g in before]
    clocks_mhz = before[0]["clocks_mhz"]
    for method, arguments in (("lock", (0, clocks_mhz[-1])), ("reset", ()), ("reading", ())):
        with pytest.raises(Failed) as refused:
            client.ask("writer", method, before[2]["uuid"], *arguments)
        assert refused.value.kind == "Gone"
    client.ask("writer", "lock", before[3]["uuid"], 0, clocks_mhz[-1])


def test_a_gpu_that_comes_back_is_read_and_controlled_again(rig: Rig) -> None:
    client = rig.client()
    uuid, clocks_mhz = uuid_and_clocks(client, 1)
    rig.lose(1)
    assert client.ask("reader", "read")[1]["error"][0] == "Gone"
    rig.find(1)
    client.ask("reader", "describe")  # finds the GPUs anew
    assert client.snapshot(1)["energy_j"] is not None
    assert client.ask("writer", "uncontrollable", uuid) == ""
    client.ask("writer", "lock", uuid, 0, middle(clocks_mhz))
    assert rig.locks()[1] == (clocks_mhz[0], middle(clocks_mhz))


def test_a_driver_reload_forgets_locks_and_counts_from_zero(rig: Rig) -> None:
    client = rig.client()
    uuid, clocks_mhz = uuid_and_clocks(client)
    client.ask("writer", "lock", uuid, 0, middle(clocks_mhz))
    idle_w = client.snapshot(0)["power_instant_w"]
    reloaded_s = time.monotonic()
    rig.reload()
    assert rig.locks() == (None,) * GPUS
    for port in ("reader", "writer"):
        client.ask(port, "close")
    for port in ("reader", "writer"):
        client.ask(port, "open")
    energy = energy_at(client)
    assert 0 <= energy.value <= 1.01 * idle_w * (energy.ended_s - reloaded_s + COUNTER_STEP_S)
    rig.set_load(0, 1.0)
    assert client.clock_mhz(0) > middle(clocks_mhz)
    client.ask("writer", "lock", uuid, 0, middle(clocks_mhz))
    wait("it obeys again", lambda: client.clock_mhz(0) == middle(clocks_mhz))


def test_reading_never_fails_whatever_is_left(rig: Rig) -> None:
    client = rig.client()
    client.ask("reader", "describe")
    for gpu in range(GPUS):
        rig.lose(gpu)
    readings = client.ask("reader", "read")
    assert [reading["error"][0] for reading in readings] == ["Gone"] * GPUS


def test_without_permission_nothing_is_written_and_reading_goes_on(rig: Rig) -> None:
    client = rig.client(permitted=False)
    uuid, clocks_mhz = uuid_and_clocks(client)
    for method, arguments in (("lock", (0, clocks_mhz[-1])), ("reset", ())):
        with pytest.raises(Failed) as refused:
            client.ask("writer", method, uuid, *arguments)
        assert (refused.value.kind, refused.value.code) == ("NotPermitted", "no_permission")
    assert rig.locks() == (None,) * GPUS
    assert client.snapshot(0)["power_instant_w"] > 0


def test_a_gpu_split_by_mig_is_observed_and_not_controlled(rig: Rig) -> None:
    client = rig.client()
    rig.set_mig(1, True)
    described = client.ask("reader", "describe")
    assert [gpu["controllable"] for gpu in described] == [True, False, True, True]
    assert "MIG" in described[1]["reason"]
    assert "MIG" in client.ask("writer", "uncontrollable", described[1]["uuid"])
    with pytest.raises(Failed, match="MIG") as refused:  # whoever judged it a moment before
        client.ask("writer", "lock", described[1]["uuid"], 0, described[1]["clocks_mhz"][-1])
    assert refused.value.kind == "Unsupported"
    assert rig.locks() == (None,) * GPUS
    assert client.snapshot(1)["energy_j"] is not None
    rig.set_mig(1, False)
    assert client.ask("writer", "uncontrollable", described[1]["uuid"]) == ""


@pytest.mark.parametrize("port", ["reader", "writer"])
def test_an_unknown_option_is_bad_input(rig: Rig, port: str) -> None:
    client = rig.start(colour="blue")
    with pytest.raises(Failed, match=rf"{rig.name}\.colour: unknown key") as refused:
        client.ask(port, "open")
    assert refused.value.kind == "BadInput"


def test_a_lost_gpu_has_no_burst(rig: Rig) -> None:
    client = rig.client()
    rig.lose(2)
    with pytest.raises(Failed) as refused:
        client.ask("reader", "burst", 2)
    assert refused.value.kind == "Gone"
