"""Addresses of other systems that the page points to, as an operator configures them."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from joulecut_wire.quantity import Fault, shown
from joulecut_wire.section import key

SCHEMES = ("http", "https")


def _address(value: object) -> str:
    """Where a browser may be sent: http or https, and a host."""
    try:
        parts = urlsplit(value) if isinstance(value, str) and value.isprintable() else None
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in SCHEMES or not parts.netloc:
        raise Fault(f"{shown(value)} is no address", "an address http://... or https://...")
    return str(value)


@dataclass(frozen=True, slots=True)
class Links:
    """Empty where none is configured. `{job}` in an address stands for the job's name, `{alert}`
    in that of the runbook for the heading.
    """

    grafana: str = key(_address, "")
    runbook: str = key(_address, "")
    audit_log: str = key(_address, "")
