"""Iterations of training jobs from OpenTelemetry spans.

Megatron-LM and NeMo export one span per iteration and rank, and one per forward and backward of a
microbatch. Spans are timed on the CPU, which runs ahead of the GPU: an iteration is therefore
measured from the end of one span to the end of the next, and the spans of microbatches give the
schedule but no times. Untrusted input. Not thread-safe.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.json_format import Parse, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from joulecut_agent.jobs.pipeline_shape import shape_of
from joulecut_wire.duration import ITERATION_S_MAX
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import PipelineShape

# Names by generation of Megatron-LM: August 2026, and since its move to `nv.dl.*`.
ITERATION = frozenset(
    ("megatron.train_step", "megatron.train.iteration", "nv.dl.training.iteration")
)
FORWARD = frozenset(("megatron.microbatch.forward", "nv.mcore.microbatch.forward"))
BACKWARD = frozenset(("megatron.microbatch.backward", "nv.mcore.microbatch.backward"))
NUMBER = ("nv.dl.training.step", "megatron.iteration", "dl.iteration")
RANK = ("nv.dl.rank", "dl.rank")
LOCAL_RANK = ("nv.dl.local_rank", "dl.local_rank")
WORLD = ("nv.dl.world_size", "dl.world_size")
TENSOR = ("nv.dl.topology.size.tp", "dl.tensor_parallel.size")
PIPELINE = ("nv.dl.topology.size.pp", "dl.pipeline_parallel.size")
DATA = ("nv.dl.topology.size.dp", "dl.data_parallel.size")
STAGE = ("dl.pipeline_parallel.rank",)
GPU = ("nv.gpu.uuid",)
JOB = ("slurm.job.id", "k8s.job.name", "nemo.run.id")
DEFAULT_SERVICES = frozenset(("megatron-lm", "megatron-training", "nemo", "unknown_service"))

RANKS_MAX = 256  # followed at once: 16 for each GPU of the largest node
OPERATIONS_KEPT = 16_384  # of one rank: two iterations of 4,096 microbatches
GAP_RATIO_MAX = 1.5  # a longer gap between two iterations is a checkpoint or an evaluation
NS = 1e-9


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """A rank as its exporter describes it; None and 0 where it does not."""

    job: str
    rank: int | None
    local_rank: int | None
    uuid: str
    pid: int
    stage: int


@dataclass(frozen=True, slots=True)
class SpanIteration:
    """One iteration of one rank, with its end on the host's wall clock."""

    who: RankIdentity
    number: int
    duration_s: float
    ended_unix_s: float
    shape: PipelineShape | None


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """What one request completes, and what in it could not be used."""

    iterations: tuple[SpanIteration, ...]
    faults: tuple[tuple[RankIdentity, str], ...]


class _Sizes(NamedTuple):
    """0 where the exporter does not say."""

    stages: int
    tensor_parallel: int
    data_parallel: int


class _Ended(NamedTuple):
    start_ns: int
    end_ns: int
    number: int | None


@dataclass(slots=True)
class _Rank:
    # Start in ns, kind.
    operations: deque[tuple[int, str]] = field(
        default_factory=lambda: deque(maxlen=OPERATIONS_KEPT)
    )
    ended_ns: int = 0
    number: int = -1


class SpanReader:
    """Follows the ranks that export to this node."""

    def __init__(self) -> None:
        self._ranks: OrderedDict[tuple[object, ...], _Rank] = OrderedDict()

    def read(self, raw: bytes, *, json: bool = False) -> SpanBatch:
        """Raises BadInput if `raw` is no request. Ids, hexadecimal in JSON, are not used."""
        request = ExportTraceServiceRequest()
        try:
            Parse(raw, request, True) if json else request.MergeFromString(raw)
        except (DecodeError, ParseError, UnicodeDecodeError) as error:
            raise BadInput("otlp", f"{str(error)!r:.100}", "an ExportTraceServiceRequest") from None
        found: list[SpanIteration] = []
        faults: list[tuple[RankIdentity, str]] = []
        for resource in request.resource_spans:
            about = dict(_attributes(resource.resource.attributes))
            who = _identity(about)
            rank = self._rank((who.job, who.rank, who.pid))
            spans = [span for scope in resource.scope_spans for span in scope.spans]
            ended = _sorted_into(rank, spans)
            sizes = _Sizes(*(_whole(about, names) or 0 for names in (PIPELINE, TENSOR, DATA)))
            for one in sorted(ended, key=lambda one: one.end_ns):
                try:
                    found.append(_iteration(rank, who, sizes, one))
                except BadInput as error:
                    faults.append((who, str(error)))
        return SpanBatch(tuple(found), tuple(faults))

    def _rank(self, key: tuple[object, ...]) -> _Rank:
        rank = self._ranks.setdefault(key, _Rank())
        self._ranks.move_to_end(key)
        if len(self._ranks) > RANKS_MAX:
            self._ranks.popitem(last=False)
        return rank


def _sorted_into(rank: _Rank, spans: Iterable[Span]) -> Iterator[_Ended]:
    """Keeps the spans of operations with their rank; yields those of iterations."""
    for span in spans:
        start, end = span.start_time_unix_nano, span.end_time_unix_nano
        if span.name in FORWARD:
            rank.operations.append((start, "forward"))
        elif span.name in BACKWARD:
            rank.operations.append((start, "backward"))
        elif span.name in ITERATION:
            yield _Ended(start, end, _whole(dict(_attributes(span.attributes)), NUMBER))


def _iteration(rank: _Rank, who: RankIdentity, sizes: _Sizes, one: _Ended) -> SpanIteration:
    """Raises BadInput for one that cannot follow the last."""
    span_s, since_s = (one.end_ns - one.start_ns) * NS, (one.end_ns - rank.ended_ns) * NS
    if not 0.0 < span_s <= ITERATION_S_MAX or since_s <= 0.0:
        what = f"an iteration of {span_s:g} s, {since_s:g} s after the last"
        raise BadInput("otlp", what, "each iteration once, in order, of up to a day")
    follows = rank.ended_ns > 0 and since_s <= GAP_RATIO_MAX * span_s
    rank.ended_ns = one.end_ns
    rank.number = rank.number + 1 if one.number is None else one.number
    kinds = [kind for begin, kind in sorted(rank.operations) if one.start_ns <= begin < one.end_ns]
    while rank.operations and rank.operations[0][0] < one.end_ns:
        rank.operations.popleft()
    shape = None
    if sizes.stages:
        parallel = {name: max(size, 1) for name, size in sizes._asdict().items()}
        shape = shape_of(kinds, who.stage, **parallel)
    duration_s = since_s if follows else span_s
    return SpanIteration(who, rank.number, duration_s, one.end_ns * NS, shape)


def _identity(about: Mapping[str, str | int | float]) -> RankIdentity:
    rank, world = _whole(about, RANK), _whole(about, WORLD)
    stages = _whole(about, PIPELINE) or 1
    stage = _whole(about, STAGE)
    if stage is None:  # Megatron's order tp-cp-ep-dp-pp: consecutive ranks share a stage
        width = (world or stages) // stages
        stage = (rank or 0) // width if width else 0
    return RankIdentity(
        job=_job(about),
        rank=rank,
        local_rank=_whole(about, LOCAL_RANK),
        uuid=_text(about, GPU),
        pid=_whole(about, ("process.pid",)) or 0,
        stage=min(max(stage, 0), stages - 1),
    )


def _job(about: Mapping[str, str | int | float]) -> str:
    """`OTEL_SERVICE_NAME` where it was set, else the id of the run."""
    service = _text(about, ("service.name",))
    if service and service.partition(":")[0] not in DEFAULT_SERVICES:
        return service
    return _text(about, JOB) or service or "otlp"


def _attributes(pairs: Iterable[KeyValue]) -> Iterator[tuple[str, str | int | float]]:
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        if kind in {"string_value", "int_value", "double_value", "bool_value"}:
            yield pair.key, getattr(pair.value, kind)


def _whole(about: Mapping[str, str | int | float], names: tuple[str, ...]) -> int | None:
    """The first attribute that is a count; some exporters write numbers as text."""
    for name in names:
        value = about.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
            value = int(value)
        if isinstance(value, float) and math.isfinite(value):
            value = int(value)
        if isinstance(value, int) and 0 <= value <= 2**53:
            return value
    return None


def _text(about: Mapping[str, str | int | float], names: tuple[str, ...]) -> str:
    for name in names:
        value = str(about.get(name, ""))[:253]
        if value and value.isprintable():
            return value
    return ""
