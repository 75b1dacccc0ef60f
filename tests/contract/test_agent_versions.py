"""A version works with the one before and the one after it: what is missing has a meaning, what is
unknown is passed over.

The older wire is this one without the fields that came since; the newer one has a field more in
each message.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from running_agent import PATIENCE_S, RunningAgent, eventually

from joulecut_wire import codec
from joulecut_wire import messages as m
from joulecut_wire.v1 import agent_pb2 as pb

SINCE_0_1 = {  # what the first version of this wire did not have
    "DescribeResponse": {"stopped", "roles", "program_steps_max", "timed_steps_max"},
    "Gpu": {"power_controllable", "set_latency_p95_s", "set_latency_spread_s"},
    "WatchResponse": {"allocations", "stopped", "timings"},
    "GpuSnapshot": {"drift", "stands_back_s", "slow_reason"},
    "Lease": {"power_limit_mw", "clock_lowest_mhz"},
    "Setting": {"power_limit_mw", "program", "shortest_step_s", "timed_steps", "iteration_time_s"},
}
NEWS = 1000  # a field number that no version has yet
SERVICE = "/joulecut_wire.v1.AgentService/"
TICK = m.WatchTick(
    sequence=3,
    age_s=0.5,
    gpus=(
        m.GpuSnapshot(
            "GPU-1", energy_j=5.0, lease=m.Lease("blue", 1, 2, 0, 900, 9.0, 300.0),
            drift="external_writer", backoff_s=60.0, slow_reason="thermal",
        ),
    ),
    stopped="the file",
)  # fmt: skip


def _messages(*, newer: bool) -> dict[str, Any]:
    """Message classes of another version, under the same names in a pool of their own."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        if newer:
            message.field.add(name="news", number=NEWS, type=9, label=1)  # one string
            continue
        gone = SINCE_0_1.get(message.name, set())
        kept = [field for field in message.field if field.name not in gone]
        assert len(kept) == len(message.field) - len(gone)
        del message.field[:]
        message.field.extend(kept)
        used = sorted({field.oneof_index for field in kept if field.HasField("oneof_index")})
        oneofs = [message.oneof_decl[index] for index in used]
        del message.oneof_decl[:]
        message.oneof_decl.extend(oneofs)
        for field in message.field:
            if field.HasField("oneof_index"):
                field.oneof_index = used.index(field.oneof_index)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))
        for name in pb.DESCRIPTOR.message_types_by_name
    }


OLDER, NEWER = _messages(newer=False), _messages(newer=True)


@pytest.fixture(scope="module")
def node() -> Iterator[RunningAgent]:
    with RunningAgent(cards=2) as running:
        yield running.start()


def _call(node: RunningAgent, version: dict[str, Any], name: str, request: Any) -> Any:
    method = node.channel.unary_unary(
        SERVICE + name,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=version[f"{name}Response"].FromString,
    )
    return method(request, timeout=PATIENCE_S)


@pytest.mark.parametrize(("version", "epoch"), [(OLDER, 1), (NEWER, 2)])
def test_an_agent_serves_another_versions_controller(
    node: RunningAgent, version: dict[str, Any], epoch: int
) -> None:
    described = _call(node, version, "Describe", version["DescribeRequest"]())
    uuid = described.gpus[0].uuid
    assert described.gpus[0].controllable
    settings = [version["Setting"](uuid=uuid, clock_max_mhz=1005)]
    order = version["ApplyRequest"](
        epoch=epoch, job="blue", generation=1, ttl_s=30.0, settings=settings, reason="r"
    )
    renewal = version["RenewRequest"](epoch=epoch, job="blue", generation=1, ttl_s=30.0)
    clearing = version["ClearRequest"](epoch=epoch, job="blue")
    for message in (order, order.settings[0], renewal, clearing):
        if version is NEWER:
            message.news = "what nobody knows yet"
    assert _call(node, version, "Apply", order).results[0].accepted
    assert node.gpus.asked_mhz(0)[1] == 1005
    assert _call(node, version, "Renew", renewal).results[0].accepted
    assert _call(node, version, "Clear", clearing).results[0].accepted
    eventually("given back", lambda: not node.locked())


def test_a_controller_reads_an_older_agents_words() -> None:
    raw = codec.encode_tick(TICK).SerializeToString()
    old = OLDER["WatchResponse"].FromString(raw)
    old.DiscardUnknownFields()
    tick = codec.decode_tick(pb.WatchResponse.FromString(old.SerializeToString()))
    (gpu,) = tick.gpus
    assert (tick.sequence, tick.stopped, tick.allocations, tick.timings) == (3, "", (), ())
    assert (gpu.energy_j, gpu.drift, gpu.backoff_s, gpu.slow_reason) == (5.0, "", 0.0, "")
    assert gpu.lease == m.Lease("blue", 1, 2, 0, 900, 9.0, None)
    node = OLDER["DescribeResponse"](node="n1", gpus=[OLDER["Gpu"](uuid="GPU-1")])
    described = codec.decode_node(pb.DescribeResponse.FromString(node.SerializeToString()))
    assert (described.stopped, described.roles) == ("", ())
    assert not described.gpus[0].power_controllable, "what it does not say it cannot do"


def test_a_controller_reads_a_newer_agents_words() -> None:
    new = NEWER["WatchResponse"].FromString(codec.encode_tick(TICK).SerializeToString())
    new.news = new.gpus[0].news = new.gpus[0].lease.news = "what nobody knows yet"
    assert codec.decode_tick(pb.WatchResponse.FromString(new.SerializeToString())) == TICK
