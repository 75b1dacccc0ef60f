"""Client of the controller's JSON API. Every failure becomes one line.

Standard library only: `joulecut status` works on a laptop with the bare package.
"""

import base64
import contextlib
import email.utils
import functools
import getpass
import json
import os
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joulecut_wire import http_client, user_file
from joulecut_wire.errors import BadInput, JoulecutError, Unavailable
from joulecut_wire.http_client import Answer

Json = dict[str, Any]

DEFAULT_URL = "http://127.0.0.1:9440"  # DESIGN: the controller's page, API and metrics
TIMEOUT_S = 5.0  # a controller answers in milliseconds
ANSWER_TIMES = 4.0  # timeouts that a whole answer may take: 10 MB over a slow link
ORDER_TIMEOUT_S = 25.0  # the controller waits 20 s for its agents, and 15 s for another controller
LOOPBACK = {"127.0.0.1", "::1", "localhost"}  # a leader on this machine may be there only
BRIEF = "/api/v1/brief"
MARK = "x-joulecut-command"  # required for commands, see docs/commands.md#the-http-api
WHO_LENGTH = 100
USER, PASSWORD_FILE = "JOULECUT_USER", "JOULECUT_PASSWORD_FILE"  # in the environment
SKEW_S_MIN = 5.0  # the header has whole seconds, and an answer takes time
ANSWER_BYTES_MAX = 64 << 20  # A board of ten thousand GPUs is about 10 MB.

# Keys of every board of this version; another program on the port lacks them.
BOARD_KEYS = {
    "at_unix_s",
    "cluster",
    "epoch",
    "events",
    "gpus",
    "jobs",
    "mode",
    "nodes",
    "pass_number",
    "policy",
}


class Gone(Unavailable):
    """No connection, or no answer in time."""


class Standby(Unavailable):
    """It answers, but is not the leader or has completed no pass yet."""


class Controller:
    """One controller by its URL. Raises BadInput for a malformed URL."""

    def __init__(self, url: str) -> None:
        allowed = f"http://HOST:PORT, for example {DEFAULT_URL}"
        self.name = self.url = http_client.checked_url("--controller", url, "a controller", allowed)
        self._headers = _credentials()
        self.skew_s = 0.0  # this machine's clock ahead of the controller's, at the last answer
        self._server = http_client.server_of(self.url)

    def board(self) -> Json:
        """The whole board of the last pass. Raises Unavailable."""
        return self._of_this_version(self._get("/api/v1/board"), BOARD_KEYS)

    def events(self, job: str, limit: int) -> list[Json]:
        """The newest audit log entries of a job, newest first. Raises Unavailable."""
        query = urllib.parse.urlencode({"job": job, "limit": limit})
        events: list[Json] = self._get(f"/api/v1/events?{query}").get("events", [])
        return events

    def brief(self) -> Json:
        """The board without its per-GPU lists; see docs/commands.md#the-http-api."""
        return self._of_this_version(self._get(BRIEF), BOARD_KEYS | {"brief"})

    def job(self, name: str) -> Json:
        """One job of the board. Raises BadInput where the policy has no such job."""
        raw = self._asked(f"/api/v1/jobs/{quoted(name)}", ORDER_TIMEOUT_S, bad=(404,))
        return self._of_this_version(self._parsed(raw), {"name", "holds", "decision", "gpus"})

    def order(self, path: str, **words: str | bool) -> Json:
        """Send a command and return its outcome.

        Raises BadInput for an unknown job or node, Standby where the controller does not lead.
        """
        said = {"by": _who(), **{key: word for key, word in words.items() if word}}
        body = json.dumps(said).encode()
        raw = self._asked(f"/api/v1/{path}", ORDER_TIMEOUT_S, body, bad=(400, 404, 409))
        return self._of_this_version(self._parsed(raw), {"complete", "sentence"})

    def _of_this_version(self, answer: Json, keys: set[str]) -> Json:
        """Raises Unavailable where keys are missing: another program, or another version."""
        if missing := keys - answer.keys():
            raise Unavailable(
                f"{self.url} is not a Joulecut controller of this version: its answer lacks "
                + ", ".join(sorted(missing))
            )
        return answer

    def _get(self, path: str, timeout_s: float = TIMEOUT_S) -> Json:
        return self._parsed(self._asked(path, timeout_s))

    def _asked(
        self,
        path: str,
        timeout_s: float,
        body: bytes | None = None,
        bad: tuple[int, ...] = (),
    ) -> Answer:
        """The answer. A status in `bad` raises BadInput."""
        headers = dict(self._headers)
        if body is not None:
            headers |= {"content-type": "application/json", MARK: "1"}
        try:
            answer = self._server.ask(
                path,
                within_s=ANSWER_TIMES * timeout_s,
                silent_s=timeout_s,
                bytes_max=ANSWER_BYTES_MAX,
                headers=headers,
                body=body,
            )
        except OSError as error:
            raise self._no_answer(error) from None
        self.skew_s = _skew_s(answer.headers.get("date", ""))
        if answer.status == 200:
            return answer
        said = _sentence(answer)
        if answer.status in bad:
            raise BadInput(f"the controller at {self.url}", said)
        if answer.status == 503:
            raise Standby(self._not_now(path, said))
        raise Unavailable(f"the controller at {self.url} refused: {said}")

    def _no_answer(self, error: OSError) -> Unavailable:
        if isinstance(error, http_client.TooLong):
            return Unavailable(f"{self.url} answers with {error}")
        if isinstance(error, http_client.NotHttp):
            return Unavailable(
                f"{self.url} is not a Joulecut controller: it does not speak HTTP"
                + ("; is it https://?" if self.url.startswith("http://") else "")
            )
        if said := _tls_fault(error):
            return Gone(f"the controller at {self.url} {said}")
        return Gone(
            f"no controller answers at {self.url} ({http_client.why(error)}): "
            "is joulecut-controller running? --controller URL selects another"
        )

    def _not_now(self, path: str, said: str) -> str:
        """Why it refused, with the leader's address where another controller leads."""
        if path != BRIEF:
            with contextlib.suppress(Unavailable):
                board = self.brief()
                if stands_by(board):
                    return standby_text(board, self.url)
        return f"the controller at {self.url} refused: {said}"

    def _parsed(self, answer: Answer) -> Json:
        try:
            value = answer.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Unavailable(f"{self.url} is not a Joulecut controller: its answer is not JSON")
        return value


def _sentence(answer: Answer) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.status} {answer.reason}"


def _credentials() -> dict[str, str]:
    """Basic credentials from the environment; a command line can be read by others.

    Raises BadInput where the password file cannot be read, or is given without a user.
    """
    user, path = os.environ.get(USER, ""), os.environ.get(PASSWORD_FILE, "")
    if ":" in user or (path and not user):
        raise BadInput(USER, f"{user!r:.60}", f"a name without a colon, with {PASSWORD_FILE}")
    if not user:
        return {}
    password = user_file.line(Path(path)) if path else ""
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"authorization": f"Basic {token}"}


def understood(run: Callable[[list[str]], int]) -> Callable[[list[str]], int]:
    """A command that shows answers: one of another shape ends it in a line, as one without a key
    does. Answers have a few hundred values; each is checked where it is used.
    """

    @functools.wraps(run)
    def checked(argv: list[str]) -> int:
        try:
            return run(argv)
        except JoulecutError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise Unavailable(
                "the answer is not that of a Joulecut controller of this version: "
                f"{type(error).__name__}: {error!s:.200}"
            ) from error

    return checked


def stands_by(board: Json) -> bool:
    """Whether a standby answered; what is no controller's answer has no `role`."""
    return bool(board.get("role") == "standby")


def standby_text(board: Json, url: str) -> str:
    """One line for a request that only the leader can serve."""
    return f"the controller at {url} is a standby without jobs; {where_to_ask(board, url)}"


def where_to_ask(board: Json, url: str) -> str:
    """How to reach the leader, as the end of a sentence."""
    if not board["leader"]:
        return "no leader is known: try the other controllers, or this one again in a moment"
    asked = urllib.parse.urlsplit(url)
    host, _, port = board["leader"].rpartition(":")
    if host == socket.gethostname() and asked.hostname in LOOPBACK:
        host = f"[{asked.hostname}]" if ":" in asked.hostname else asked.hostname
    return f"use the leader: --controller {asked.scheme}://{host}:{port}"


def has_node(board: Json, name: str) -> bool:
    """Whether it is the name of a node, or the address of an agent whose node has no name yet."""
    return any((node["node"] or node["address"]) == name for node in board["nodes"])


def quoted(name: str) -> str:
    """A job's name as a segment of a URL."""
    return urllib.parse.quote(name, safe="")


def _who() -> str:
    """User and host for the audit log; the controller records it as unverified."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container without a name for its uid
        name = f"uid {os.getuid()}"
    return "".join(c for c in f"{name}@{socket.gethostname()}" if c.isprintable())[:WHO_LENGTH]


def _skew_s(date: str) -> float:
    """How far this machine's clock is ahead of the controller's; 0 within `SKEW_S_MIN`."""
    try:
        there_s = email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return 0.0
    skew_s = time.time() - there_s
    return skew_s if abs(skew_s) > SKEW_S_MIN else 0.0


def _tls_fault(error: OSError) -> str:
    """The TLS fault of a connection; empty for any other error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"has a certificate that is not trusted here ({error.verify_message}): set "
            "SSL_CERT_FILE=ca.crt to its CA certificate"
        )
    if isinstance(error, ssl.SSLError):
        return f"does not accept TLS ({error.reason or error}): is it http:// instead of https://?"
    return ""
