"""The bounded number of watchers; one that no longer reads gives way to a new one.

A frozen caller (SIGSTOP, a debugger) keeps its connection. Over TCP the keepalive ends it. On a
unix socket the ping waits behind the messages that fill the socket's buffer, and never fails.
"""

import math
import threading
import time
from dataclasses import dataclass

import grpc

from joulecut_wire.messages import Watcher

STALLED_S = 10.0  # a message unread for as long as the keepalive waits over TCP


@dataclass(slots=True, eq=False)
class Seat:
    """One watcher. `sending_since_s` is infinite while no message waits to be read."""

    call: grpc.ServicerContext
    store: str = ""  # of a controller
    sending_since_s: float = math.inf


class WatchSeats:
    """For any thread."""

    def __init__(self, seats_max: int) -> None:
        self._max = seats_max
        self._lock = threading.Lock()
        self._taken: set[Seat] = set()

    def controllers(self) -> tuple[Watcher, ...]:
        """The controllers among the watchers."""
        with self._lock:
            known = {(seat.store, _host(seat.call.peer())) for seat in self._taken if seat.store}
        return tuple(Watcher(store, host) for store, host in sorted(known))

    def take(self, call: grpc.ServicerContext, store: str = "") -> Seat | None:
        """A seat; None if all are taken by watchers that read."""
        with self._lock:
            if len(self._taken) >= self._max:
                self._end_stalled()
            if len(self._taken) >= self._max:
                return None
            seat = Seat(call, store)
            self._taken.add(seat)
            return seat

    def leave(self, seat: Seat) -> None:
        with self._lock:
            self._taken.discard(seat)

    def _end_stalled(self) -> None:
        since_s = time.monotonic() - STALLED_S
        for seat in [seat for seat in self._taken if seat.sending_since_s < since_s]:
            self._taken.discard(seat)
            seat.call.cancel()


def _host(peer: str) -> str:
    """Without scheme and port, of `ipv4:10.0.0.7:40112`."""
    scheme, _, where = peer.partition(":")
    return where.rpartition(":")[0] if scheme.startswith("ipv") else "this node"
