"""What is judged of a GPU: nothing that was read before the newest order counts against it."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from keeper_requests import apply_of

from joulecut_agent.control import drift
from joulecut_agent.control.drift_watch import DriftWatch
from joulecut_agent.counters import Counters
from joulecut_agent.keeper import protocol as wire
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.client import KeeperClient
from joulecut_agent.keeper.evidence import SETTLE_S
from joulecut_agent.keeper.lease import Lease
from joulecut_agent.keeper.requests import Apply, Clear, ClockLimits, Request, Status, Yield
from joulecut_wire.messages import GpuDescription, GpuSnapshot, NodeSnapshot
from joulecut_wire.metrics import CONTROL_DRIFT

UUID, FREE_MHZ, EARLIER_MHZ, OURS_MHZ = "GPU-a", 1980, 1500, 1005
TURNS = 2 * drift.TICKS
GPU = GpuDescription(UUID, 0, "H", (345, OURS_MHZ, FREE_MHZ))


class Yes(threading.Thread):
    """The other end of a keeper's line: it agrees to everything, and remembers what it was.

    With `sees_no_other` it refuses to end a lease for another writer's sake.
    """

    def __init__(self, line: socket.socket) -> None:
        super().__init__(name="yes", daemon=True)
        self._line = line
        self.commands: list[Request] = []
        self.lease: Lease | None = None
        self.sees_no_other = False
        self.written_mhz: tuple[int, ...] = (OURS_MHZ,)

    def run(self) -> None:
        while raw := self._line.recv(wire.REQUEST_BYTES + 1):
            serial, command = wire.decode_request(raw)
            refused = isinstance(command, Yield) and self.sees_no_other
            if not isinstance(command, Status):
                self.commands.append(command)
                self.lease = self.lease if refused else None
            slots = (wire.Slot(UUID, not refused, "", self.lease, written_mhz=self.written_mhz),)
            self._line.send(wire.encode_reply(wire.Reply(serial, 1, Bounds(), slots)))


class Watched:
    """One GPU, its keeper's answers, and readings at times of the test's own."""

    def __init__(self, keeper: Yes, client: KeeperClient) -> None:
        self.keeper, self._client = keeper, client
        self.counters = Counters()
        self.drift_watch = DriftWatch(lambda: (GPU,), client, self.counters, None)
        self._sequence = 0
        self.now_s = time.monotonic()

    def hold(self, generation: int) -> Apply:
        """An order that the keeper accepts, up to where its answer is there."""
        command = apply_of(1, "demo", generation, 60.0, {UUID: (0, OURS_MHZ)})
        self.drift_watch.sent(command.settings)
        self.keeper.lease = Lease("demo", 1, generation, ClockLimits(0, OURS_MHZ), 60.0)
        self._client.refresh()
        return command

    def obey(self, generation: int) -> None:
        """An order whose answer is known here as well; what is seen is read after that."""
        self.drift_watch.answered(self.hold(generation).settings)
        self.now_s = max(self.now_s, time.monotonic())

    def end(self) -> None:
        self.keeper.lease = None

    def see(self, clock_mhz: int, turns: int = TURNS, each_s: float = 0.5) -> None:
        for _ in range(turns):
            self._sequence += 1
            self.now_s += each_s
            gpu = GpuSnapshot(UUID, clock_sm_mhz=clock_mhz, utilization_gpu_ratio=1.0)
            self.drift_watch.check(NodeSnapshot(self._sequence, self.now_s, (gpu,)))

    def asked(self) -> list[type[Request]]:
        """The requests that may end a lease."""
        return [type(command) for command in self.keeper.commands]


@pytest.fixture
def watched() -> Iterator[Watched]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(theirs):
        keeper, client = Yes(theirs), KeeperClient("")
        keeper.start()
        client.watch(lambda: [UUID])
        client.attach(ours)
        yield Watched(keeper, client)
        client.detach()
        keeper.join()


def test_what_was_seen_of_one_lease_is_not_held_against_the_next_with_the_same_clock(
    watched: Watched,
) -> None:
    """The first ran out, its GPU was given back, and nobody looked at it without a lease."""
    watched.obey(1)
    watched.see(OURS_MHZ)
    watched.keeper.sees_no_other = True
    watched.see(FREE_MHZ, turns=drift.TICKS - 1)  # it has just been given back
    watched.end()
    watched.keeper.commands.clear()
    watched.keeper.sees_no_other = False
    second = watched.hold(2)
    watched.see(FREE_MHZ)  # read while the second is being written
    assert watched.asked() == []
    ordered_s = time.monotonic()
    watched.now_s = ordered_s - 10.0
    watched.drift_watch.answered(second.settings)
    watched.see(FREE_MHZ)  # read before that, and looked at after it
    assert watched.asked() == []
    watched.now_s = ordered_s
    watched.see(FREE_MHZ, turns=drift.TICKS - 1, each_s=SETTLE_S / drift.TICKS)
    assert watched.asked() == [], "it has not settled"
    watched.now_s = time.monotonic() + SETTLE_S
    watched.see(OURS_MHZ)
    assert watched.asked() == []
    watched.see(FREE_MHZ)
    assert watched.asked() == [Yield], "what comes after it counts as ever"


def test_what_the_keeper_does_not_see_ends_no_lease_and_is_not_counted(watched: Watched) -> None:
    watched.keeper.sees_no_other = True
    watched.obey(1)
    watched.see(FREE_MHZ)
    assert set(watched.asked()) == {Yield}
    assert watched.keeper.lease is not None
    assert not watched.counters.counts(CONTROL_DRIFT.name)
    assert not watched.drift_watch.refusal(UUID), "and nothing backs off"


def test_an_earlier_clock_of_ours_is_restored_and_not_left(watched: Watched) -> None:
    watched.keeper.written_mhz = (EARLIER_MHZ, OURS_MHZ)
    watched.obey(1)
    watched.see(EARLIER_MHZ)
    assert watched.asked() == [Clear]
