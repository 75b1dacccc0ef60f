"""What is said on the wire comes out as it went in, and no bytes can break a reader."""

import json
import math

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from joulecut_wire import codec, document, ranges, reports
from joulecut_wire import messages as m
from joulecut_wire.errors import BadInput, Unavailable
from joulecut_wire.v1 import agent_pb2 as pb

names = st.text(min_size=1, max_size=30)
u64 = st.integers(0, 2**64 - 1)
numbers = st.integers(0, 2**63)
ranks = st.integers(0, 65_535)
clocks = st.integers(0, 100_000)
seconds = st.floats(0, 1e6)
iteration_s = st.floats(0, 86_400.0)
shares = st.floats(0, 100.0)
watts = st.integers(0, 2_000_000).map(lambda milliwatts: milliwatts / 1000.0)


def optional(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


leases = st.builds(
    m.Lease,
    job=names,
    epoch=u64,
    generation=numbers,
    clock_min_mhz=clocks,
    clock_max_mhz=clocks,
    expires_in_s=seconds,
    power_limit_w=optional(watts),
    clock_lowest_mhz=clocks,
)
gpu_snapshots = st.builds(
    m.GpuSnapshot,
    uuid=names,
    power_average_w=optional(watts),
    power_instant_w=optional(watts),
    energy_j=optional(seconds),
    clock_sm_mhz=optional(clocks),
    clock_memory_mhz=optional(clocks),
    temperature_celsius=optional(st.floats(-40.0, 200.0)),
    utilization_gpu_ratio=optional(shares),
    utilization_memory_ratio=optional(shares),
    memory_used_bytes=optional(st.integers(0, 2**60)),
    power_limit_enforced_w=optional(watts),
    event_reasons=st.tuples(names),
    lease=optional(leases),
    drift=names,
    backoff_s=seconds,
    slow_reason=names,
)
allocations = st.builds(
    m.Allocation,
    uuid=names,
    job=names,
    namespace=names,
    pod=names,
    source=names,
    labels=st.dictionaries(names, names, max_size=2),
)
iteration_reports = st.builds(
    m.IterationReport,
    job=names,
    uuid=names,
    stage=ranks,
    iteration=numbers,
    duration_s=st.floats(1e-6, 86_400.0),
    operations=st.tuples(
        st.builds(
            m.OperationReport,
            kind=names,
            count=st.integers(0, 10**6),
            busy_s=iteration_s,
            durations_s=st.lists(st.floats(0.0, 86_400.0, width=32), max_size=3).map(tuple),
        )
    ),
    order=names,
    peer_iteration_time_s=optional(iteration_s),
    source=names,
    age_s=iteration_s,
    shape=optional(
        st.builds(
            m.PipelineShape,
            schedule=names,
            stages=st.integers(0, 256),
            microbatches=st.integers(0, 4096),
            tensor_parallel=ranks,
            data_parallel=ranks,
        )
    ),
)
report_faults = st.builds(
    m.ReportFault,
    job=names,
    uuids=st.tuples(names),
    source=names,
    text=names,
    count=numbers,
    age_s=seconds,
)
iteration_timings = st.builds(
    m.IterationTiming,
    job=names,
    uuid=names,
    source=names,
    iteration_time_s=seconds,
    start_jitter_s=seconds,
    starts_per_minute=seconds,
    missed_ratio=shares,
    change_error_s=seconds,
)
ticks = st.builds(
    m.WatchTick,
    sequence=numbers,
    age_s=seconds,
    gpus=st.lists(gpu_snapshots, max_size=3).map(tuple),
    reports=st.lists(iteration_reports, max_size=3).map(tuple),
    reports_dropped=numbers,
    allocations=st.lists(allocations, max_size=3).map(tuple),
    stopped=names,
    timings=st.lists(iteration_timings, max_size=3).map(tuple),
    faults=st.lists(report_faults, max_size=3).map(tuple),
)
nodes = st.builds(
    m.NodeDescription,
    node=names,
    agent_version=names,
    boot_id=names,
    epoch_seen=u64,
    ttl_max_s=seconds,
    gpus=st.tuples(
        st.builds(
            m.GpuDescription,
            uuid=names,
            index=ranks,
            model=names,
            clocks_mhz=st.lists(clocks, max_size=5).map(tuple),
            clock_min_mhz=clocks,
            clock_max_mhz=clocks,
            power_limit_default_w=watts,
            power_limit_min_w=watts,
            power_limit_max_w=watts,
            controllable=st.booleans(),
            reason=names,
            min_dwell_s=seconds,
            power_controllable=st.booleans(),
            set_latency_p95_s=seconds,
            set_latency_spread_s=seconds,
        )
    ),
    stopped=names,
    roles=st.lists(names, max_size=4).map(tuple),
    schedule_steps_max=st.integers(0, 10**6),
    timed_steps_max=st.integers(0, 10**6),
)
commands = st.builds(
    m.Command,
    epoch=u64,
    job=names,
    generation=numbers,
    ttl_s=seconds,
    settings=st.lists(
        st.builds(
            m.Setting,
            uuid=names,
            clock_max_mhz=clocks,
            clock_min_mhz=clocks,
            power_limit_w=optional(watts),
            clock_schedule=st.lists(
                st.builds(m.ScheduleStep, names, clocks, optional(numbers), st.booleans()),
                max_size=3,
            ).map(tuple),
            shortest_step_s=seconds,
            timed_steps=st.lists(st.builds(m.TimedStep, seconds, clocks), max_size=3).map(tuple),
            iteration_time_s=seconds,
        ),
        max_size=4,
    ).map(tuple),
    reason=names,
)


@given(ticks)
def test_a_tick_survives_the_wire_with_absence_kept_absent(tick: m.WatchTick) -> None:
    raw = codec.encode_tick(tick).SerializeToString()
    assert codec.decode_tick(pb.WatchResponse.FromString(raw)) == tick


@given(nodes)
def test_a_description_survives_the_wire(node: m.NodeDescription) -> None:
    raw = codec.encode_node(node).SerializeToString()
    assert codec.decode_node(pb.DescribeResponse.FromString(raw)) == node


@given(commands)
def test_a_command_survives_the_wire(command: m.Command) -> None:
    raw = codec.encode_command(command).SerializeToString()
    assert codec.decode_command(pb.ApplyRequest.FromString(raw)) == command


@given(st.lists(st.builds(m.Result, uuid=names, accepted=st.booleans(), reason=names), max_size=4))
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


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_raise_one_error(raw: bytes) -> None:
    for decode, kind in (
        (codec.decode_tick, pb.WatchResponse),
        (codec.decode_node, pb.DescribeResponse),
        (codec.decode_command, pb.ApplyRequest),
        (codec.decode_results, pb.ApplyResponse),
    ):
        try:
            message = kind.FromString(raw)
        except DecodeError:
            continue
        try:
            decode(message)
        except BadInput as error:
            assert "\n" not in str(error)


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
        ({"ops": [{"kind": "f", "count": 2, "busy_s": 0.2, "durations_s": [0.2]}]}, "1 values"),
        ({"ops": [{"kind": "f", "count": 1, "busy_s": 0.2, "durations_s": [-0.2]}]}, "no time"),
        ({"ops": [{"kind": "f", "count": 1, "busy_s": 0.2, "durations_s": [0.3]}]}, "add up"),
        ({"ops": [{"kind": "f", "count": 2, "busy_s": 0.2}], "order": "0"}, "order"),
        ({"ops": [{"kind": "f", "count": 2, "busy_s": 0.2}], "order": "01"}, "order"),
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


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_no_bytes_break_the_report_reader(raw: bytes) -> None:
    try:
        report = reports.decode(raw)
    except BadInput:
        return
    assert isinstance(report, m.IterationReport | reports.Mark)


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


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_break_the_yaml_reader(raw: bytes) -> None:
    try:
        document.parse(raw, "policy.yaml")
    except BadInput as error:
        assert str(error).startswith("policy.yaml")
        assert "\n" not in str(error)


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


def test_nested_aliases_cannot_blow_up() -> None:
    laughs = b"a: &a [x]\n" + b"".join(
        f"{n}: &{n} [*{p}, *{p}]\n".encode() for p, n in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(BadInput, match="aliases"):
        document.parse(laughs, "p.yaml")
