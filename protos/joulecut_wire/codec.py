"""Conversion of messages to protobuf and back.

A field has the same name on both sides, but for those of `_NAMES`; watts travel as integer
milliwatts, as NVML gives them. The conversions are written from the two classes, once at import, as
`dataclass` writes its methods: thousands of messages a second are decoded, so that a field must not
cost a call. Decoding raises BadInput for a message with anything outside `joulecut_wire.ranges`,
and for nothing else; narrower bounds are checked where a value is used, with a reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from sys import intern
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from joulecut_wire import messages as m
from joulecut_wire import ranges
from joulecut_wire.v1 import agent_pb2 as pb

_MW_PER_W = 1000.0
# Inner messages before those that hold them.
_PAIRS: dict[type, Any] = {
    m.Lease: pb.Lease,
    m.GpuSnapshot: pb.GpuSnapshot,
    m.GpuDescription: pb.Gpu,
    m.NodeDescription: pb.DescribeResponse,
    m.OperationReport: pb.OperationReport,
    m.PipelineShape: pb.PipelineShape,
    m.IterationReport: pb.IterationReport,
    m.Allocation: pb.Allocation,
    m.IterationTiming: pb.IterationTiming,
    m.ReportFault: pb.ReportFault,
    m.CarriedOut: pb.CarriedOut,
    m.Watcher: pb.Watcher,
    m.WatchTick: pb.WatchResponse,
    m.ScheduleStep: pb.ProgramStep,
    m.TimedStep: pb.TimedStep,
    m.Setting: pb.Setting,
    m.Command: pb.ApplyRequest,
    m.Result: pb.Result,
}
_NAMES = {
    "backoff_s": "stands_back_s",
    "schedule_steps_max": "program_steps_max",
    "clock_schedule": "program",
}
# What `messages` says stays on the node.
_LOCAL = {
    m.GpuDescription: {"driver", "vbios"},
    m.GpuSnapshot: {"persistence", "process_ids", "mig_uuids", "power_profiles"},
}
# Fields of older agents that nothing reads.
_UNREAD = {m.OperationReport: {"durations_s"}, m.IterationReport: {"order"}}
# Fields that `decode_tick_without_gpus` leaves out: most readings are replaced by the next message
# before anything uses them.
_LATER: dict[type, dict[str, str]] = {m.WatchTick: {"gpus": "()"}}
# Words that come with every tick, of as many kinds as there are GPUs and jobs: one string each.
_KEPT = {m.GpuSnapshot: {"uuid"}, m.IterationReport: {"job", "uuid"}, m.OperationReport: {"kind"}}


def _mw(watts: float | None) -> int | None:
    return None if watts is None else round(watts * _MW_PER_W)


@lru_cache(maxsize=64)  # models of card in one cluster
def _shared(clocks_mhz: tuple[int, ...]) -> tuple[int, ...]:
    """One list of clocks for all GPUs of a model."""
    return clocks_mhz


def _written() -> tuple[dict[type, Callable[[Any], Any]], dict[type, Callable[[Any], Any]]]:
    """For each class: what makes a message of a value, and a value of a message."""
    encode: dict[type, Callable[[Any], Any]] = {}
    decode: dict[type, Callable[[Any], Any]] = {}
    for value, message in _PAIRS.items():
        known = {"value": value, "message": message, "mw": _mw, "shared": _shared, "intern": intern}
        known |= {f"to_{one.__name__}": make for one, make in encode.items()}
        known |= {f"of_{one.__name__}": make for one, make in decode.items()}
        there, back, hints = [], [], get_type_hints(value)
        names = {field.name for field in message.DESCRIPTOR.fields} - _UNREAD.get(value, set())
        local = _LOCAL.get(value, set())
        on_wire = [field for field in fields(value) if field.name not in local]
        assert tuple(on_wire) == fields(value)[: len(on_wire)], f"{value.__name__}: local last"
        for field in on_wire:
            name = _NAMES.get(field.name, field.name)
            if name not in names:
                name = name.removesuffix("_w") + "_mw"
            names.remove(name)  # KeyError: no such field in the message
            kept = field.name in _KEPT.get(value, ())
            to, of = _field(field.name, name, hints[field.name], kept=kept)
            there.append(f"{name}={to}")
            # By position, twice as fast as by name.
            back.append(_LATER.get(value, {}).get(field.name, of))
        assert not names, f"{value.__name__} lacks {names}"
        for made, text in (
            (encode, f"message({', '.join(there)})"),
            (decode, f"value({', '.join(back)})"),
        ):
            made[value] = eval(f"lambda one: {text}", known)  # noqa: S307 -- our own words
    return encode, decode


def _field(name: str, sent: str, hint: Any, *, kept: bool) -> tuple[str, str]:
    """The two expressions of a field: of `one`, a value, and of `one`, a message."""
    here, there = f"one.{name}", f"one.{sent}"
    if sent.endswith("_mw"):
        here, there = f"mw({here})", f"{there} / {_MW_PER_W}"
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        if inner in _PAIRS:
            called = inner.__name__
            return f"[to_{called}(x) for x in {here}]", f"tuple([of_{called}(x) for x in {there}])"
        several = f"tuple({there})"
        return here, f"shared({several})" if name == "clocks_mhz" else several
    if get_origin(hint) is Mapping:
        return here, f"dict({there})"
    if get_origin(hint) is UnionType:  # or None
        inner = get_args(hint)[0]
        if inner in _PAIRS:
            called = inner.__name__
            here, there = f"{here} and to_{called}({here})", f"of_{called}({there})"
        return here, f"{there} if one.HasField({sent!r}) else None"
    return here, f"intern({there})" if kept else there


_ENCODE, _DECODE = _written()


def encode_node(node: m.NodeDescription) -> pb.DescribeResponse:
    return _ENCODE[m.NodeDescription](node)  # type: ignore[no-any-return]


def decode_node(msg: pb.DescribeResponse) -> m.NodeDescription:
    ranges.check(msg)
    return _DECODE[m.NodeDescription](msg)  # type: ignore[no-any-return]


def encode_tick(tick: m.WatchTick) -> pb.WatchResponse:
    return _ENCODE[m.WatchTick](tick)  # type: ignore[no-any-return]


def decode_tick(msg: pb.WatchResponse) -> m.WatchTick:
    return replace(decode_tick_without_gpus(msg), gpus=tuple(map(decode_gpu, msg.gpus)))


def decode_tick_without_gpus(msg: pb.WatchResponse) -> m.WatchTick:
    """The tick without its GPUs, which are checked; `decode_gpu` decodes one of them."""
    ranges.check(msg)
    return _DECODE[m.WatchTick](msg)  # type: ignore[no-any-return]


def decode_gpu(msg: pb.GpuSnapshot) -> m.GpuSnapshot:
    """Of a message that was checked."""
    return _DECODE[m.GpuSnapshot](msg)  # type: ignore[no-any-return]


def encode_carried_out(command: m.CarriedOut) -> pb.CarriedOut:
    return _ENCODE[m.CarriedOut](command)  # type: ignore[no-any-return]


def encode_command(command: m.Command) -> pb.ApplyRequest:
    return _ENCODE[m.Command](command)  # type: ignore[no-any-return]


def decode_command(msg: pb.ApplyRequest) -> m.Command:
    ranges.check(msg)
    return _DECODE[m.Command](msg)  # type: ignore[no-any-return]


def encode_results(results: tuple[m.Result, ...]) -> list[pb.Result]:
    return [_ENCODE[m.Result](one) for one in results]


def decode_results(
    msg: pb.ApplyResponse | pb.RenewResponse | pb.ClearResponse,
) -> tuple[m.Result, ...]:
    ranges.check(msg)
    return tuple(_DECODE[m.Result](one) for one in msg.results)
