"""Serves the agent's service on one address, with gRPC health."""

from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from joulecut_agent.service import CALLS_MAX, WATCHERS_MAX, AgentService
from joulecut_wire.errors import Unavailable
from joulecut_wire.v1 import agent_pb2_grpc

STOP_WAIT_S = 1.0
OPTIONS = (
    ("grpc.so_reuseport", 0),  # or a second agent would share the port in silence
    ("grpc.max_receive_message_length", 1 << 20),
    # A watcher that froze, or whose host is gone, must not keep its place for ever.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # the same; whichever a version of gRPC obeys
)
SERVICE = "joulecut_wire.v1.AgentService"


class Server:
    """The service on one address, with gRPC health."""

    def __init__(self, service: AgentService, host: str, port: int) -> None:
        """Binds, without serving yet. Raises Unavailable where the address is taken."""
        self._service = service
        self._server = grpc.server(
            ThreadPoolExecutor(WATCHERS_MAX + CALLS_MAX, thread_name_prefix="grpc"),
            options=OPTIONS,
        )
        agent_pb2_grpc.add_AgentServiceServicer_to_server(service, self._server)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        shown = f"[{host}]" if ":" in host else host
        try:
            self.port = self._server.add_insecure_port(f"{shown}:{port}")
        except RuntimeError:
            self.port = 0
        if self.port == 0:
            raise Unavailable(f"gRPC cannot listen on {shown}:{port}: is it in use?")

    def start(self) -> None:
        self._server.start()
        for name in ("", SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self) -> None:
        """Ends all calls within STOP_WAIT_S."""
        self._health.enter_graceful_shutdown()
        self._service.leave()
        self._server.stop(STOP_WAIT_S).wait(STOP_WAIT_S + 1.0)
