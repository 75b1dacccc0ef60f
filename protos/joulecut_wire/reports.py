"""Datagrams from a job to the agent of its node (version 1): one small JSON object each.

Untrusted input: the decoder returns a value or raises one `BadInput`, for any bytes.
"""

import math
from collections import Counter
from typing import Annotated

import msgspec

from joulecut_wire import strict_json
from joulecut_wire.duration import ITERATION_S_MAX
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import ORDER_DIGITS, IterationReport, OperationReport, PipelineShape

DATAGRAM_BYTES_MAX = 8192  # 64 kinds of operation fit, or times of some 600 operations
OPERATIONS_MAX = 64
# Of an iteration, for one kind: timers of asynchronous work may overlap.
BUSY_SHARE_MAX = 2.0
SUM_TOLERANCE = 0.01  # of `durations_s` against `busy_s`: senders round to few digits

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]  # a DNS name's length
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Stage = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class _Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: _Name
    count: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    busy_s: float
    durations_s: tuple[float, ...] = ()


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
    order: str = ""
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
        _check_durations(i, op)
    _check_order(raw)
    same = msgspec.structs.asdict(raw)
    del same["v"], same["ops"]
    return IterationReport(
        **same | {"shape": _shape(raw.shape) if raw.shape else None},
        operations=tuple(OperationReport(**msgspec.structs.asdict(op)) for op in raw.ops),
    )


def _shape(raw: _Shape) -> PipelineShape:
    if raw.stages is None and (raw.schedule or raw.microbatches):
        raise BadInput("datagram", "shape has no stages", "stages, 1 to 256, beside a schedule")
    return PipelineShape(**msgspec.structs.asdict(raw) | {"stages": raw.stages or 1})


def _check_durations(i: int, op: _Operation) -> None:
    if not op.durations_s:
        return
    where = f"ops[{i}].durations_s"
    if len(op.durations_s) != op.count:
        raise BadInput("datagram", f"{where} has {len(op.durations_s)} values", f"{op.count}")
    if not all(math.isfinite(one) and one >= 0.0 for one in op.durations_s):
        raise BadInput("datagram", f"{where} has a value that is no time", "seconds from 0")
    sum_s = math.fsum(op.durations_s)
    if abs(sum_s - op.busy_s) > SUM_TOLERANCE * op.busy_s:
        raise BadInput("datagram", f"{where} add up to {sum_s:g}", f"busy_s, {op.busy_s:g}")


def _check_order(raw: _Iteration) -> None:
    if not raw.order:
        return
    counts = {ORDER_DIGITS[i]: op.count for i, op in enumerate(raw.ops[: len(ORDER_DIGITS)])}
    seen = Counter(raw.order)
    wrong = next((digit for digit in seen if seen[digit] != counts.get(digit)), "")
    if wrong or len(raw.order) != sum(op.count for op in raw.ops):
        raise BadInput(
            "datagram", "order does not fit the counts", "one index of ops per operation, 0-9a-z"
        )
