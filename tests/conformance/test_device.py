"""What agent and keeper count on, of every device back end, simulated or not: who and how fast."""

from device_rigs import GPUS, Rig, middle, uuid_and_clocks, wait


def test_descriptions_are_stable_and_in_index_order(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    described = client.ask("reader", "describe")
    assert [gpu["index"] for gpu in described] == list(range(GPUS))
    assert len({gpu["uuid"] for gpu in described}) == GPUS
    assert described == client.ask("reader", "describe") == other.ask("reader", "describe")
    readings = client.ask("reader", "read")
    assert [reading["uuid"] for reading in readings] == [gpu["uuid"] for gpu in described]
    for gpu in described:
        assert gpu["model"]
        assert gpu["controllable"]
        assert gpu["reason"] == ""
        assert 0 < gpu["power_limit_min_w"] <= gpu["power_limit_default_w"]
        assert gpu["power_limit_default_w"] <= gpu["power_limit_max_w"]


def test_clocks_ascend_and_both_sides_agree_on_them(rig: Rig) -> None:
    client = rig.client()
    uuid, clocks_mhz = uuid_and_clocks(client)
    assert clocks_mhz == sorted(set(clocks_mhz))
    assert len(clocks_mhz) > 10
    assert clocks_mhz == client.ask("writer", "clocks_mhz", uuid)
    assert client.ask("writer", "uncontrollable", uuid) == ""
    assert client.ask("writer", "permission") == ""


def test_a_lock_bounds_the_clock_under_load_and_a_reset_frees_it(rig: Rig) -> None:
    client = rig.client()
    uuid, clocks_mhz = uuid_and_clocks(client, 1)
    rig.set_load(1, 1.0)
    free_mhz = client.clock_mhz(1)
    lock_mhz = middle(clocks_mhz)
    assert free_mhz > lock_mhz
    client.ask("writer", "lock", uuid, clocks_mhz[0], lock_mhz)
    wait("the clock obeys", lambda: client.clock_mhz(1) == lock_mhz)
    assert rig.locks() == (None, (clocks_mhz[0], lock_mhz), None, None)
    client.ask("writer", "reset", uuid)
    wait("the clock is free", lambda: client.clock_mhz(1) == free_mhz)
    assert rig.locks() == (None,) * GPUS


def test_the_writer_reads_what_the_reader_does(rig: Rig) -> None:
    client = rig.client()
    uuid, clocks_mhz = uuid_and_clocks(client, 1)
    assert client.ask("writer", "reading", uuid)[1:] == [0.0, ["idle"]]
    rig.set_load(1, 0.5)
    client.ask("writer", "lock", uuid, 0, middle(clocks_mhz))
    shown = [middle(clocks_mhz), 0.5, []]
    wait("it shows", lambda: client.ask("writer", "reading", uuid) == shown)


def test_a_lock_without_minimum_starts_at_the_lowest_clock(rig: Rig) -> None:
    client = rig.client()
    uuid, clocks_mhz = uuid_and_clocks(client)
    client.ask("writer", "lock", uuid, 0, clocks_mhz[-1])
    assert rig.locks()[0] == (clocks_mhz[0], clocks_mhz[-1])


def test_an_idle_gpu_falls_to_idle_clocks_under_a_range(rig: Rig) -> None:
    client = rig.client()
    uuid, clocks_mhz = uuid_and_clocks(client)
    client.ask("writer", "lock", uuid, 0, middle(clocks_mhz))
    wait("it idles", lambda: client.clock_mhz(0) < middle(clocks_mhz))
    assert client.snapshot(0)["event_reasons"] == ["idle"]
    rig.set_load(0, 1.0)
    wait("it works", lambda: client.clock_mhz(0) == middle(clocks_mhz))
    assert "idle" not in client.snapshot(0)["event_reasons"]


def test_writing_twice_is_writing_once(rig: Rig) -> None:
    client = rig.client()
    uuid, clocks_mhz = uuid_and_clocks(client)
    client.ask("writer", "reset", uuid)
    for _ in range(2):
        client.ask("writer", "lock", uuid, clocks_mhz[1], clocks_mhz[-2])
        assert rig.locks()[0] == (clocks_mhz[1], clocks_mhz[-2])
    for _ in range(2):
        client.ask("writer", "reset", uuid)
        assert rig.locks()[0] is None


def test_what_one_process_locks_another_sees(rig: Rig) -> None:
    first, second = rig.client(), rig.client()
    uuid, clocks_mhz = uuid_and_clocks(first)
    rig.set_load(0, 1.0)
    first.ask("writer", "lock", uuid, 0, middle(clocks_mhz))
    wait("the other sees it", lambda: second.clock_mhz(0) == middle(clocks_mhz))
    second.ask("writer", "reset", uuid)
    wait("and can undo it", lambda: first.clock_mhz(0) > middle(clocks_mhz))


def test_a_lock_outlives_the_process_that_set_it(rig: Rig) -> None:
    """Without this a test of the keeper's recovery would prove nothing."""
    victim = rig.client()
    uuid, clocks_mhz = uuid_and_clocks(victim)
    rig.set_load(0, 1.0)
    victim.ask("writer", "lock", uuid, 0, middle(clocks_mhz))
    victim.kill()
    assert rig.locks()[0] == (clocks_mhz[0], middle(clocks_mhz))
    heir = rig.client()
    wait("still locked", lambda: heir.clock_mhz(0) == middle(clocks_mhz))
    heir.ask("writer", "reset", uuid)
    assert rig.locks()[0] is None


def test_a_device_can_be_closed_and_opened_again(rig: Rig) -> None:
    client = rig.client()
    described = client.ask("reader", "describe")
    for _ in range(2):
        for port in ("reader", "writer"):
            client.ask(port, "close")
            client.ask(port, "open")
        assert client.ask("reader", "describe") == described
        client.ask("writer", "reset", described[0]["uuid"])
    client.ask("reader", "close")
    client.ask("writer", "reset", described[0]["uuid"])  # each port stands on its own
