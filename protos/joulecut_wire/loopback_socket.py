"""The user at the client's end of a TCP connection over loopback, from the kernel's tables."""

import ipaddress
import struct
from pathlib import Path

TABLES = Path("/proc/net")
MAPPED = "0000000000000000FFFF0000"  # before an IPv4 address, in the table of IPv6
TABLE_BYTES_MAX = 8 << 20  # 50,000 connections


def user_of(host: str, port: int, own_port: int | None = None) -> int:
    """User id of the socket at `host` and `port`; -1 without one. `own_port` None: connected to any
    port.
    """
    try:
        address = _hex(host)
    except ValueError:
        return -1
    # gRPC connects with IPv6 sockets to IPv4 addresses.
    four = len(address) == 8
    for table, name in (("tcp", address), ("tcp6", MAPPED + address if four else address)):
        client = f" {name}:{port:04X} ".encode()
        ours = b"" if own_port is None else f":{own_port:04X}".encode()
        if (found := _user(TABLES / table, client, ours)) >= 0:
            return found
    return -1


def _user(table: Path, client: bytes, ours: bytes) -> int:
    """User id of the connection from `client` in one of the kernel's tables; -1 without one."""
    try:
        with table.open("rb") as file:
            text = file.read(TABLE_BYTES_MAX)
    except OSError:
        return -1
    at = text.find(client)
    while at >= 0:
        words = text[at : text.find(b"\n", at)].split()
        if len(words) > 8 and words[1].endswith(ours):
            return int(words[6])
        at = text.find(client, at + 1)
    return -1


def _hex(host: str) -> str:
    """An address as the kernel prints it, in words of this machine. Raises ValueError."""
    packed = ipaddress.ip_address(host).packed
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))
