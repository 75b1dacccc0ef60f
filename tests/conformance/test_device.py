"""What agent and keeper count on, of every device back end, simulated or not.

Each device is used from child processes, as in production; what happens to the GPUs
themselves (load, faults) comes from outside, by each rig's own means.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fixture import CompilerMissing, FakeNvml
from joulecut_sim.card import StateFile

GPUS = 4
PATIENCE_S = 30.0  # for a machine busy with other tests; met early on every other
COUNTER_STEP_S = 0.1  # how old an energy reading may be
SAMPLED = ("power_w", "utilization_ratio", "clock_sm_mhz")
UNKNOWN = "GPU-00000000-0000-0000-0000-000000000000"


class Failed(Exception):
    """A refusal, by the class of failure and its code."""

    def __init__(self, kind: str, code: str, text: str) -> None:
        self.kind, self.code = kind, code
        super().__init__(text)


class Timed(NamedTuple):
    value: Any
    began_s: float
    ended_s: float


class Client:
    """A child process with a reader and a writer of a device."""

    def __init__(self, name: str, options: dict[str, Any], state: Path, env: dict[str, str]):
        script = Path(__file__).with_name("device_process.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), name, json.dumps(options), str(state)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, port: str, method: str, *arguments: Any) -> Any:
        return self.timed(port, method, *arguments).value

    def timed(self, port: str, method: str, *arguments: Any) -> Timed:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([port, method, *arguments]), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise Failed(*answer["error"])
        return Timed(answer["value"], *answer["between_s"])

    def snapshot(self, gpu: int) -> dict[str, Any]:
        reading = self.ask("reader", "read")[gpu]
        assert reading["error"] is None
        snapshot: dict[str, Any] = reading["snapshot"]
        return snapshot

    def clock_mhz(self, gpu: int) -> int:
        return int(self.snapshot(gpu)["clock_sm_mhz"])

    def kill(self) -> None:
        self._process.kill()
        assert self._process.wait(PATIENCE_S) == -signal.SIGKILL
        self._close_pipes()

    def close(self) -> None:
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            assert self._process.wait(PATIENCE_S) == 0
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Rig(ABC):
    """A node of GPUs, and the hand that loads, breaks and watches them from outside."""

    name: str

    def __init__(self, state: Path) -> None:
        self.state = state
        self._clients = ExitStack()

    def start(self, **options: Any) -> Client:
        client = Client(self.name, {**self.options(), **options}, self.state, self.environment())
        self._clients.callback(client.close)
        return client

    def client(self, *, permitted: bool = True) -> Client:
        client = self.start(**({} if permitted else self.forbid()))
        client.ask("reader", "open")
        client.ask("writer", "open")
        return client

    def close(self) -> None:
        self._clients.close()

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @abstractmethod
    def options(self) -> dict[str, Any]: ...

    @abstractmethod
    def forbid(self) -> dict[str, Any]:
        """Takes the right to set clocks; what must be among the options for that."""

    @abstractmethod
    def set_load(self, gpu: int, ratio: float) -> None: ...

    @abstractmethod
    def set_mig(self, gpu: int, enabled: bool) -> None: ...

    @abstractmethod
    def lose(self, gpu: int) -> None: ...

    @abstractmethod
    def find(self, gpu: int) -> None:
        """The lost GPU is back on the bus."""

    @abstractmethod
    def reload(self) -> None:
        """The driver goes and comes back; who had it open must open it again."""

    @abstractmethod
    def locks(self) -> tuple[tuple[int, int] | None, ...]:
        """What was last written to each GPU, in MHz; None for the driver's default."""


class NvmlRig(Rig):
    name = "nvml"

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.fake = FakeNvml(state / "fake.state", GPUS)

    def options(self) -> dict[str, Any]:
        return {"permission": "driver"}  # containers that run tests lack the capability

    def environment(self) -> dict[str, str]:
        return self.fake.environment()

    def forbid(self) -> dict[str, Any]:
        self.fake.set_permission(False)
        return {}

    def set_load(self, gpu: int, ratio: float) -> None:
        self.fake.set_load(gpu, ratio)

    def set_mig(self, gpu: int, enabled: bool) -> None:
        self.fake.set_mig(gpu, enabled)

    def lose(self, gpu: int) -> None:
        self.fake.lose(gpu)

    def find(self, gpu: int) -> None:
        self.fake.return_gpu(gpu)

    def reload(self) -> None:
        self.fake.reload_driver()

    def locks(self) -> tuple[tuple[int, int] | None, ...]:
        return self.fake.locks()


class SimulatedRig(Rig):
    name = "simulated"

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.file = StateFile.open(state / "gpus.state", cards=GPUS)

    def close(self) -> None:
        super().close()
        self.file.close()

    def options(self) -> dict[str, Any]:
        return {"cards": GPUS}

    def forbid(self) -> dict[str, Any]:
        return {"permission": "none"}

    def set_load(self, gpu: int, ratio: float) -> None:
        self.file.set_load(gpu, ratio)

    def set_mig(self, gpu: int, enabled: bool) -> None:
        self.file.set_mig(gpu, enabled)

    def lose(self, gpu: int) -> None:
        self.file.set_lost(gpu)

    def find(self, gpu: int) -> None:
        self.file.set_lost(gpu, False)

    def reload(self) -> None:
        self.file.reload()

    def locks(self) -> tuple[tuple[int, int] | None, ...]:
        asked = [self.file.asked_mhz(gpu) for gpu in range(GPUS)]
        return tuple(lock if lock[1] else None for lock in asked)


@pytest.fixture(params=[NvmlRig, SimulatedRig], ids=["nvml", "simulated"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    try:
        made: Rig = request.param(tmp_path)
    except CompilerMissing as missing:
        pytest.skip(str(missing))
    yield made
    made.close()


def wait(what: str, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        time.sleep(0.005)


def uuid_and_clocks(client: Client, gpu: int = 0) -> tuple[str, list[int]]:
    description = client.ask("reader", "describe")[gpu]
    return description["uuid"], description["clocks_mhz"]


def middle(clocks_mhz: list[int]) -> int:
    return clocks_mhz[len(clocks_mhz) // 2]


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


def energy_at(client: Client, gpu: int = 0) -> Timed:
    readings, began_s, ended_s = client.timed("reader", "read")
    return Timed(readings[gpu]["snapshot"]["energy_j"], began_s, ended_s)


def test_energy_is_the_integral_of_power(rig: Rig) -> None:
    """Bounds that hold however late a busy machine answers: each reading is bracketed."""
    client = rig.client()
    rig.set_load(0, 1.0)
    power_w = client.snapshot(0)["power_instant_w"]
    first = energy_at(client)
    seen_j = [first.value]
    while (last := energy_at(client)).began_s < first.ended_s + 1.5:
        seen_j.append(last.value)
        time.sleep(0.01)
    assert seen_j == sorted(seen_j)
    assert len(set(seen_j)) >= 5
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


@pytest.mark.parametrize("method", ["lock", "reset"])
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
    for method, arguments in (("lock", (0, clocks_mhz[-1])), ("reset", ())):
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


@pytest.mark.parametrize("port", ["reader", "writer"])
def test_an_unknown_option_is_bad_input(rig: Rig, port: str) -> None:
    client = rig.start(colour="blue")
    with pytest.raises(Failed, match=rf"{rig.name}\.colour: unknown key") as refused:
        client.ask(port, "open")
    assert refused.value.kind == "BadInput"


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


def test_a_lost_gpu_has_no_burst(rig: Rig) -> None:
    client = rig.client()
    rig.lose(2)
    with pytest.raises(Failed) as refused:
        client.ask("reader", "burst", 2)
    assert refused.value.kind == "Gone"
