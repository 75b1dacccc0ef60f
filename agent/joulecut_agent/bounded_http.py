"""An HTTP server of bounded memory: many or slow clients do not keep others out."""

import contextlib
import socket
import threading
import time
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import Any

REQUEST_WAIT_S = 5.0  # for a whole request, and for each write
SLOT_S = 10.0  # a client that takes longer to read its answer is ended
ACCEPT_RETRY_S = 0.1
EVICT_WAIT_S = 0.5  # for its thread to end


@dataclass(slots=True)
class _Connection:
    socket: Any
    since_s: float
    asked: bool = False  # whether its request has come as a whole

    def is_slow(self, now_s: float) -> bool:
        return now_s - self.since_s > (SLOT_S if self.asked else REQUEST_WAIT_S)


class BoundedHttp(ThreadingHTTPServer):
    """A connection without a whole request gives way to a new one, the oldest first.

    A probe sends its request at once, so idle connections, however many, cannot keep it out.
    """

    daemon_threads = True

    def __init__(self, *args: Any, connections_max: int, peer_max: int) -> None:
        """`peer_max`: connections of one address. Raises OSError if the address is taken."""
        self._slots = threading.BoundedSemaphore(connections_max)
        self._peer_max = peer_max
        self.request_queue_size = 2 * connections_max
        self._connections: dict[Any, _Connection] = {}  # by the client's address and port
        super().__init__(*args)

    def asked(self, client_address: Any) -> None:
        """The request of a client has come as a whole."""
        if connection := self._connections.get(client_address):
            connection.asked = True

    def get_request(self) -> tuple[Any, Any]:
        """The next connection. Without a free descriptor it waits, or the loop would spin."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(ACCEPT_RETRY_S)
            raise  # the server tries again

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._has_slot(client_address[0]):
            self.shutdown_request(request)
            return
        self._connections[client_address] = _Connection(request, time.monotonic())
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread is left
            self._leave(client_address)
            raise

    def service_actions(self) -> None:
        """Ends slow clients, also while no other waits."""
        now_s = time.monotonic()
        for address, connection in self._connections.copy().items():
            if connection.is_slow(now_s):
                self._end(address)

    def _has_slot(self, host: str) -> bool:
        """Takes a slot, if need be from a connection of `host`, or from any."""
        open_now = self._connections.copy()
        crowd = [address for address in open_now if address[0] == host]
        if len(crowd) < self._peer_max:
            if self._slots.acquire(blocking=False):
                return True
            crowd = list(open_now)
        now_s = time.monotonic()
        ending = [a for a in crowd if not open_now[a].asked or open_now[a].is_slow(now_s)]
        if not ending:
            return False
        self._end(min(ending, key=lambda address: open_now[address].since_s))
        return self._slots.acquire(timeout=EVICT_WAIT_S)

    def _end(self, address: Any) -> None:
        """Its thread then finds the end of the connection, and leaves the slot."""
        if connection := self._connections.pop(address, None):
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(client_address)

    def _leave(self, client_address: Any) -> None:
        self._connections.pop(client_address, None)
        self._slots.release()

    def handle_error(self, *_: object) -> None:
        """A client that hangs up, or fails the handshake, is not logged."""
