"""Receiver of OpenTelemetry spans on loopback: OTLP over gRPC and HTTP, as protobuf and JSON.

Frameworks that export spans then need no change to report their iterations. The receiver stores
nothing and commands nothing. Metrics and logs are refused: accepted, they would be lost without a
word. Load is bounded before anything is decoded: what exceeds it is shed and counted.
"""

import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

import grpc

from joulecut_agent.bounded_http import REQUEST_WAIT_S, BoundedHttp
from joulecut_agent.counters import Counters
from joulecut_agent.jobs.binding import Sender
from joulecut_agent.jobs.gpu_of_process import GpuOfProcess
from joulecut_agent.jobs.loopback_peer import UNKNOWN_PEER, LoopbackPeers
from joulecut_agent.jobs.otlp_spans import SpanIteration, SpanReader
from joulecut_agent.jobs.rate_source import OTLP, Fault, Inbox, Submission
from joulecut_wire.address import port_of
from joulecut_wire.errors import BadInput, Unavailable
from joulecut_wire.messages import IterationReport
from joulecut_wire.metrics import REPORTS

TRACES = "opentelemetry.proto.collector.trace.v1.TraceService"
TRACES_PATH = "/v1/traces"
PROTOBUF, JSON = "application/x-protobuf", "application/json"
REQUEST_BYTES_MAX = 4 << 20  # the default limit of OTLP receivers
# 16 ranks with 200 spans a second of 400 bytes are 1.3 MB/s; a decoded MB costs some 5 ms.
BYTES_PER_S_MAX, BYTES_BURST = 4 << 20, 16 << 20
JSON_COST = 10  # a byte of JSON counts as so many: a MB takes 110 ms, and so 5 % of a core at most
CALLS_MAX = 16  # gRPC, one for each GPU of the largest node; each has a thread
# What one connection may make this process hold before a call is accepted: two streams of a window
# that does not grow. Each ends within 25 s, and with it a call whose message never came; one that
# says nothing within 5 s. An exporter that finds all of them taken tries again, as they all do.
GRPC_CONNECTIONS_MAX = 4 * CALLS_MAX  # a rank's exporter has one; dataloaders may have more
GRPC_LIMITS = (
    ("grpc.max_allowed_incoming_connections", GRPC_CONNECTIONS_MAX),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_concurrent_streams", 2),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 16_384),
    ("grpc.max_metadata_size", 8_192),
    ("grpc.max_connection_age_ms", 20_000),
    ("grpc.max_connection_age_grace_ms", 5_000),
)
CONNECTIONS_MAX = 16  # HTTP, as many; with bodies of 4 MiB that never end, 64 MiB for some seconds
SENDER_TRUST_S = 10.0  # how long a connection is known to be the same process's
SENDERS_KEPT = 1024
LATE_S_MAX = 120.0  # of a span's end; an exporter gives up earlier
HELD = "where a collector holds the port, name another one in listen.otlp_grpc, otlp_http"
EMPTY = b""  # an answer without a field: everything was accepted


class OtlpReceiver:
    """Binds at once, serves from `start` to `close`. An address of None is not served."""

    name = OTLP

    def __init__(
        self, grpc_address: tuple[str, int] | None, http_address: tuple[str, int] | None,
        inbox: Inbox, counters: Counters, *, peers: LoopbackPeers, gpus: GpuOfProcess,
        likely: Callable[[], Collection[int]], owner: Callable[[str], str],
    ) -> None:  # fmt: skip
        """`likely` returns the processes on GPUs, `owner` the job that a scheduler gave a GPU to,
        or "". Raises Unavailable if an address is taken.
        """
        self._inbox = inbox
        self._counters = counters
        self._peers = peers
        self._gpus = gpus
        self._likely = likely
        self._owner = owner
        self._reader = SpanReader()
        self._reading = threading.Lock()  # of the reader and the senders
        self._senders: OrderedDict[tuple[str, int, int], tuple[Sender, float]] = OrderedDict()
        self._credit_bytes, self._credited_s = float(BYTES_BURST), time.monotonic()
        self.grpc_port = self.http_port = 0
        self._grpc = self._bind_grpc(grpc_address) if grpc_address else None
        try:
            self._http = self._bind_http(http_address) if http_address else None
        except Unavailable:
            if self._grpc:
                self._grpc.stop(None)
            raise
        self._thread = threading.Thread(target=self._serve_http, name="otlp", daemon=True)

    def start(self) -> None:
        if self._grpc:
            self._grpc.start()
        if self._http:
            self._thread.start()

    def close(self) -> None:
        if self._grpc:
            self._grpc.stop(None)
        if self._http:
            if self._thread.is_alive():
                self._http.shutdown()
            self._http.server_close()

    def receive(
        self, raw: bytes, host: str, port: int, own_port: int, *, json: bool = False
    ) -> bool:
        """One request from a connection; False if it was shed."""
        if not self._admit(JSON_COST * len(raw) if json else len(raw)):
            self._counters.count(REPORTS.name, "shed")
            return False
        with self._reading:
            try:
                batch = self._reader.read(raw, json=json)
            except BadInput as error:
                sender = self._sender(host, port, own_port, 0)
                self._inbox.submit(Fault(sender, OTLP, str(error)))
                return True
            for one in batch.iterations:
                self._submit(one, self._sender(host, port, own_port, one.who.pid))
            for who, text in batch.faults:
                sender = self._sender(host, port, own_port, who.pid)
                self._inbox.submit(Fault(sender, OTLP, text, who.uuid))
        return True

    def _submit(self, one: SpanIteration, sender: Sender) -> None:
        who, now_s = one.who, time.monotonic()
        ended_s = one.ended_unix_s - (time.time() - now_s)
        uuid, fault = self._gpus.find(sender, who.uuid, who.local_rank), ""
        if not uuid:
            fault = (
                f"no single GPU of this node belongs to rank {who.rank} of {who.job}; allowed: a "
                "process on one GPU, CUDA_VISIBLE_DEVICES with one GPU, or attribute nv.gpu.uuid"
            )
        elif now_s - ended_s > LATE_S_MAX:
            fault = f"a span ended {now_s - ended_s:.0f} s ago; allowed: {LATE_S_MAX:g} s"
        if fault:
            self._inbox.submit(Fault(sender, OTLP, fault))
            return
        report = IterationReport(
            self._owner(uuid) or who.job, uuid, who.stage, one.number, one.duration_s,
            source=OTLP, shape=one.shape,
        )  # fmt: skip
        self._inbox.submit(Submission(report, sender, OTLP, min(ended_s, now_s)))

    def _sender(self, host: str, port: int, own_port: int, stated_pid: int) -> Sender:
        key, now_s = (host, port, stated_pid), time.monotonic()
        known = self._senders.get(key)
        if known and now_s < known[1]:
            return known[0]
        found = self._peers.sender(host, port, own_port, self._likely(), stated_pid)
        if found != UNKNOWN_PEER:
            self._senders[key] = (found, now_s + SENDER_TRUST_S)
            self._senders.move_to_end(key)
            if len(self._senders) > SENDERS_KEPT:
                self._senders.popitem(last=False)
        return found

    def _admit(self, size: int) -> bool:
        """A token bucket of bytes. Racing threads may admit one request too many."""
        now_s = time.monotonic()
        gained = (now_s - self._credited_s) * BYTES_PER_S_MAX
        self._credit_bytes = min(float(BYTES_BURST), self._credit_bytes + gained)
        self._credited_s = now_s
        admitted = size <= self._credit_bytes
        self._credit_bytes -= size if admitted else 0
        return admitted

    # -- gRPC ------------------------------------------------------------------------------

    def _bind_grpc(self, address: tuple[str, int]) -> grpc.Server:
        called: grpc.RpcMethodHandler[bytes, bytes]
        called = grpc.unary_unary_rpc_method_handler(self._called)
        server = grpc.server(
            ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="otlp"),
            handlers=[grpc.method_handlers_generic_handler(TRACES, {"Export": called})],
            maximum_concurrent_rpcs=CALLS_MAX,
            options=[
                ("grpc.so_reuseport", 0),  # two agents on one port would share its calls
                ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
                *GRPC_LIMITS,
            ],
        )
        try:
            self.grpc_port = server.add_insecure_port(f"{address[0]}:{address[1]}")
        except RuntimeError:
            self.grpc_port = 0
        if not self.grpc_port:
            raise Unavailable(f"OTLP cannot listen on {address[0]}:{address[1]}: {HELD}")
        return server

    def _called(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        kind, _, where = context.peer().partition(":")
        host, _, port = where.rpartition(":")
        if kind != "ipv4" or port_of(port) < 0:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "IPv4 loopback only")
        if not self.receive(raw, host, int(port), self.grpc_port):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "more spans than this node takes")
        return EMPTY

    # -- HTTP ------------------------------------------------------------------------------

    def _bind_http(self, address: tuple[str, int]) -> "_Http":
        try:
            server = _Http(address, self.receive)
        except OSError as error:
            raise Unavailable(
                f"OTLP cannot listen on {address[0]}:{address[1]}: {error.strerror}; {HELD}"
            ) from None
        self.http_port = server.server_address[1]
        return server

    def _serve_http(self) -> None:
        assert self._http is not None
        self._http.serve_forever()


class _Http(BoundedHttp):
    def __init__(self, address: tuple[str, int], receive: Callable[..., bool]) -> None:
        """Raises OSError."""
        self.receive = receive
        limits = {"connections_max": CONNECTIONS_MAX, "peer_max": CONNECTIONS_MAX}
        super().__init__(address, _HttpHandler, **limits)


class _HttpHandler(BaseHTTPRequestHandler):
    """One connection with one request; `server` is the `_Http` that accepted it."""

    protocol_version = "HTTP/1.1"
    timeout = REQUEST_WAIT_S
    server: _Http

    def do_POST(self) -> None:
        self.close_connection = True  # an idle one would hold a slot; exporters open another
        self._answer(self._status())

    def _status(self) -> HTTPStatus:
        """What is not read here is refused before its body is read, or it would be lost."""
        kind, size = self.headers.get_content_type(), self.headers.get("Content-Length", "")
        if self.path != TRACES_PATH:
            return HTTPStatus.NOT_FOUND
        if kind not in {PROTOBUF, JSON}:
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        if not size.isdecimal() or len(size) > 9 or int(size) > REQUEST_BYTES_MAX:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        raw = self.rfile.read(int(size))
        self.server.asked(self.client_address)
        if (plain := self._plain(raw)) is None:
            return HTTPStatus.BAD_REQUEST
        sender = (*self.client_address[:2], self.server.server_port)
        taken = self.server.receive(plain, *sender, json=kind == JSON)
        return HTTPStatus.OK if taken else HTTPStatus.TOO_MANY_REQUESTS

    def _plain(self, raw: bytes) -> bytes | None:
        """The body without its compression; None where it is malformed or too large."""
        if self.headers.get("Content-Encoding", "identity") == "identity":
            return raw
        unpack = zlib.decompressobj(wbits=47)  # gzip or zlib, by its header
        try:
            plain = unpack.decompress(raw, REQUEST_BYTES_MAX)
        except zlib.error:
            return None
        return None if unpack.unconsumed_tail else plain

    def _answer(self, status: HTTPStatus) -> None:
        self.send_response(status)
        body = b"{}" if self.headers.get_content_type() == JSON else EMPTY
        self.send_header("Content-Type", JSON if body else PROTOBUF)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Requests are counted, not logged."""
