"""The agent's gRPC server, with gRPC health.

It listens with mutual TLS on the network, in plain text on loopback (to observe only), and on a
unix socket whose group is the permission to command. Nothing else is ever bound.
"""

import contextlib
import grp
import os
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from joulecut_agent.control.access import LocalSocket
from joulecut_agent.control.authorization import SERVICE, AuthorizationInterceptor
from joulecut_agent.control.service import CALLS_MAX, WATCHERS_MAX, AgentService
from joulecut_agent.log import log
from joulecut_wire.errors import Unavailable
from joulecut_wire.tls import Pem, Rotating
from joulecut_wire.v1 import agent_pb2_grpc

STOP_WAIT_S = 1.0
SOCKET_UMASK = 0o117  # leaves 0660 from the first moment on
OPTIONS = (
    ("grpc.so_reuseport", 0),  # or a second agent would share the port unnoticed
    ("grpc.max_receive_message_length", 1 << 20),
    # A watcher that hangs, or whose host is gone, must not keep its slot for ever.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # the name of the same option in other gRPC versions
)
# A certificate is checked when a connection begins. One that expired, or lost its CA, is shut out
# within the hour. Calls under way get a minute to reconnect.
TLS_OPTIONS = (
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_age_grace_ms", 60_000),
)


class Server:
    """Serves one `AgentService` at its addresses."""

    def __init__(
        self, service: AgentService, interceptor: AuthorizationInterceptor,
        address: tuple[str, int], pem: Rotating[Pem] | None, local: LocalSocket | None,
    ) -> None:  # fmt: skip
        """Binds, without serving yet: at `address`, (host, port), with TLS if `pem` is given.
        Raises Unavailable if it is taken.
        """
        self._service = service
        self._server = grpc.server(
            ThreadPoolExecutor(WATCHERS_MAX + CALLS_MAX, thread_name_prefix="grpc"),
            interceptors=[interceptor],
            options=OPTIONS + (TLS_OPTIONS if pem else ()),
        )
        agent_pb2_grpc.add_AgentServiceServicer_to_server(service, self._server)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        host, port = address
        shown = f"[{host}]" if ":" in host else host
        self.port = self._bind(f"{shown}:{port}", pem)
        self.local_path = self._bind_local(local) if local else ""

    def _bind_local(self, local: LocalSocket) -> str:
        """Binds the unix socket; its path, "" if one that is not required cannot be bound."""
        try:
            with _fresh_socket(local):
                self._bind(f"unix:{local.path}", None)
        except Unavailable as error:
            if local.required:
                raise
            log("agent", f"no command is taken on this node: {error}", "warning")
            return ""
        return local.path

    def _bind(self, address: str, pem: Rotating[Pem] | None) -> int:
        try:
            if pem is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, _credentials(pem))
        except RuntimeError:
            port = 0
        if port == 0:
            raise Unavailable(f"gRPC cannot listen on {address}: is it in use?")
        return int(port)

    def start(self) -> None:
        self._server.start()
        for name in ("", SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self) -> None:
        """Ends all calls within STOP_WAIT_S."""
        self._health.enter_graceful_shutdown()
        self._service.end_watches()
        self._server.stop(STOP_WAIT_S).wait(STOP_WAIT_S + 1.0)
        if self.local_path:
            Path(self.local_path).unlink(missing_ok=True)


def _credentials(pem: Rotating[Pem]) -> grpc.ServerCredentials:
    """The newest certificates at every handshake; a client certificate is required."""

    def configuration(now: Pem) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(now.key, now.cert)], now.ca)

    served = pem.current()

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        now = pem.current()
        if now is served:
            return None
        served = now
        return configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        configuration(served),
        newer,  # type: ignore[arg-type]  # None means: as before
        require_client_authentication=True,
    )


@contextlib.contextmanager
def _fresh_socket(local: LocalSocket) -> Iterator[None]:
    """Makes way for the socket, and sets its mode and group. Raises Unavailable.

    gRPC does not expose the peer's credentials (SO_PEERCRED): mode and group of the file are the
    whole permission.
    """
    path = Path(local.path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
    except OSError as error:
        raise Unavailable(f"gRPC cannot listen on {path}: {error.strerror}") from None
    umask = os.umask(SOCKET_UMASK)
    try:
        yield
    finally:
        os.umask(umask)
    if local.group:
        try:
            os.chown(path, -1, grp.getgrnam(local.group).gr_gid)
        except (KeyError, OSError) as error:
            path.unlink(missing_ok=True)
            why = "no such group" if isinstance(error, KeyError) else error.strerror
            raise Unavailable(f"{path} cannot be given to group {local.group}: {why}") from None


def _remove_stale(path: Path) -> None:
    try:
        about = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(about.st_mode):
        raise Unavailable(f"gRPC cannot listen on {path}: it is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise Unavailable(f"gRPC cannot listen on {path}: another agent does")
