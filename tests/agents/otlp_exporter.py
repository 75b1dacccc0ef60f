"""Sends the spans of a Megatron rank over real OTLP, as its exporter does."""

import contextlib
import http.client
import socket
import struct
import time
from dataclasses import dataclass, field

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@dataclass
class Rank:
    """Names of August 2026 by default; `names` "nv" are the later ones."""

    attributes: dict[str, str | int] = field(default_factory=dict)
    names: str = "megatron"
    request: ExportTraceServiceRequest = field(default_factory=ExportTraceServiceRequest)

    def __post_init__(self) -> None:
        self._spans = None

    def iteration(
        self, number: int, ended_s: float, duration_s: float, kinds: tuple[str, ...] = ()
    ) -> None:
        """Adds the spans of one iteration that ended at a time of the wall clock."""
        start_s = ended_s - duration_s
        microbatch = "nv.mcore.microbatch" if self.names == "nv" else "megatron.microbatch"
        for i, kind in enumerate(kinds):
            at_s = start_s + duration_s * (i + 0.25) / max(len(kinds), 1)
            self._span(f"{microbatch}.{kind}", at_s, at_s + 1e-4)
        name = "nv.dl.training.iteration" if self.names == "nv" else "megatron.train_step"
        key = "nv.dl.training.step" if self.names == "nv" else "megatron.iteration"
        self._span(name, start_s, ended_s, {key: number})

    def taken(self) -> bytes:
        """The request so far; the next begins empty."""
        raw, self.request, self._spans = (
            self.request.SerializeToString(),
            type(self.request)(),
            None,
        )
        return raw

    def _span(
        self, name: str, start_s: float, end_s: float, attributes: dict[str, int] | None = None
    ) -> None:
        if self._spans is None:
            resource = self.request.resource_spans.add()
            for key, value in self.attributes.items():
                _set(resource.resource.attributes.add(), key, value)
            self._spans = resource.scope_spans.add().spans
        span = self._spans.add(name=name, trace_id=b"t" * 16, span_id=b"s" * 8)
        span.start_time_unix_nano, span.end_time_unix_nano = (
            round(start_s * 1e9),
            round(end_s * 1e9),
        )
        for key, value in (attributes or {}).items():
            _set(span.attributes.add(), key, value)


def _set(pair: object, key: str, value: str | int) -> None:
    pair.key = key
    if isinstance(value, str):
        pair.value.string_value = value
    else:
        pair.value.int_value = value


def send_grpc(port: int, raw: bytes) -> str:
    """ "" or the name of the refusal."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            channel.unary_unary(TRACES)(raw, timeout=30)
        except grpc.RpcError as error:
            return error.code().name
    return ""


def unfinished_calls(port: int, streams: int, size: int) -> socket.socket:
    """A connection with calls that have announced 4 MiB and sent `size` bytes of it."""

    def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
        return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body

    def header(name: str, value: str) -> bytes:
        return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))

    asked = {":method": "POST", ":scheme": "http", ":path": TRACES, ":authority": "localhost",
             "content-type": "application/grpc", "te": "trailers"}  # fmt: skip
    head = b"".join(header(name, value) for name, value in asked.items())
    held = socket.create_connection(("127.0.0.1", port))
    held.settimeout(0.2)
    with contextlib.suppress(OSError):  # it is refused, or not read any more
        window = frame(8, 0, 0, struct.pack(">I", 1 << 30))
        held.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + window)
        for stream in range(1, 2 * streams, 2):
            held.sendall(frame(1, 4, stream, head))
            body = b"\0" + struct.pack(">I", 4 << 20) + bytes(size)
            for start in range(0, len(body), 16_384):
                held.sendall(frame(0, 0, stream, body[start : start + 16_384]))
    return held


def send_http(port: int, raw: bytes, encoding: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Content-Type": "application/x-protobuf"}
    if encoding:
        headers["Content-Encoding"] = encoding
    connection.request("POST", "/v1/traces", raw, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def now_s() -> float:
    return time.time()
