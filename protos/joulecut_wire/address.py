"""Loopback addresses, which need no encryption.

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
