"""Loopback addresses, which need no encryption, and ports.

One rule for agent, controller and command line: differing copies could open a port in plain text.
"""

import ipaddress


def is_loopback(host: str) -> bool:
    """For a name or an address, without port and brackets. Names are not resolved: of names only
    `localhost` counts.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def port_of(word: str) -> int:
    """The port in these digits; -1 where it is none. `int` alone fails on thousands of digits."""
    digits = word.isascii() and word.isdigit() and len(word) <= 5
    return int(word) if digits and int(word) < 65_536 else -1
