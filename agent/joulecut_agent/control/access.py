"""Callers and their roles: names proven by a certificate, and rules from names to roles.

The four roles are independent: observe does not allow commands, and clear does not allow lowering
a clock. Only names in a certificate of the client CA count. Over TCP without one, loopback
included, there is no role but observe: any user of the node, and a pod with host network, can
connect there.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from joulecut_wire.address import port_of
from joulecut_wire.loopback_socket import user_of

OBSERVE, CLEAR, RELEASE, APPLY = "observe", "clear", "release", "apply"
ROLES = (OBSERVE, CLEAR, RELEASE, APPLY)
LOOPBACK = "loopback"  # way in of a caller without a certificate over TCP
EVERY_NAME = "*"
COMMON_NAME = "CN="  # prefix of a common name, to tell it from a DNS name
NAME_LENGTH_MAX = 256  # a DNS name has 253
NAMES_MAX = 64  # of one certificate
PATTERNS_MAX = 256  # of one role
LOOPBACK_PEERS = ("ipv4:127.", "ipv6:[::1]:", "ipv6:[::ffff:127.")


@dataclass(frozen=True, slots=True)
class Caller:
    """`name` is for the audit log; `via` is mtls, socket or loopback."""

    name: str
    via: str
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LocalSocket:
    """A unix socket, mode 0660: its group has every role."""

    path: str
    group: str = ""  # empty: the agent's own
    required: bool = True  # False: the agent runs without it, and takes no command from this node


@dataclass(frozen=True, slots=True)
class Rules:
    """Patterns of names by role.

    Without a rule, any name of the client CA may observe and no name has another role.
    `loopback_observes`: whether every process on this node may observe in plain text.
    """

    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    loopback_observes: bool = True

    def roles(self, names: Iterable[str]) -> tuple[str, ...]:
        """The roles of a caller with these proven names."""
        known = list(names)
        return tuple(
            role
            for role in ROLES
            if any(matches(p, name) for p in self._patterns(role) for name in known)
        )

    def _patterns(self, role: str) -> tuple[str, ...]:
        return self.patterns.get(role, (EVERY_NAME,) if role == OBSERVE else ())


def matches(pattern: str, name: str) -> bool:
    """`*` alone matches every name. Within a pattern it matches one DNS label or URI segment.

    DNS names are case-insensitive; URIs and common names are not.
    """
    if pattern == EVERY_NAME:
        return True
    kind = _kind(pattern)
    if kind != _kind(name):
        return False
    within = {"uri": "[^/]*", "cn": ".*", "dns": "[^.]*"}[kind]
    parts = (re.escape(part) for part in pattern.split("*"))
    return bool(re.fullmatch(within.join(parts), name, re.IGNORECASE if kind == "dns" else 0))


def caller(context: Any, rules: Rules) -> Caller:
    """The caller of a gRPC call; without a name it has no roles."""
    proofs: Mapping[str, Sequence[bytes]] = context.auth_context()
    if proofs.get("transport_security_type") == [b"ssl"]:
        names = proven_names(proofs)
        return Caller(names[0] if names else "", "mtls", rules.roles(names))
    peer = unquote(str(context.peer()))
    if peer.startswith("unix:"):
        return Caller("local socket", "socket", ROLES)
    host, _, port = peer.partition(":")[2].rpartition(":")
    uid = user_of(host.strip("[]"), port_of(port))  # for the audit log; it gives no role
    # Only loopback is bound without encryption; checked again here.
    observes = rules.loopback_observes and peer.startswith(LOOPBACK_PEERS)
    name = f"local uid {uid}" if uid >= 0 else "local user"
    return Caller(name, LOOPBACK, (OBSERVE,) if observes else ())


def proven_names(proofs: Mapping[str, Sequence[bytes]]) -> list[str]:
    """URI and DNS names of the certificate; its common name only without any.

    A name that looks like one of another field does not count: a CA may allow its subjects any URI,
    and few DNS names.
    """
    raw = [(kind, n) for kind in ("uri", "dns") for n in proofs.get(f"peer_{kind}", ())]
    names = [text for kind, n in raw[:NAMES_MAX] if _kind(text := _text(n)) == kind]
    if not raw:
        names = [
            COMMON_NAME + text for n in proofs.get("x509_common_name", ()) if (text := _text(n))
        ]
    return [name for name in names if name]


def _text(raw: bytes) -> str:
    """A name as text; "" if it has invalid characters or length."""
    text = raw.decode("utf-8", errors="replace")
    fine = text.isprintable() and "\ufffd" not in text and len(text) <= NAME_LENGTH_MAX
    return text if fine and " " not in text[:1] else ""


def _kind(name: str) -> str:
    if name.startswith(COMMON_NAME):
        return "cn"
    return "uri" if ":" in name else "dns"
