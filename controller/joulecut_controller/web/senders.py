"""Who sends a command, and what he may: roles of users and certificates, and the kernel's word.

A sender is known by a user's password, by a client certificate, or by the kernel over loopback. A
password or a certificate alone reads: `roles` of the configuration names those that may command.
A page of another site in the same browser has that access as well, so a command must carry what
such a page cannot send: a JSON body and the header `x-joulecut-command`, from our own origin.
"""

import os
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from joulecut_controller.web.responses import JSON_TYPE
from joulecut_wire.address import is_loopback
from joulecut_wire.loopback_socket import user_of
from joulecut_wire.quantity import text
from joulecut_wire.section import Listed, key
from joulecut_wire.web_config import WebConfig, basic

FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
MARK = "x-joulecut-command"  # a header that no form and no script of another site can send
NAMES = "names"  # key of a request's state: the names in its client certificate
_USERS = Listed(text(1000, "a user of web_config, or a name in a client certificate"))


@dataclass(frozen=True, slots=True)
class Roles:
    """Users of `web_config`, or names (subjectAltName) of client certificates where it has none.

    `command`: pause, resume, restore, adopt.
    """

    command: tuple[str, ...] = key(_USERS, ())


@dataclass(frozen=True, slots=True)
class Senders:
    """Identifies senders by the web configuration, where there is one, and by `roles`."""

    web: WebConfig | None = None
    roles: Roles = Roles()

    def of(self, request: Request) -> str:
        """The sender of a command, as the audit log names it. Over loopback root and the
        controller's own user may send any, without a login they alone: a sidecar's callers come
        from there as well.
        Raises HTTPException.
        """
        _check_origin(request)
        if self.web is None or not self.web.authenticates:
            return _local(request, "set users or client certificates in web_config")
        # Without passwords an Authorization header is a claim.
        user = basic(request.headers.get("authorization"))[0] if self.web.users else ""
        names = {user} if user else set(getattr(request.state, NAMES, ()))
        known = user or " ".join(sorted(names)) or "a client certificate"
        if names & set(self.roles.command):
            return known
        asked = f"name {known:.100} under roles.command in the controller's configuration"
        return f"{known}, {_local(request, asked)}"


def _local(request: Request, otherwise: str) -> str:
    """Root or the user of the controller, over loopback. Raises HTTPException."""
    if any(name in request.headers for name in FORWARDED):
        raise HTTPException(403, f"a proxy's callers may read only: {otherwise}")
    if request.client is None or not is_loopback(request.client.host):
        raise HTTPException(403, f"this sender may read only: use loopback, or {otherwise}")
    uid = user_of(*request.client, request.scope["server"][1])
    if uid not in (0, os.geteuid()):
        raise HTTPException(403, f"only root and the user of the controller may: {otherwise}")
    return f"loopback, uid {uid}"


def _check_origin(request: Request) -> None:
    """Raises HTTPException for requests that a page of another site could send."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON_TYPE:
        raise HTTPException(415, f"a command needs content-type {JSON_TYPE}")
    if MARK not in request.headers:
        raise HTTPException(403, f"a command needs the header {MARK}")
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise HTTPException(403, "commands from another site are refused")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "commands from another site are refused")
