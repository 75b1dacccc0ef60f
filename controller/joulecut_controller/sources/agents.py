"""Where the controller's agents are found: a list, a file, or DNS.

A source answers with addresses (host:port or unix:PATH) whenever it is asked; agents that joined
or left are followed without a restart. A source that fails, or that knows no agent at all, changes
nothing: a name server that is away must not end the control of a cluster.
"""

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from joulecut_wire import quantity, user_file
from joulecut_wire.address import is_loopback
from joulecut_wire.errors import BadInput, Unavailable
from joulecut_wire.quantity import Fault, shown, text, whole
from joulecut_wire.section import key

AGENTS_MAX = 4096
AGENT_PORT = 9431
WORD = text(4096, "a text")
FILE_BYTES_MAX = 1 << 20  # 4,096 lines of 253 characters
SOCKET = "unix:"
SOCKET_PATH_BYTES_MAX = 107  # sun_path of unix(7), without its end
SOCKET_ALLOWED = f"unix:PATH of up to {SOCKET_PATH_BYTES_MAX} bytes"
PROTECTED = "localhost, a loopback address, or unix:PATH; anything else needs a section tls"


class AgentSource(Protocol):
    """May block for seconds: use a thread."""

    @property
    def moves(self) -> bool:
        """Whether the answer can change while the controller runs."""
        ...

    def addresses(self) -> tuple[str, ...]:
        """One to AGENTS_MAX addresses, each once. Raises Unavailable, BadInput."""
        ...


@dataclass(frozen=True, slots=True)
class ListedAgents:
    """The addresses of the configuration file."""

    listed: tuple[str, ...]
    moves: bool = False

    def addresses(self) -> tuple[str, ...]:
        return self.listed


@dataclass(frozen=True, slots=True)
class FileOfAgents:
    """A text file with one address a line, a relative `unix:PATH` relative to it; `#` begins a
    comment.
    """

    path: Path
    encrypted: bool
    moves: bool = True

    def addresses(self) -> tuple[str, ...]:
        try:
            raw = user_file.read(self.path, FILE_BYTES_MAX)
        except BadInput as error:
            raise Unavailable(f"agents {self.path}: {error.what}") from None
        found = []
        for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
            text = line.partition("#")[0].strip()
            try:
                if text:
                    found.append(address(text, self.path.parent, encrypted=self.encrypted))
            except Fault as fault:
                raise BadInput(f"{self.path}:{number}", fault.what, fault.allowed) from None
        return checked(found, str(self.path))


@dataclass(frozen=True, slots=True)
class AgentsByName:
    """Every address of one DNS name, such as that of a headless Kubernetes service, which stands
    for its pods. Where hosts have addresses of both families, those of IPv4 count.
    """

    name: str = key(WORD)
    port: int = key(whole(1, 65_535), AGENT_PORT)
    moves: bool = True

    def addresses(self) -> tuple[str, ...]:
        try:
            answers = socket.getaddrinfo(self.name, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise Unavailable(f"agents of {self.name}: {error.strerror or error}") from None
        families = {answer[0] for answer in answers}
        family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
        hosts = {str(answer[4][0]) for answer in answers if answer[0] == family}
        return checked([joined(host, self.port) for host in sorted(hosts)], self.name)


def address(written: object, base: Path, *, encrypted: bool) -> str:
    """An address as the fleet takes it: host:port in the form of gRPC, over TCP without encryption
    only on this machine, or a socket with its whole path. Raises Fault.
    """
    if isinstance(written, str) and written.startswith(SOCKET):
        agent = f"{SOCKET}{base / written.removeprefix(SOCKET)}"
        size = len(agent.encode()) - len(SOCKET)
        if written == SOCKET or not written.isprintable() or size > SOCKET_PATH_BYTES_MAX:
            raise Fault(f"{shown(written)} is no path of a socket", SOCKET_ALLOWED)
        return agent
    host, port = quantity.address(1)(written)
    if not encrypted and not is_loopback(host):
        raise Fault(f"{host} without encryption", PROTECTED)
    return joined(host, port)


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def checked(found: Iterable[str], where: str) -> tuple[str, ...]:
    addresses = tuple(dict.fromkeys(found))
    if not addresses:
        raise Unavailable(f"agents of {where}: none")
    if len(addresses) > AGENTS_MAX:
        raise BadInput(where, f"{len(addresses)} agents", f"at most {AGENTS_MAX}")
    return addresses
