"""Chakra traces: the published schema, and what is written can be read."""

import contextlib
import io
from pathlib import Path

import pytest
from google.protobuf.proto import serialize_length_prefixed
from hypothesis import given
from hypothesis import strategies as st

from joulecut_lab.trace import chakra, kineto
from joulecut_lab.trace.kernels import Collective, Kernel, Recording
from joulecut_wire.chakra.et_def_pb2 import (
    COMM_COLL_NODE,
    COMP_NODE,
    AttributeProto,
    GlobalMetadata,
    IOInfo,
    Node,
)
from joulecut_wire.errors import BadInput

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data" / "modelling"
VALUES = st.one_of(
    st.builds(AttributeProto, name=st.text(max_size=8), int64_val=st.integers(-(2**63), 2**63 - 1)),
    st.builds(AttributeProto, name=st.just("stream"), string_val=st.text(max_size=9)),
    st.builds(AttributeProto, name=st.just("comm_type"), uint32_val=st.integers(0, 20)),
    st.builds(AttributeProto, name=st.just("is_cpu_op"), bool_val=st.booleans()),
    st.builds(AttributeProto, name=st.just("comm_size"), double_val=st.floats()),
    st.builds(AttributeProto, name=st.just("device")),
)
NODES = st.lists(
    st.builds(
        Node,
        id=st.integers(0, 9) | st.integers(0, 2**64 - 1),
        name=st.text(max_size=20),
        type=st.integers(0, 7),
        data_deps=st.lists(st.integers(0, 9), max_size=5),
        start_time_micros=st.integers(0, 2**50),
        duration_micros=st.integers(0, 2**40),
        inputs=st.builds(IOInfo, shapes=st.sampled_from(["", "[[1, 2], [2]]", "[", "[[1.5], 3]"])),
        attr=st.lists(VALUES, max_size=4),
    ),
    max_size=4,
)


def test_the_schema_is_the_published_one() -> None:
    published = DATA / "chakra" / "et_def.proto"
    if not published.is_file():
        pytest.skip("the published schema is not here")
    ours = ROOT / "protos" / "joulecut_wire" / "chakra" / "et_def.proto"
    assert ours.read_text().endswith("\n\n" + published.read_text())


@given(NODES)
def test_nodes_are_read_in_order(nodes: list[Node]) -> None:
    file = io.BytesIO()
    for message in (GlobalMetadata(version="0.0.4"), *nodes):
        serialize_length_prefixed(message, file)
    assert list(chakra.decoded(file.getvalue())) == nodes


def _node(
    number: int, name: str, kind: "Node.type.ValueType", waits: tuple[int, ...], us: int,
    **more: int | bool,
) -> Node:  # fmt: skip
    fields = {bool: "bool_val", int: "int64_val"}
    attr = [AttributeProto(name=k, **{fields[type(v)]: v}) for k, v in more.items()]
    return Node(id=number, name=name, type=kind, data_deps=waits, duration_micros=us, attr=attr)


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
        chakra.decoded(chakra.written(recording, starts, times, [attributes] * len(KERNELS)))
    )


def test_a_recording_comes_back_with_its_order_energy_and_clock() -> None:
    nodes = _written(energy_j=0.5, clock_mhz=1410)
    assert [node.type for node in nodes] == [COMP_NODE, COMM_COLL_NODE, COMP_NODE, COMP_NODE]
    # streams are dependencies
    assert [list(node.data_deps) for node in nodes] == [[], [0], [0], [1, 2]]
    assert all(chakra.attributes(node)["energy_j"] == 0.5 for node in nodes)
    assert all(chakra.attributes(node)["clock_mhz"] == 1410 for node in nodes)
    again = chakra.recording(nodes, 0, "again")
    assert [k.kind for k in again.kernels] == [k.kind for k in KERNELS]
    assert [k.stream for k in again.kernels] == [7, 20, 7, 7]
    assert [k.start_s - again.kernels[0].start_s for k in again.kernels] == pytest.approx(
        [k.start_s for k in KERNELS]
    )
    assert again.kernels[1].collective == Collective(4096, "[0, 1]")


def test_without_stamps_streams_and_dependencies_give_the_order() -> None:
    nodes = [
        _node(5, "late gemm", COMP_NODE, (3,), 10, stream=7),
        _node(3, "ncclDevKernel_AllReduce", COMM_COLL_NODE, (1,), 20, stream=9, comm_type=0,
              comm_size=64),
        _node(1, "gemm", COMP_NODE, (), 10, stream=7),
        _node(2, "aten::mm", COMP_NODE, (), 99, is_cpu_op=True),
    ]  # fmt: skip
    kernels = chakra.recording(nodes, 0, "synthetic").kernels
    assert [k.name for k in kernels] == ["gemm", "ncclDevKernel_AllReduce", "late gemm"]
    assert [k.start_s for k in kernels] == pytest.approx([0.0, 1e-5, 3e-5])


def test_a_ring_of_dependencies_is_one_line() -> None:
    nodes = [_node(1, "a", COMP_NODE, (2,), 0), _node(2, "b", COMP_NODE, (1,), 0)]
    with pytest.raises(BadInput, match="wait for each other"):
        chakra.recording(nodes, 0, "ring")


def test_two_nodes_of_one_number_are_one_line() -> None:
    with pytest.raises(BadInput, match="one number"):
        chakra.recording([_node(1, "a", COMP_NODE, (), 0)] * 2, 0, "twice")


@given(NODES)
def test_any_nodes_are_a_recording_or_one_line(nodes: list[Node]) -> None:
    with contextlib.suppress(BadInput):
        chakra.recording(nodes, 0, "any")


@pytest.mark.skipif(not DATA.is_dir(), reason="published Chakra traces are not here")
def test_published_traces_are_read() -> None:
    gather = chakra.read(DATA / "astra_sim" / "all_gather.1.et", 1)
    assert [k.kind for k in gather.kernels] == ["all-gather"]
    assert not gather.timed
    assert gather.kernels[0].collective.size_bytes == 1 << 20
    ring = chakra.read(DATA / "astra_sim" / "custom_allreduce.0.et", 0)
    assert len(ring.kernels) == 35
    assert ring.timed


def test_a_length_that_no_file_can_have_is_bad_input() -> None:
    for length in (b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x7f", b"\x80" * 9 + b"\x01"):
        with pytest.raises(ValueError, match=r"\w"):
            list(chakra.decoded(b"\0" + length + b"rest"))


@pytest.mark.parametrize("digits", [30, 400, 4000])
def test_a_time_stamp_that_no_double_holds_is_bad_input(digits: int) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 10**digits, "dur": 1,
             "args": {"device": 0, "stream": 7, "correlation": 1}}  # fmt: skip
    with contextlib.suppress(BadInput):
        kineto.recording([event], 0, "trace.json")
    if digits >= 400:
        with pytest.raises(BadInput, match=r"trace\.json"):
            kineto.recording([event], 0, "trace.json")
