"""The controller's end of the wire, against a server that speaks it and misbehaves on order."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from held_port import held_port
from running_agent import RunningAgent

from joulecut_controller.fleet import grpc_fleet
from joulecut_controller.fleet.grpc_fleet import REPORTS_KEPT, GrpcFleet
from joulecut_controller.view import GpuView, NodeView
from joulecut_wire import codec
from joulecut_wire.messages import (
    Allocation,
    CarriedOut,
    Command,
    GpuDescription,
    GpuSnapshot,
    IterationReport,
    Lease,
    NodeDescription,
    Result,
    Setting,
    WatchTick,
)
from joulecut_wire.v1 import agent_pb2 as pb
from joulecut_wire.v1.agent_pb2_grpc import (
    AgentServiceServicer,
    add_AgentServiceServicer_to_server,
)

LIMIT_S = 90.0  # for a machine that stands still now and then; met early on every other
ROUNDS = 60
SILENCE_S = 0.5


class Servant(AgentServiceServicer):
    """An agent of one GPU. `hang` names a call that never answers."""

    def __init__(self) -> None:
        self.epoch_seen = 3
        self.described = 0
        self.hang = ""
        self.refusal = ""
        self.age_s = 0.25
        self.gpus = ("G0",)
        self.gone = self.uncontrollable = False  # its driver is being loaded again
        self.name = "n1"
        self.energy_j = 1.0  # of each GPU, times the number of the message
        self.reports = 1
        self.owners: tuple[Allocation, ...] = ()
        self.stopped = ""
        self.generation = 2  # of the lease on its GPU
        self.commands: list[Command] = []
        self.watchers = 0
        self.ticks = 0
        self.carried_out: CarriedOut | None = None  # what its messages follow
        self.number = 0  # of its answers

    async def _perhaps_hang(self, name: str) -> None:
        if self.hang == name:
            await asyncio.sleep(60.0)

    async def Describe(self, request: Any, context: Any) -> pb.DescribeResponse:
        self.described += 1
        await self._perhaps_hang("Describe")
        gpus = tuple(
            GpuDescription(uuid, index, "sim", (900, 1410), controllable=not self.uncontrollable)
            for index, uuid in enumerate(self.gpus)
        )
        return codec.encode_node(
            NodeDescription(
                self.name, "0.1", "boot", self.epoch_seen, 60.0, gpus, roles=("observe", "apply")
            )
        )

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[pb.WatchResponse]:
        self.watchers += 1
        while self.hang != "Watch":
            self.ticks += 1
            sequence = self.ticks  # goes on where a stream is taken up again
            lease = Lease("job", 1, self.generation, 0, 900, 5.0)
            shown = tuple(
                GpuSnapshot(uuid, energy_j=self.energy_j * sequence, lease=lease)
                for uuid in self.gpus
                if not self.gone
            )
            reports = tuple(IterationReport("job", uuid, 0, sequence, 0.1) for uuid in self.gpus)
            tick = WatchTick(
                sequence,
                self.age_s,
                shown,
                reports * self.reports,
                allocations=self.owners,
                stopped=self.stopped,
                carried_out=self.carried_out,
            )
            yield codec.encode_tick(tick)
            await asyncio.sleep(request.interval_s)
        await asyncio.sleep(60.0)

    async def Apply(self, request: Any, context: Any) -> pb.ApplyResponse:
        await self._perhaps_hang("Apply")
        command = codec.decode_command(request)
        self.commands.append(command)
        results = tuple(Result(s.uuid, not self.refusal, self.refusal) for s in command.settings)
        carried_out = pb.CarriedOut(number=self.number) if self.number else None
        return pb.ApplyResponse(results=codec.encode_results(results), carried_out=carried_out)

    async def Renew(self, request: Any, context: Any) -> pb.RenewResponse:
        await self._perhaps_hang("Renew")
        return pb.RenewResponse(results=codec.encode_results((Result("G0", accepted=True),)))

    async def Clear(self, request: Any, context: Any) -> pb.ClearResponse:
        results = tuple(Result(uuid, accepted=True) for uuid in request.uuids)
        return pb.ClearResponse(results=codec.encode_results(results))


async def serve(servant: Servant, port: int = 0) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    add_AgentServiceServicer_to_server(servant, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, bound


def with_fleet(
    body: Callable[[Servant, GrpcFleet, str], Awaitable[None]],
    *,
    deadline_s: float = LIMIT_S,
    reports_kept: int = REPORTS_KEPT,
    hang: str = "",
) -> None:
    async def go() -> None:
        servant = Servant()
        servant.hang = hang
        server, port = await serve(servant)
        address = f"127.0.0.1:{port}"
        fleet = GrpcFleet(
            [address],
            watch_s=0.05,
            deadline_s=deadline_s,
            silence_s=SILENCE_S,
            reports_kept=reports_kept,
        )
        await fleet.start()
        try:
            await body(servant, fleet, address)
        finally:
            await fleet.stop()
            await server.stop(None)

    asyncio.run(go())


def node(fleet: GrpcFleet) -> NodeView:
    return fleet.observe(time.monotonic()).nodes[0]


def test_what_an_agent_shows_is_noticed_once_where_it_changed() -> None:
    async def body(servant: Servant, fleet: GrpcFleet, address: str) -> None:
        noticed: list[tuple[str, bool]] = []
        fleet.noticed = lambda *what: noticed.append(what)

        async def after_ticks() -> list[tuple[str, bool]]:
            """What was noticed until some more messages came."""
            until = servant.ticks + 5
            async with asyncio.timeout(LIMIT_S):
                while servant.ticks < until:
                    await asyncio.sleep(0.02)
            seen = noticed[:]
            noticed.clear()
            return seen

        assert await after_ticks() == [(address, True)], "the agent, and then nothing new"
        assert await after_ticks() == []
        servant.generation = 3
        assert await after_ticks() == [(address, False)], "another lease"
        servant.stopped = "maintenance"
        assert await after_ticks() == [(address, True)]

    with_fleet(body)


def test_a_message_made_before_a_command_is_behind_it_however_late_it_comes() -> None:
    async def body(servant: Servant, fleet: GrpcFleet, address: str) -> None:
        def behind() -> bool | None:
            shown = gpu(fleet)
            return shown.behind if shown and shown.snapshot else None

        async def later(messages: int = 5) -> None:
            seen = servant.ticks + messages
            await until(lambda: servant.ticks >= seen)

        command = Command(4, "job", 2, 5.0, (Setting("G0", 0, 900),), "")
        await until(lambda: behind() is False)
        servant.carried_out, servant.number = CarriedOut(4, 1, 6), 7
        await later()
        await fleet.apply(address, command)
        await later(20)  # each arrives after the answer, and was made before it
        assert behind() is True
        servant.carried_out = CarriedOut(4, 2, 7)
        await until(lambda: behind() is False)
        servant.carried_out, servant.number = None, 0  # an agent of the version before
        await later()
        await fleet.apply(address, command)
        assert behind() is True
        await until(lambda: behind() is False)

    with_fleet(body)


def gpu(fleet: GrpcFleet) -> GpuView | None:
    return next(iter(fleet.observe(time.monotonic()).gpus), None)


async def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        await asyncio.sleep(0.02)


def connected(fleet: GrpcFleet) -> Callable[[], bool]:
    return lambda: node(fleet).connected


def test_a_gpu_that_is_back_is_described_again_until_it_can_be_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reload of the driver took its limits: the next description would be half a minute away."""
    monkeypatch.setattr(grpc_fleet, "DESCRIBE_EVERY_S", float("inf"))

    async def body(servant: Servant, fleet: GrpcFleet, address: str) -> None:
        assert await fleet.all_read(LIMIT_S)
        servant.gone = servant.uncontrollable = True
        seen = servant.ticks
        await until(lambda: servant.ticks > seen + 3)
        servant.gone = False  # the agent reads it; its keeper has not opened the driver yet
        described = servant.described
        await until(lambda: servant.described > described)
        servant.uncontrollable = False

        def controllable() -> bool:
            one = gpu(fleet)
            return one is not None and one.description.controllable

        await until(controllable)

    with_fleet(body)


def test_owners_and_stops_are_those_of_the_newest_message() -> None:
    async def body(servant: Servant, fleet: GrpcFleet, address: str) -> None:
        def owner() -> Allocation | None:
            shown = gpu(fleet)
            return shown and shown.allocation

        await until(connected(fleet))
        assert owner() is None
        assert node(fleet).roles == ("observe", "apply")
        pod = Allocation("G0", "run", "train", "run-0", "kubernetes", {"app": "gpt3"})
        servant.owners, servant.stopped = (pod,), "released for 9 s more"
        released = "its agent takes no commands: released for 9 s more"
        await until(lambda: owner() == pod and node(fleet).hindrance == released)
        servant.owners, servant.stopped = (), ""
        await until(lambda: owner() is None and node(fleet).hindrance == "")

    with_fleet(body)


def test_a_busy_event_loop_is_no_silence_of_an_agent() -> None:
    """What arrived meanwhile waits in the socket: a thousand streams must not be opened again
    because one pass took long.
    """

    async def body(servant: Servant, fleet: GrpcFleet, address: str) -> None:
        await until(connected(fleet))
        for _ in range(3):
            time.sleep(4 * SILENCE_S)
            seen = servant.ticks
            await until(lambda seen=seen: servant.ticks > seen + 2)
        assert servant.watchers == 1

    with_fleet(body)


def test_ages_grow_while_an_agent_is_silent_and_the_stream_is_taken_up_again() -> None:
    async def body(servant: Servant, fleet: GrpcFleet, address: str) -> None:
        await until(connected(fleet))
        servant.hang = "Watch"
        await until(lambda: node(fleet).error == "the stream is silent")
        assert not node(fleet).connected
        shown = gpu(fleet)
        assert shown.age_s > 0.25
        servant.hang = ""
        await until(connected(fleet))
        assert servant.watchers >= 2

    with_fleet(body)


def test_a_refusal_makes_the_agent_describe_itself_again() -> None:
    """A larger epoch may be why, and only Describe tells it for sure."""

    async def body(servant: Servant, fleet: GrpcFleet, address: str) -> None:
        await until(connected(fleet))
        servant.epoch_seen, servant.refusal = 9, "epoch 7 is older than 9"
        command = Command(7, "job", 11, 3.0, (Setting("G0", 900),))
        results = await fleet.apply(address, command)
        assert not results[0].accepted
        await until(lambda: node(fleet).epoch_seen == 9)

    with_fleet(body)


def test_an_agent_that_sends_messages_is_there_however_late_it_describes_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DESCRIBE_EVERY_S", "DESCRIBE_DEADLINE_S"):
        monkeypatch.setattr(grpc_fleet, name, 0.2)

    async def body(servant: Servant, fleet: GrpcFleet, address: str) -> None:
        with monkeypatch.context() as patient:
            patient.setattr(grpc_fleet, "DESCRIBE_DEADLINE_S", LIMIT_S)
            assert await fleet.all_read(LIMIT_S)
        servant.hang, described, watchers = "Describe", servant.described, servant.watchers
        until_s = time.monotonic() + LIMIT_S
        while servant.described < described + 3 and time.monotonic() < until_s:
            await asyncio.sleep(0.05)
            assert node(fleet).connected
        assert (servant.described >= described + 3, servant.watchers) == (True, watchers)

    with_fleet(body)


def test_an_agent_that_hangs_costs_a_deadline_and_no_exception() -> None:
    async def body(servant: Servant, fleet: GrpcFleet, address: str) -> None:
        servant.hang = "Apply"
        command = Command(7, "job", 11, 3.0, (Setting("G0", 900),))
        (result,) = await fleet.apply(address, command)
        assert not result.accepted
        assert "DEADLINE_EXCEEDED" in result.reason

    with_fleet(body, deadline_s=0.5)


def test_an_agent_that_describes_itself_and_sends_no_readings_is_waited_for() -> None:
    """A power budget would take it for unreachable in the first pass."""

    async def body(servant: Servant, fleet: GrpcFleet, address: str) -> None:
        await until(lambda: node(fleet).node == "n1")
        assert not await fleet.all_read(0.3)

    with_fleet(body, hang="Watch")


def test_an_agent_that_never_was_and_then_comes() -> None:
    async def go(port: int) -> None:
        address = f"127.0.0.1:{port}"
        fleet = GrpcFleet([address], watch_s=0.05)
        await fleet.start()
        assert not await fleet.all_read(0.3)
        await until(lambda: "UNAVAILABLE" in node(fleet).error)
        (result,) = await fleet.clear(address, 1, "job", [], "why")
        assert not result.accepted
        assert "no answer" in result.reason
        server, _ = await serve(Servant(), port)
        await until(connected(fleet))
        await fleet.stop()
        await server.stop(None)

    with held_port() as port:
        asyncio.run(go(port))


def test_a_stop_that_meets_a_message_ends_all_the_same() -> None:
    """On Python 3.11 `asyncio.wait_for` answers with the message and forgets the cancellation."""

    async def go() -> None:
        server, port = await serve(Servant())
        for turn in range(ROUNDS):
            fleet = GrpcFleet([f"127.0.0.1:{port}"], watch_s=0.0, silence_s=5.0)
            await fleet.start()
            while not node(fleet).connected:
                await asyncio.sleep(0.01)
            for _ in range(turn % 5):
                await asyncio.sleep(0.0)
            stop = asyncio.create_task(fleet.stop())
            _, endless = await asyncio.wait({stop}, timeout=LIMIT_S)
            for task in asyncio.all_tasks() - {asyncio.current_task()} if endless else ():
                task.cancel()
            assert not endless, f"stop {turn} does not end"
        await server.stop(None)

    asyncio.run(go())


def test_agents_that_join_and_leave_touch_no_other() -> None:
    async def body(servant: Servant, fleet: GrpcFleet, address: str) -> None:
        await until(connected(fleet))
        other = Servant()
        server, port = await serve(other)
        second = f"127.0.0.1:{port}"
        await fleet.follow((address, second))
        await until(lambda: all(one.connected for one in fleet.observe(time.monotonic()).nodes))
        assert (servant.watchers, other.watchers) == (1, 1)
        await fleet.follow((second,))
        assert [one.address for one in fleet.observe(time.monotonic()).nodes] == [second]
        (refused,) = await fleet.renew(address, 1, "job", 1, 5.0)
        assert not refused.accepted
        assert other.watchers == 1
        assert (servant.commands, other.commands) == ([], [])  # no lease was cleared
        await fleet.stop()
        await server.stop(None)

    with_fleet(body)


def test_an_agent_that_others_watch_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_fleet, "POLL_EVERY_S", 0.5)

    async def body(servant: Servant, fleet: GrpcFleet, address: str) -> None:
        await until(connected(fleet))
        fleet.watch(())
        for _ in range(3):  # each look is a stream of its own, with one message
            streams, ticks = servant.watchers, servant.ticks
            await until(lambda streams=streams: servant.watchers > streams)
            assert servant.ticks - ticks <= 3
            assert node(fleet).connected
        servant.gpus = ("G0", "G1")
        await until(lambda: len(fleet.observe(time.monotonic()).gpus) == 2)
        assert {one.every_s for one in fleet.observe(time.monotonic()).gpus} == {0.5}
        fleet.watch((address,))
        streams, ticks = servant.watchers, servant.ticks
        await until(lambda: servant.ticks > ticks + 30)
        assert servant.watchers <= streams + 1, "one stream, without looks"
        fleet.watch(())
        servant.hang = "Watch"
        await until(lambda: not node(fleet).connected)

    with_fleet(body)


def with_two(
    first: Servant, second: Servant, body: Callable[[GrpcFleet, str, str], Awaitable[None]]
) -> None:
    async def go() -> None:
        servers = [await serve(one) for one in (first, second)]
        addresses = [f"127.0.0.1:{port}" for _, port in servers]
        fleet = GrpcFleet(addresses, watch_s=0.05, silence_s=5.0)
        await fleet.start()
        try:
            await body(fleet, *addresses)
        finally:
            await fleet.stop()
            for server, _ in servers:
                await server.stop(None)

    asyncio.run(go())


async def quarantined(fleet: GrpcFleet, address: str) -> str:
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        (one,) = fleet.observe(time.monotonic(), [address]).nodes
        if one.quarantine:
            return one.quarantine
        await asyncio.sleep(0.02)
    raise AssertionError("never quarantined")


@pytest.mark.parametrize("energy_j", [float("nan"), float("inf"), -1.0])
def test_an_agent_with_a_number_that_cannot_be_is_quarantined_alone(energy_j: float) -> None:
    liar, honest = Servant(), Servant()
    liar.energy_j, honest.gpus, honest.name = energy_j, ("G1",), "n2"

    async def body(fleet: GrpcFleet, lying: str, other: str) -> None:
        why = await quarantined(fleet, lying)
        assert "gpus[0].energy_j" in why
        state = fleet.observe(time.monotonic())
        shown = {gpu.uuid: gpu for gpu in state.gpus}
        assert shown["G0"].snapshot is None, "nothing of it is believed"
        assert "quarantined" in next(n for n in state.nodes if n.address == lying).hindrance
        begun_s, honest.energy_j = time.monotonic(), 2.0
        while not fleet.observe(time.monotonic(), [other]).nodes[0].connected:
            assert time.monotonic() < begun_s + LIMIT_S
            await asyncio.sleep(0.02)
        assert fleet.observe(time.monotonic(), [other]).nodes[0].hindrance == ""

    with_two(liar, honest, body)


def test_reports_without_end_cost_the_gpu_that_they_are_of_and_no_memory() -> None:
    flooding, honest = Servant(), Servant()
    flooding.reports, honest.gpus = 5_000, ("G1",)

    async def body(fleet: GrpcFleet, lying: str, other: str) -> None:
        assert "reports is too long" in (await quarantined(fleet, lying)).replace(": ", " is ")
        assert all(one.report.uuid == "G1" for one in fleet.take_reports())

    with_two(flooding, honest, body)


def test_an_agent_says_nothing_about_a_gpu_of_another() -> None:
    owner, thief = Servant(), Servant()
    thief.name, thief.gpus, thief.generation = "n2", ("G0", "G1"), 9

    async def body(fleet: GrpcFleet, first: str, second: str) -> None:
        fleet.owners.restore(f'{{"G0": ["{first}", "n1"]}}', time.monotonic())
        begun_s = time.monotonic()
        while not all(node.connected for node in fleet.observe(time.monotonic()).nodes):
            assert time.monotonic() < begun_s + LIMIT_S
            await asyncio.sleep(0.02)
        fleet.take_reports()
        while thief.ticks < 20:
            await asyncio.sleep(0.02)
        state = fleet.observe(time.monotonic())
        assert {gpu.uuid: gpu.address for gpu in state.gpus} == {"G0": first, "G1": second}
        shown = next(gpu for gpu in state.gpus if gpu.uuid == "G0").snapshot
        assert shown.lease.generation == owner.generation
        nodes = {node.address: node for node in state.nodes}
        assert "GPU G0 of agent" in nodes[second].conflict
        assert nodes[first].conflict == ""
        sent = [one.report for one in fleet.take_reports() if one.report.uuid == "G0"]
        assert len(sent) <= owner.ticks, "the thief's reports do not count"
        assert fleet.owners.adopt("n2") == ("G0",)
        state = fleet.observe(time.monotonic())
        assert {gpu.uuid: gpu.address for gpu in state.gpus} == {"G0": second, "G1": second}

    with_two(owner, thief, body)


def test_an_error_that_nobody_foresaw_costs_one_agent_and_is_shown() -> None:
    first, second = Servant(), Servant()
    second.name, second.gpus = "n2", ("G1",)

    async def body(fleet: GrpcFleet, failing: str, other: str) -> None:
        def noticed(address: str, _: bool) -> None:
            if address == failing:
                raise ZeroDivisionError("of this test")

        fleet.noticed = noticed
        assert "ZeroDivisionError at test_fleet_grpc.py:" in await quarantined(fleet, failing)
        seen = second.ticks + 10
        await until(lambda: second.ticks > seen)
        assert fleet.observe(time.monotonic(), [other]).nodes[0].connected

    with_two(first, second, body)


def test_controllers_of_other_stores_are_known_while_they_watch() -> None:
    """A standby has the same store, and a tool that watches has none: neither is another one."""

    async def body(address: str) -> None:
        fleets = {
            name: GrpcFleet([address], watch_s=0.05, store=name[0].strip("-"))
            for name in ("a", "a standby", "b", "-tool")
        }

        def others() -> dict[str, tuple[str, ...]]:
            return {name: node(fleet).other_hosts for name, fleet in fleets.items()}

        here = ("127.0.0.1",)
        for name in ("a", "a standby", "-tool"):
            await fleets[name].start()
            await until(connected(fleets[name]))
        assert others()["a"] == ()
        await fleets["b"].start()
        await until(
            lambda: others() == {"a": here, "a standby": here, "b": here, "-tool": here * 2}
        )
        await fleets["b"].stop()
        await until(lambda: others()["a"] == ())
        await fleets["a standby"].stop()
        await fleets["a"].stop()
        await fleets["-tool"].stop()

    with RunningAgent(cards=1) as agent:
        asyncio.run(body(agent.start().ready["grpc"]))
