"""What breaks on a node, and how the fake shows it to clients that are already running."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixture import PROLOGUE, CompilerMissing, FakeNvml

UNINITIALIZED, INVALID, NO_PERMISSION, TIMEOUT = 1, 2, 4, 10
DRIVER_NOT_LOADED, LOST, MISMATCH, IN_USE, UNKNOWN = 9, 15, 18, 19, 999
PATIENCE_S = 90.0  # for a machine that stands still now and then; met early on every other

_CLIENT = (
    PROLOGUE
    + """
h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
names = dict(n=n, h=h, code=code)
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line, names)), flush=True)
"""
)


class Client:
    """A process that has NVML open, and evaluates what it is told with `n`, `h` and `code`."""

    def __init__(self, node: FakeNvml) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CLIENT],
            env=node.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, expression: str) -> None:
        print(expression, file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        return json.loads(self.process.stdout.readline())

    def ask(self, expression: str) -> Any:
        self.tell(expression)
        return self.answer()

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(PATIENCE_S)


@pytest.fixture
def open_client() -> Iterator[Callable[[FakeNvml], Client]]:
    opened: list[Client] = []

    def open_one(node: FakeNvml) -> Client:
        opened.append(Client(node))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


@pytest.fixture
def pair(tmp_path: Path) -> FakeNvml:
    """Two A100."""
    try:
        return FakeNvml(tmp_path / "gpus.state", 2)
    except CompilerMissing as missing:
        pytest.skip(str(missing))


Open = Callable[[FakeNvml], Client]


def wait(what: str, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        time.sleep(0.005)


def test_a_reload_voids_sessions_and_handles(pair: FakeNvml, open_client: Open) -> None:
    client = open_client(pair)
    read = "[code(n.nvmlDeviceGetPowerUsage, h[0]), code(n.nvmlDeviceGetCount)]"
    pair.unload_driver()
    assert client.ask(read) == [DRIVER_NOT_LOADED] * 2
    pair.load_driver()
    assert client.ask(read) == [UNINITIALIZED] * 2
    assert client.ask("code(n.nvmlInit)") == 0  # one user more of the session that is void
    assert client.ask(read) == [UNINITIALIZED] * 2
    assert client.ask("[code(n.nvmlShutdown), code(n.nvmlShutdown), code(n.nvmlInit)]") == [0] * 3
    assert client.ask(read) == [INVALID, 0]
    assert client.ask("code(n.nvmlDeviceGetPowerUsage, n.nvmlDeviceGetHandleByIndex(0))") == 0


def test_settings_go_with_the_last_client_where_nothing_keeps_them(
    pair: FakeNvml, open_client: Open
) -> None:
    lock = "[n.nvmlDeviceSetGpuLockedClocks(g, 210, 900) for g in h]"
    for idle_unload, kept in ((False, [True, True]), (True, [True, False])):
        pair.set_idle_unload(idle_unload)
        first, second = open_client(pair), open_client(pair)
        first.ask("n.nvmlDeviceSetPersistenceMode(h[0], 1)")
        first.ask(lock)
        first.process.kill()
        wait("it is gone", lambda left=second.process.pid: pair.clients() == (left,))
        assert pair.locks() == ((210, 900), (210, 900))
        second.ask("n.nvmlShutdown()")
        assert [lock is not None for lock in pair.locks()] == kept
    pair.lose_persistence(0)
    assert pair.locks() == (None, None)
    told = pair.ask("answer = n.nvmlDeviceGetPersistenceMode(n.nvmlDeviceGetHandleByIndex(0))")
    assert told == 0


def test_events_reach_each_set_that_asked_once(pair: FakeNvml, open_client: Open) -> None:
    pair.xid(0, 31)  # before anybody listens
    clients = [open_client(pair), open_client(pair)]
    wait_for = """[code(n.nvmlEventSetWait_v2, s, 0) if not t else (
        lambda e: [e.eventType, e.eventData, n.nvmlDeviceGetIndex(e.device)]
    )(n.nvmlEventSetWait_v2(s, t)) for s, t in [(h[-1], %d)]][0]""".replace("\n", " ")
    for client in clients:
        client.ask("h.append(n.nvmlEventSetCreate())")
        client.ask("[n.nvmlDeviceRegisterEvents(g, 8, h[-1]) for g in h[:2]]")
        assert client.ask(wait_for % 0) == TIMEOUT
    pair.set_mig(0, True)  # an event of a kind that nobody asked for
    pair.lose(1, xid=79)
    clients[0].tell("n.nvmlEventSetWait_v2(h[-1], 90000).eventData")
    assert clients[0].answer() == 79
    assert clients[0].ask(wait_for % 0) == TIMEOUT
    clients[1].tell("(lambda e: [e.eventType, e.eventData])(n.nvmlEventSetWait_v2(h[-1], 90000))")
    assert clients[1].answer() == [8, 79]
    clients[1].tell("n.nvmlEventSetWait_v2(h[-1], 90000).eventData")  # it waits, and is told
    pair.xid(0, 48)
    assert clients[1].answer() == 48
    assert clients[0].ask(wait_for % 90000) == [8, 48, 0]
    for number in range(200):  # more than are kept: the oldest are lost, and nothing else
        pair.xid(0, number)
    assert clients[0].ask("n.nvmlEventSetWait_v2(h[-1], 90000).eventData") == 200 - 64
    assert clients[0].ask("n.nvmlEventSetFree(h.pop())") is None


def test_mig_changes_at_run_time_where_nobody_is_in_the_way(
    pair: FakeNvml, open_client: Open
) -> None:
    client, other = open_client(pair), open_client(pair)
    switch, mode = "n.nvmlDeviceSetMigMode(h[0], 1)", "n.nvmlDeviceGetMigMode(h[0])"
    rates = "code(n.nvmlDeviceGetUtilizationRates, h[0])"
    assert client.ask(switch) == IN_USE
    assert client.ask(mode) == [0, 1]
    other.ask("n.nvmlShutdown()")
    assert client.ask(rates) == 0
    assert client.ask(switch) == 0
    assert client.ask(mode) == [1, 1]
    assert client.ask(rates) == 3
    pair.set_mig(0, False)
    assert client.ask(mode) == [0, 0]
    assert client.ask(rates) == 0
    pair.set_permission(False)
    assert client.ask("code(n.nvmlDeviceSetMigMode, h[0], 1)") == NO_PERMISSION


def test_every_call_is_on_record(pair: FakeNvml, open_client: Open) -> None:
    """So that a test can prove that something asked nothing."""
    client = open_client(pair)
    before = pair.calls_total()
    pair.locks(), pair.writes(), pair.clients()
    assert pair.calls_total() == before
    client.ask("[code(n.nvmlDeviceGetPowerUsage, h[1]), code(n.nvmlDeviceGetHandleByIndex, 9)]")
    told = [(call.pid, call.gpu, call.function, call.code) for call in pair.calls()[-2:]]
    pid = client.process.pid
    assert told == [
        (pid, 1, "nvmlDeviceGetPowerUsage", 0),
        (pid, 9, "nvmlDeviceGetHandleByIndex_v2", INVALID),
    ]
    client.ask("[n.nvmlDeviceGetCount() for _ in range(3000)][0]")
    assert len(pair.calls()) == 1024
    assert pair.calls_total() == before + 3002
