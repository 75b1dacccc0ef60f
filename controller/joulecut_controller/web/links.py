"""Addresses of other systems that the page points to, as an operator configures them."""

from dataclasses import dataclass
from urllib.parse import urlsplit

SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class Links:
    """Empty where none is configured. `{job}` in an address stands for the job's name, `{alert}`
    in that of the runbook for the heading.
    """

    grafana: str = ""
    runbook: str = ""
    audit_log: str = ""


def is_address(text: str) -> bool:
    """Whether a browser may be sent there: http or https, and a host."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in SCHEMES and bool(parts.netloc) and text.isprintable()
