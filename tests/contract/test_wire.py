"""What is said on the wire comes out as it went in, and no bytes can break a reader."""

import json
import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_wire import codec, document, ranges, reports
from joulecut_wire import messages as m
from joulecut_wire.errors import BadInput, Unavailable
from joulecut_wire.v1 import agent_pb2 as pb

NAMES = st.text(max_size=30)
ITERATION_S = st.floats(0, 86_400.0)  # the longest iteration
# Of numbers, by the name of their field or by its last word, which is its unit.
NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "age_s": ITERATION_S,
    "busy_s": ITERATION_S,
    "bytes": st.integers(0, 2**60),
    "celsius": st.floats(-40.0, 200.0),
    "count": st.integers(0, 10**6),
    "duration_s": st.floats(1e-6, 86_400.0),
    "epoch": st.integers(0, 2**64 - 1),
    "epoch_seen": st.integers(0, 2**64 - 1),
    "index": st.integers(0, 65_535),
    "max": st.integers(0, 10**6),
    "mhz": st.integers(0, 100_000),
    "microbatch": st.integers(0, 65_535),
    "microbatches": st.integers(0, 4096),
    "minute": st.floats(0, 1e6),
    "parallel": st.integers(0, 65_535),
    "peer_iteration_time_s": ITERATION_S,
    "ratio": st.floats(0, 100.0),
    "replica": st.integers(0, 65_535),
    "s": st.floats(0, 1e6),
    "j": st.floats(0, 1e6),
    "stage": st.integers(0, 65_535),
    "stages": st.integers(0, 256),
    "w": st.integers(0, 2_000_000).map(lambda milliwatts: milliwatts / 1000.0),
}
COUNTERS = st.integers(0, 2**63)
ON_THE_NODE = {"driver", "vbios", "persistence", "process_ids", "mig_uuids", "power_profiles"}


def drawn(name: str, kind: Any) -> st.SearchStrategy[Any]:
    """A value of a field."""
    if is_dataclass(kind):
        return messages(kind)
    if get_origin(kind) is tuple:
        return st.lists(drawn(name, get_args(kind)[0]), max_size=3).map(tuple)
    if get_origin(kind) is Mapping:
        return st.dictionaries(NAMES, NAMES, max_size=2)
    if get_origin(kind) is UnionType:
        return st.none() | drawn(name, get_args(kind)[0])
    if kind in (str, bool):
        return NAMES if kind is str else st.booleans()
    return NUMBERS.get(name, NUMBERS.get(name.rpartition("_")[2], COUNTERS))


def messages(kind: Any) -> st.SearchStrategy[Any]:
    """Messages with every field that is on the wire."""
    hints = get_type_hints(kind)
    sent = {name: hint for name, hint in hints.items() if name not in ON_THE_NODE}
    return st.builds(kind, **{name: drawn(name, hint) for name, hint in sent.items()})


@given(messages(m.WatchTick))
def test_a_tick_survives_the_wire_with_absence_kept_absent(tick: m.WatchTick) -> None:
    raw = codec.encode_tick(tick).SerializeToString()
    assert codec.decode_tick(pb.WatchResponse.FromString(raw)) == tick


@given(messages(m.NodeDescription))
def test_a_description_survives_the_wire(node: m.NodeDescription) -> None:
    raw = codec.encode_node(node).SerializeToString()
    assert codec.decode_node(pb.DescribeResponse.FromString(raw)) == node


@given(messages(m.Command))
def test_a_command_survives_the_wire(command: m.Command) -> None:
    raw = codec.encode_command(command).SerializeToString()
    assert codec.decode_command(pb.ApplyRequest.FromString(raw)) == command


@given(st.lists(messages(m.Result), max_size=4))
def test_results_survive_the_wire(results: list[m.Result]) -> None:
    answer = pb.ApplyResponse(results=codec.encode_results(tuple(results)))
    assert codec.decode_results(answer) == tuple(results)


MESSAGES = {about.name: about for about in pb.DESCRIPTOR.message_types_by_name.values()}
DOUBLES = sorted(
    (name, field.name)
    for name, about in MESSAGES.items()
    for field in about.fields
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT)
)


def test_every_number_of_every_message_has_a_range() -> None:
    for about in MESSAGES.values():
        for field in about.fields:
            if field.message_type is None and field.cpp_type not in (
                field.CPPTYPE_STRING,
                field.CPPTYPE_BOOL,
            ):
                low, high = ranges.range_of(field)
                assert low < high, (about.name, field.name)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -300.0, -1e16, 1e16])
@pytest.mark.parametrize(("message", "field"), DOUBLES)
def test_a_number_out_of_its_range_is_refused_wherever_it_stands(
    message: str, field: str, value: float
) -> None:
    low, high = ranges.range_of(MESSAGES[message].fields_by_name[field])
    if low <= value <= high:  # the age of no reading is infinite, a sample may be negative
        assert (message, field) in (("WatchResponse", "age_s"), ("Sample", "value"))
        return
    wrong = getattr(pb, message)()
    if message == "IterationReport":
        wrong.duration_s = 1.0
    if MESSAGES[message].fields_by_name[field].default_value == []:
        getattr(wrong, field).extend([1.0, value, 1.0])
    else:
        setattr(wrong, field, value)
    with pytest.raises(BadInput, match=field):
        ranges.check(wrong)


@pytest.mark.parametrize(
    ("tick", "where"),
    [
        (pb.WatchResponse(gpus=[pb.GpuSnapshot(uuid="G" * 8193)]), r"gpus\[0\]\.uuid"),
        (pb.WatchResponse(gpus=[pb.GpuSnapshot()] * 65), "gpus"),
        (
            pb.WatchResponse(allocations=[pb.Allocation(labels={"app": "x" * 8193})]),
            r"allocations\[0\]\.labels",
        ),
        (pb.WatchResponse(gpus=[pb.GpuSnapshot(event_reasons=["x" * 8193])]), "event_reasons"),
        (pb.WatchResponse(faults=[pb.ReportFault()] * 8193), "faults"),
    ],
)
def test_texts_and_lists_are_bounded(tick: pb.WatchResponse, where: str) -> None:
    with pytest.raises(BadInput, match=where):
        codec.decode_tick(tick)


GOOD = {
    "v": 1,
    "job": "gpt3",
    "uuid": "GPU-1",
    "stage": 3,
    "iteration": 7,
    "duration_s": 0.4,
    "ops": [{"kind": "forward", "count": 48, "busy_s": 0.12}],
    "peer_iteration_time_s": 0.5,
}


def test_a_report_reads_as_documented() -> None:
    report = reports.decode(json.dumps(GOOD).encode())
    assert report == m.IterationReport(
        job="gpt3",
        uuid="GPU-1",
        stage=3,
        iteration=7,
        duration_s=0.4,
        operations=(m.OperationReport("forward", 48, 0.12),),
        peer_iteration_time_s=0.5,
    )


def test_times_of_single_operations_from_earlier_clients_and_agents_are_not_read() -> None:
    one = {"kind": "forward", "count": 2, "busy_s": 0.2, "durations_s": [0.1, 0.1]}
    report = reports.decode(json.dumps({**GOOD, "ops": [one], "order": "00"}).encode())
    assert isinstance(report, m.IterationReport)
    assert report.operations == (m.OperationReport("forward", 2, 0.2),)
    busy = pb.OperationReport(kind="forward", count=2, busy_s=0.2, durations_s=[0.1, 0.1])
    told = pb.IterationReport(job="a", uuid="b", duration_s=1.0, operations=[busy], order="00")
    tick = codec.decode_tick(pb.WatchResponse(reports=[told]))
    assert tick.reports[0].operations == report.operations


def test_a_mark_reads_as_documented() -> None:
    mark = reports.decode(
        b'{"v": 1, "job": "gpt3", "uuid": "GPU-1", "mark": "begin", "kind": "forward",'
        b' "stage": 0, "microbatch": 2, "iteration": 9, "t_ns": 123}'
    )
    assert isinstance(mark, reports.Mark)
    assert (mark.mark, mark.microbatch, mark.t_ns) == ("begin", 2, 123)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"v": 2}, "v"),
        ({"duration_s": 0}, "duration_s"),
        ({"duration_s": -1.0}, "duration_s"),
        ({"duration_s": 1e9}, "duration_s"),
        ({"duration_s": "fast"}, "duration_s"),
        ({"peer_iteration_time_s": 0}, "peer_iteration_time_s"),
        ({"stage": -1}, "stage"),
        ({"job": ""}, "job"),
        ({"uuid": None}, "uuid"),
        ({"surprise": 1}, "surprise"),
        ({"ops": [{"kind": "forward", "count": 1, "busy_s": -1}]}, "busy_s"),
        ({"ops": [{"kind": "forward", "count": 0, "busy_s": 0.1}]}, "count 0"),
        ({"ops": [{"kind": "forward", "count": 48, "busy_s": 100.0}]}, "busy_s"),
        ({"ops": [{"kind": "forward", "count": 1, "busy_s": 1.0}] * 65}, "ops"),
        ({"shape": {"schedule": "1f1b"}}, "stages"),
        ({"shape": {"stages": 0}}, "stages"),
    ],
)
def test_a_broken_report_is_one_sentence_that_names_the_field(
    change: dict[str, object], word: str
) -> None:
    with pytest.raises(BadInput) as caught:
        reports.decode(json.dumps({**GOOD, **change}).encode())
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            key: st.none() | st.booleans() | st.integers() | st.floats() | st.text() for key in GOOD
        },
    )
)
def test_no_values_break_the_report_reader(change: dict[str, object]) -> None:
    try:
        report = reports.decode(json.dumps({**GOOD, **change}).encode())
    except BadInput:
        return
    assert isinstance(report, m.IterationReport)
    assert math.isfinite(report.duration_s)
    assert report.duration_s > 0


def test_yaml_remembers_lines() -> None:
    doc = document.parse(b"a: 1\njobs:\n  - name: x\n    slo:\n      max: 2%\n", "p.yaml")
    assert doc.where(("jobs", 0, "slo", "max")) == "p.yaml:5: jobs[0].slo.max"
    assert doc.where(("jobs", 0, "nowhere")) == "p.yaml:3: jobs[0].nowhere"


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"a: 1\na: 2\n", "p.yaml:2: a: key given twice; allowed: one of each"),
        (b"a: &x 1\nb: *x\n", "p.yaml:2: aliases (*name) are not supported"),
        (  # without libyaml, and with it
            b"a: [1,\n",
            ("p.yaml:2: expected the node", "p.yaml:2: did not find expected node"),
        ),
        (b"\xff", "p.yaml: byte 0 is not UTF-8"),
        (b"? [a]\n: 1\n", "p.yaml:1: a key that is not a word"),
        (
            b"x: " + b"[" * 51 + b"]" * 51,
            "p.yaml: nested too deeply; allowed: at most 200000, in 50",
        ),
        (b"x: " + b"[\n" * 500_000, "p.yaml: nested too deeply"),
        (b"- " * 500_000, "p.yaml: nested too deeply"),
        (b"a:\n  - 0x" + b"f" * 300, "p.yaml:2: a[0]: a huge number; allowed: whole numbers up to"),
        (b"a:\n  - -0x" + b"f" * 5000, "p.yaml:2: a[0]: a huge number"),
        (b'a: 1\nb: "\\e[31m"\n"\\e": 1\nb: 2\n', "p.yaml:4: b: key given twice"),
    ],
)
def test_unreadable_yaml_is_one_line_with_a_place(
    raw: bytes, complaint: str | tuple[str, ...]
) -> None:
    with pytest.raises(BadInput) as caught:
        document.parse(raw, "p.yaml")
    assert str(caught.value).startswith(complaint)


def test_a_complaint_is_printable_on_one_line_whatever_was_put_in() -> None:
    for nasty in ("a\nb", "a\u2028b", "a\x1b[31mb", "a\x00b", "a\udcffb", "a\tb", "a\x85b"):
        for error in (BadInput(nasty, nasty, nasty), Unavailable(f"it says {nasty}")):
            assert str(error).isprintable()
            assert str(error).encode()
