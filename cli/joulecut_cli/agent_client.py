"""gRPC client of one node's agent. Every failure becomes one line."""

import argparse
from collections.abc import Sequence
from typing import Any

import grpc

from joulecut_wire import codec, tls
from joulecut_wire.address import is_loopback, port_of
from joulecut_wire.errors import BadInput, Unavailable
from joulecut_wire.messages import Command, NodeDescription, Result, WatchTick
from joulecut_wire.v1 import agent_pb2 as pb
from joulecut_wire.v1 import agent_pb2_grpc

PORT = 9431
SOCKET = "unix:"
ANSWER_WAIT_S = 30.0  # resetting 16 GPUs, and waiting for a reading under way


class Agent:
    """One agent. Raises BadInput for an address that cannot be one, or certificates that fail."""

    def __init__(self, given: argparse.Namespace) -> None:
        """`given` holds `node` and the certificate flags of `orders`."""
        files = (given.cert, given.key, given.ca)
        if any(files) and not all(files):
            raise BadInput("--cert, --key, --ca", "one without the others", "all three, or none")
        self._pem = tls.read(tls.TlsFiles(*files)) if all(files) else None
        self._server_name = given.server_name
        self.address = _address(given.node, encrypted=self._pem is not None)

    def release(self, duration_s: float, reason: str) -> float:
        """Open a release window; seconds until it ends. Raises Unavailable."""
        request = pb.ReleaseRequest(duration_s=duration_s, reason=reason)
        return float(self._asked("Release", request).until_s)

    def resume(self, reason: str) -> None:
        """Raises Unavailable."""
        self._asked("Resume", pb.ResumeRequest(reason=reason))

    def describe(self) -> NodeDescription:
        """Raises Unavailable."""
        return codec.decode_node(self._asked("Describe", pb.DescribeRequest()))

    def seen(self) -> WatchTick:
        """The newest snapshots, leases and owners. Raises Unavailable."""
        return codec.decode_tick(self._asked("Watch", pb.WatchRequest(interval_s=1.0)))

    def apply(self, command: Command) -> tuple[Result, ...]:
        """Raises Unavailable."""
        return codec.decode_results(self._asked("Apply", codec.encode_command(command)))

    def renew(self, epoch: int, job: str, generation: int, ttl_s: float) -> tuple[Result, ...]:
        """Raises Unavailable."""
        request = pb.RenewRequest(epoch=epoch, job=job, generation=generation, ttl_s=ttl_s)
        return codec.decode_results(self._asked("Renew", request))

    def clear(self, job: str, reason: str, uuids: Sequence[str] = ()) -> tuple[Result, ...]:
        """Reset the GPUs of one job, or of all if empty. Raises Unavailable."""
        epoch = self.describe().epoch_seen
        request = pb.ClearRequest(epoch=epoch, job=job, uuids=uuids, reason=reason)
        return codec.decode_results(self._asked("Clear", request))

    def kept_limits(self) -> str:
        """A line about power limits that a clear leaves; empty without any, or an answer."""
        try:
            kept_w = [one.power_limit_kept_w for one in self.seen().gpus if one.power_limit_kept_w]
        except Unavailable:
            return ""
        if not kept_w:
            return ""
        what = f"{sum(kept_w):g} W of power limits on {len(kept_w)} GPUs outlive their leases"
        return f"{self.address}: {what}; joulecut-agent restore on the node sets them back"

    def _asked(self, rpc: str, request: Any) -> Any:
        """The answer, or the first one of a stream."""
        with self._channel() as channel:
            call = getattr(agent_pb2_grpc.AgentServiceStub(channel), rpc)
            try:
                answer = call(request, timeout=ANSWER_WAIT_S)
                return next(answer) if rpc == "Watch" else answer
            except grpc.RpcError as error:
                raise Unavailable(self._failure(error)) from None

    def _channel(self) -> grpc.Channel:
        # No proxy: an agent is on this machine or this network.
        options: list[tuple[str, Any]] = [("grpc.enable_http_proxy", 0)]
        if self._pem is None or self.address.startswith(SOCKET):
            return grpc.insecure_channel(self.address, options=options)
        if self._server_name:
            options.append(("grpc.ssl_target_name_override", self._server_name))
        pem = self._pem
        credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
        return grpc.secure_channel(self.address, credentials, options=options)

    def _failure(self, error: Any) -> str:
        code = error.code()
        if code == grpc.StatusCode.UNAVAILABLE:
            if self._pem is not None:
                said = " ".join((error.details() or "").split())[-160:]
                return f"no TLS connection to an agent at {self.address} (--cert, --ca): {said}"
            hint = "is it running, is this its gRPC port, does it require --cert?"
            if self.address.startswith(SOCKET):
                hint = "is it running, is this its listen.grpc_socket, are you in the group of it?"
            return f"no agent answers at {self.address}: {hint}"
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"the agent at {self.address} did not answer within {ANSWER_WAIT_S:g} s"
        return f"{self.address}: {error.details() or code.name.lower()}"


def _address(node: str, *, encrypted: bool) -> str:
    if node.startswith(SOCKET) and node != SOCKET and node.isprintable():
        return node
    host, colon, port = node.rpartition(":")
    if not colon or node.endswith("]") or (host.count(":") and not host.startswith("[")):
        host, port = node, str(PORT)
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or port_of(port) < 1:
        allowed = "HOST, HOST:PORT or unix:PATH"
        raise BadInput(f'"{node}"', "is not the address of an agent", allowed)
    if not encrypted and not is_loopback(bare):
        allowed = "unix:PATH on the node itself, or --cert, --key and --ca"
        raise BadInput(f'"{node}"', "is a remote address without TLS", allowed)
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"
