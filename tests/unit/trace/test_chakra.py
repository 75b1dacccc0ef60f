"""Chakra traces: our encoding is protobuf's, and what is written can be read."""

import contextlib
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from joulecut_cli.trace import chakra, chakra_wire
from joulecut_cli.trace.chakra_wire import COLLECTIVE, COMP, Node
from joulecut_cli.trace.kernels import Collective, Kernel, Recording
from joulecut_wire.errors import BadInput

DATA = Path(__file__).parents[4] / "shared" / "data" / "modelling" / "astra_sim"
DOUBLE, INT64, UINT64, STRING, BOOL, ENUM_AS_INT = 1, 3, 4, 9, 8, 5
MESSAGE, ONE, MANY = 11, 1, 3


def _schema() -> type:
    """The part of et_def.proto that is written, for protobuf's own reader."""
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="C", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, int, str]) -> None:
        made = file.message_type.add(name=name)
        for label, number, kind, count, of in fields:
            made.field.add(name=label, number=number, type=kind, label=count, type_name=of or None)

    message(
        "Attr", ("name", 1, STRING, ONE, ""), ("double_val", 3, DOUBLE, ONE, ""),
        ("int64_val", 9, INT64, ONE, ""), ("bool_val", 27, BOOL, ONE, ""),
        ("string_val", 29, STRING, ONE, ""),
    )  # fmt: skip
    message(
        "Node", ("id", 1, UINT64, ONE, ""), ("name", 2, STRING, ONE, ""),
        ("type", 3, ENUM_AS_INT, ONE, ""), ("ctrl_deps", 4, UINT64, MANY, ""),
        ("data_deps", 5, UINT64, MANY, ""), ("start_time_micros", 6, UINT64, ONE, ""),
        ("duration_micros", 7, UINT64, ONE, ""), ("attr", 10, MESSAGE, MANY, ".C.Attr"),
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("C.Node"))


VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=9), st.booleans()
)
NODES = st.lists(
    st.builds(
        Node,
        number=st.integers(0, 2**64 - 1),
        name=st.text(max_size=20),
        kind=st.integers(0, 7),
        control=st.lists(st.integers(0, 2**64 - 1), max_size=3),
        data=st.lists(st.integers(0, 2**40), max_size=5),
        start_us=st.integers(0, 2**50),
        duration_us=st.integers(0, 2**40),
        attributes=st.dictionaries(st.text(min_size=1, max_size=8), VALUES, max_size=4),
    ),
    max_size=4,
)


@given(NODES)
def test_what_is_written_is_read(nodes: list[Node]) -> None:
    assert list(chakra_wire.decode(chakra_wire.encode(nodes, "0.0.4"))) == nodes


@given(NODES)
def test_protobuf_reads_the_same(nodes: list[Node]) -> None:
    theirs = _schema()
    for node in nodes:
        read = theirs()
        read.ParseFromString(chakra_wire._encoded(node))
        assert (read.id, read.name, read.type) == (node.number, node.name, node.kind)
        assert list(read.ctrl_deps) == node.control
        assert list(read.data_deps) == node.data
        assert (read.start_time_micros, read.duration_micros) == (node.start_us, node.duration_us)
        for attribute in read.attr:
            value = node.attributes[attribute.name]
            name = {bool: "bool", int: "int64", float: "double", str: "string"}[type(value)]
            assert getattr(attribute, f"{name}_val") == value


@given(st.binary(max_size=60))
def test_any_bytes_are_a_trace_or_a_value_error(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        list(chakra_wire.decode(raw))


KERNELS = (
    Kernel("gemm", "matmul", 0, 7, 0.0, 1e-3),
    Kernel("nccl", "all-reduce", 0, 20, 1e-3, 2e-3, waits_for=(0,),
           collective=Collective(4096, "[0, 1]")),
    Kernel("gemm", "matmul", 0, 7, 1e-3, 1e-3),
    Kernel("adam_multi_tensor", "optimizer", 0, 7, 3e-3, 5e-4, waits_for=(1,)),
)  # fmt: skip


def _written(**attributes: float) -> list[Node]:
    recording = Recording("r", 0, KERNELS)
    times = [k.duration_s for k in KERNELS]
    starts = [k.start_s for k in KERNELS]
    return list(
        chakra_wire.decode(chakra.written(recording, starts, times, [attributes] * len(KERNELS)))
    )


def test_a_recording_comes_back_with_its_order_energy_and_clock() -> None:
    nodes = _written(energy_j=0.5, clock_mhz=1410)
    assert [node.kind for node in nodes] == [COMP, COLLECTIVE, COMP, COMP]
    assert [node.data for node in nodes] == [[], [0], [0], [1, 2]]  # streams are dependencies
    assert all(node.attributes["energy_j"] == 0.5 for node in nodes)
    assert all(node.attributes["clock_mhz"] == 1410 for node in nodes)
    again = chakra.recording(nodes, 0, "again")
    assert [k.kind for k in again.kernels] == [k.kind for k in KERNELS]
    assert [k.stream for k in again.kernels] == [7, 20, 7, 7]
    assert [k.start_s - again.kernels[0].start_s for k in again.kernels] == pytest.approx(
        [k.start_s for k in KERNELS]
    )
    assert again.kernels[1].collective == Collective(4096, "[0, 1]")


def test_without_stamps_streams_and_dependencies_give_the_order() -> None:
    nodes = [
        Node(5, "late gemm", COMP, data=[3], duration_us=10, attributes={"stream": 7}),
        Node(3, "ncclDevKernel_AllReduce", COLLECTIVE, data=[1], duration_us=20,
             attributes={"stream": 9, "comm_type": 0, "comm_size": 64}),
        Node(1, "gemm", COMP, duration_us=10, attributes={"stream": 7}),
        Node(2, "aten::mm", COMP, duration_us=99, attributes={"is_cpu_op": True}),
    ]  # fmt: skip
    kernels = chakra.recording(nodes, 0, "synthetic").kernels
    assert [k.name for k in kernels] == ["gemm", "ncclDevKernel_AllReduce", "late gemm"]
    assert [k.start_s for k in kernels] == pytest.approx([0.0, 1e-5, 3e-5])


def test_a_ring_of_dependencies_is_one_line() -> None:
    nodes = [Node(1, "a", COMP, data=[2]), Node(2, "b", COMP, data=[1])]
    with pytest.raises(BadInput, match="wait for each other"):
        chakra.recording(nodes, 0, "ring")


def test_two_nodes_of_one_number_are_one_line() -> None:
    with pytest.raises(BadInput, match="one number"):
        chakra.recording([Node(1, "a", COMP), Node(1, "b", COMP)], 0, "twice")


@given(NODES)
def test_any_nodes_are_a_recording_or_one_line(nodes: list[Node]) -> None:
    with contextlib.suppress(BadInput):
        chakra.recording(nodes, 0, "any")


@pytest.mark.skipif(not DATA.is_dir(), reason="published Chakra traces are not here")
def test_published_traces_are_read() -> None:
    gather = chakra.read(DATA / "all_gather.1.et", 1)
    assert [k.kind for k in gather.kernels] == ["all-gather"]
    assert not gather.timed
    assert gather.kernels[0].collective is not None
    assert gather.kernels[0].collective.size_bytes == 1 << 20
    ring = chakra.read(DATA / "custom_allreduce.0.et", 0)
    assert len(ring.kernels) == 35
    assert ring.timed
