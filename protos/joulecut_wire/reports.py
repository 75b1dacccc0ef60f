"""Datagrams from a job to the agent of its node (version 1): one small JSON object each.

Untrusted input: the decoder returns a value or raises one `BadInput`, for any bytes.
"""

import math
from typing import Annotated

import msgspec

from joulecut_wire import strict_json
from joulecut_wire.duration import ITERATION_S_MAX
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import IterationReport, OperationReport, PipelineShape

DATAGRAM_BYTES_MAX = 8192  # 64 kinds of operation fit
OPERATIONS_MAX = 64
# Of an iteration, for one kind: timers of asynchronous work may overlap.
BUSY_SHARE_MAX = 2.0

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]  # a DNS name's length
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Stage = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class _Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: _Name
    count: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    busy_s: float
    durations_s: object = None  # of each operation, by older clients: not read


class _Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schedule: Annotated[str, msgspec.Meta(max_length=64)] = ""
    stages: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    microbatches: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    tensor_parallel: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1
    data_parallel: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1


class _Iteration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: Annotated[int, msgspec.Meta(ge=1, le=1)]
    job: _Name
    uuid: _Name
    stage: _Stage
    iteration: _Count
    duration_s: float
    ops: Annotated[tuple[_Operation, ...], msgspec.Meta(max_length=OPERATIONS_MAX)] = ()
    peer_iteration_time_s: float | None = None
    order: object = None  # of operations, by older clients: not read
    age_s: Annotated[float, msgspec.Meta(ge=0.0, le=ITERATION_S_MAX)] = 0.0
    shape: _Shape | None = None
    replica: _Stage | None = None


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Begin or end of one operation, from jobs that report operations (level L2)."""

    v: Annotated[int, msgspec.Meta(ge=1, le=1)]
    job: _Name
    uuid: _Name
    mark: Annotated[str, msgspec.Meta(pattern="^(begin|end)$")]
    kind: _Name
    stage: _Stage
    microbatch: _Count
    iteration: _Count
    t_ns: _Count


_iteration = msgspec.json.Decoder(_Iteration)
_mark = msgspec.json.Decoder(Mark)


def decode(datagram: bytes) -> IterationReport | Mark:
    """Decodes one datagram. Raises BadInput, and nothing else."""
    if len(datagram) > DATAGRAM_BYTES_MAX:
        raise BadInput("datagram", f"{len(datagram)} bytes", f"at most {DATAGRAM_BYTES_MAX}")
    try:
        names = strict_json.loads(datagram)  # first: msgspec accepts a key that is given twice
        if isinstance(names, dict) and "mark" in names:
            return _mark.decode(datagram)
        return _checked(_iteration.decode(datagram))
    except BadInput:
        raise
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadInput(
            "datagram", str(error), "a version 1 report or mark (docs/integrations.md#job-reports)"
        ) from None


def _checked(raw: _Iteration) -> IterationReport:
    for name, value in (
        ("duration_s", raw.duration_s),
        ("peer_iteration_time_s", raw.peer_iteration_time_s),
        *((f"ops[{i}].busy_s", op.busy_s) for i, op in enumerate(raw.ops)),
    ):
        if value is None:
            continue
        low_ok = value > 0 if name == "duration_s" or name.startswith("peer") else value >= 0
        if not (math.isfinite(value) and low_ok and value <= ITERATION_S_MAX):
            raise BadInput("datagram", f"{name} is {value}", f"seconds up to {ITERATION_S_MAX:g}")
    kinds = set[str]()
    for i, op in enumerate(raw.ops):
        if op.kind in kinds:
            raise BadInput("datagram", f"ops[{i}] is {op.kind!r} again", "one entry per kind")
        kinds.add(op.kind)
        most_s = BUSY_SHARE_MAX * raw.duration_s if op.count else 0.0
        if op.busy_s > most_s:
            raise BadInput(
                "datagram",
                f"ops[{i}].busy_s is {op.busy_s:g} with count {op.count}",
                f"at most {most_s:g} there",
            )
    same = msgspec.structs.asdict(raw)
    del same["v"], same["ops"], same["order"]
    return IterationReport(
        **same | {"shape": _shape(raw.shape) if raw.shape else None},
        operations=tuple(OperationReport(op.kind, op.count, op.busy_s) for op in raw.ops),
    )


def _shape(raw: _Shape) -> PipelineShape:
    if raw.stages is None and (raw.schedule or raw.microbatches):
        raise BadInput("datagram", "shape has no stages", "stages, 1 to 256, beside a schedule")
    return PipelineShape(**msgspec.structs.asdict(raw) | {"stages": raw.stages or 1})
