"""Whether an address leads nowhere but here: what may go without encryption, and what may not.

One rule for agent, controller and command line. A copy that took a name for loopback which
another does not would open a port in plain text.
"""

import ipaddress


def is_loopback(host: str) -> bool:
    """Of a name or an address, without port and brackets. Names are not looked up: of all that
    may lead here only `localhost` is known to.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
