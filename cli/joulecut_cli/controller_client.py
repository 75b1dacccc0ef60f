"""Asks the controller's JSON API, and turns every way it can fail into one line.

Standard library only: `joulecut status` must work on a laptop that has nothing else.
"""

import base64
import contextlib
import email.utils
import getpass
import http.client
import json
import os
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from joulecut_wire.errors import BadInput, Unavailable

Json = dict[str, Any]

DEFAULT_URL = "http://127.0.0.1:9440"  # DESIGN: the controller's page, API and metrics
TIMEOUT_S = 5.0  # A controller answers in milliseconds; longer is a dead one.
REPORT_TIMEOUT_S = 60.0  # A month of a hundred jobs is read and compared in seconds.
ORDER_TIMEOUT_S = 25.0  # the controller itself waits 20 s for its agents
LOOPBACK = {"127.0.0.1", "::1", "localhost"}  # a leader on this machine may be there only
BRIEF = "/api/v1/brief"
MARK = "x-joulecut-command"  # without it a controller takes no command; see docs/api.md
WHO_LENGTH = 100
USER, PASSWORD_FILE = "JOULECUT_USER", "JOULECUT_PASSWORD_FILE"  # in the environment
SKEW_S_MIN = 5.0  # the header tells whole seconds, and an answer may take some
ANSWER_BYTES_MAX = 64 << 20  # A board of ten thousand GPUs is about 10 MB.

# What a board of this version has at least; another program on the port has not.
BOARD_KEYS = {
    "at_unix_s",
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
    """Nobody answers there."""


class Standby(Unavailable):
    """It answers, and cannot do it: it does not lead, or has no pass behind it yet."""


class Controller:
    """One controller by its URL. Raises BadInput for a URL that cannot be one."""

    def __init__(self, url: str) -> None:
        self.url = _checked(url)
        self._headers = _credentials()
        self.skew_s = 0.0  # this machine's clock before the controller's, as of the last answer
        # No proxy: a controller is on this machine or this network.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def board(self) -> Json:
        """Everything shown, as of the last pass. Raises Unavailable."""
        return self._of_this_version(self._get("/api/v1/board"), BOARD_KEYS)

    def events(self, job: str, limit: int) -> list[Json]:
        """The newest lines of the audit trail about a job, newest first. Raises Unavailable."""
        query = urllib.parse.urlencode({"job": job, "limit": limit})
        events: list[Json] = self._get(f"/api/v1/events?{query}").get("events", [])
        return events

    def report(self, query: dict[str, str]) -> Json:
        """Measured savings of a period. Raises Unavailable."""
        return self._get(f"/api/v1/report?{urllib.parse.urlencode(query)}", REPORT_TIMEOUT_S)

    def receipt(self, job: str, query: dict[str, str]) -> Json:
        """One job's receipt. Raises BadInput for a job that nobody knows, Unavailable."""
        path = f"/api/v1/jobs/{quoted(job)}/receipt?{urllib.parse.urlencode(query)}"
        return self._parsed(self._asked(path, REPORT_TIMEOUT_S, bad=(404,)))

    def brief(self) -> Json:
        """The board without what a large fleet has thousands of; see docs/api.md."""
        keys = BOARD_KEYS | {"brief", "gpu_counts", "node_counts", "node_names"}
        return self._of_this_version(self._get(BRIEF), keys)

    def job(self, name: str) -> Json:
        """One job as shown. Raises BadInput where the policy has none of that name."""
        raw = self._asked(f"/api/v1/jobs/{quoted(name)}", TIMEOUT_S, bad=(404,))
        return self._of_this_version(self._parsed(raw), {"name", "holds", "decision", "gpus"})

    def policy(self) -> Json:
        """The policy in force, as values. Raises Unavailable."""
        return self._of_this_version(self._get("/api/v1/policy"), {"jobs", "source", "digest"})

    def order(self, path: str, **words: str | bool) -> Json:
        """Commands something, and answers what became of it once that is known.

        Raises BadInput for what the controller does not know, Standby where it does not lead.
        """
        said = {"by": _who(), **{key: word for key, word in words.items() if word}}
        body = json.dumps(said).encode()
        raw = self._asked(f"/api/v1/{path}", ORDER_TIMEOUT_S, body, bad=(400, 404, 409))
        return self._of_this_version(self._parsed(raw), {"complete", "sentence"})

    def _of_this_version(self, answer: Json, keys: set[str]) -> Json:
        """Raises Unavailable where something is missing: another program, or another version."""
        if missing := keys - answer.keys():
            raise Unavailable(
                f"{self.url} is no Joulecut controller of this version: its answer has no "
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
    ) -> bytes:
        """The answer's bytes. What is refused with a status in `bad` is the asker's own fault."""
        headers = dict(self._headers)
        if body is not None:
            headers |= {"content-type": "application/json", MARK: "1"}
        # The scheme was checked with the URL.
        request = urllib.request.Request(self.url + path, body, headers)  # noqa: S310
        try:
            with self._open(request, timeout=timeout_s) as answer:
                self.skew_s = _skew_s(answer.headers.get("date", ""))
                raw: bytes = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            said = _sentence(error)
            if error.code in bad:
                raise BadInput(f"the controller at {self.url}", said) from None
            if error.code == 503:
                raise Standby(self._not_now(path, said)) from None
            raise Unavailable(f"the controller at {self.url} says: {said}") from None
        except http.client.HTTPException:
            raise Unavailable(
                f"{self.url} is no Joulecut controller: it does not speak HTTP"
                + ("; is it https://?" if self.url.startswith("http://") else "")
            ) from None
        except OSError as error:  # refused, unknown host, timed out, broken off
            if said := _tls_fault(error):
                raise Gone(f"the controller at {self.url} {said}") from None
            raise Gone(
                f"no controller answers at {self.url} ({_cause(error, timeout_s)}): "
                "is joulecut-controller running? --controller URL names another"
            ) from None
        return raw

    def _not_now(self, path: str, said: str) -> str:
        """Why it cannot do that; where another one leads, who."""
        if path != BRIEF:
            with contextlib.suppress(Unavailable):
                board = self.brief()
                if stands_by(board):
                    return standby_text(board, self.url)
        return f"the controller at {self.url} says: {said}"

    def _parsed(self, raw: bytes) -> Json:
        if len(raw) > ANSWER_BYTES_MAX:
            raise Unavailable(f"{self.url} answers with more than {ANSWER_BYTES_MAX} bytes")
        try:
            value = json.loads(raw)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Unavailable(f"{self.url} is no Joulecut controller: its answer is not JSON")
        return value


def _checked(url: str) -> str:
    allowed = f"http://HOST:PORT, for example {DEFAULT_URL}"
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # raises for a port that is none
        (parts.hostname or "").encode("idna")  # raises for what no resolver takes
    except ValueError as error:
        raise BadInput("--controller", f"{url}: {error}", allowed) from None
    plain = not (parts.query or parts.fragment or parts.username or parts.path.strip("/"))
    if parts.scheme not in {"http", "https"} or not parts.hostname or not plain:
        raise BadInput("--controller", f"{url!r} is not the URL of a controller", allowed)
    if any(ord(letter) <= 32 or ord(letter) > 126 for letter in url):
        raise BadInput("--controller", f"{url!r} has characters no URL has", allowed)
    return f"{parts.scheme}://{parts.netloc}"


def _sentence(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(4096))["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"{error.code} {error.reason}"


def _credentials() -> dict[str, str]:
    """For a controller that asks for a password; never on a command line, which others can read.

    Raises BadInput where the file cannot be read.
    """
    user, path = os.environ.get(USER, ""), os.environ.get(PASSWORD_FILE, "")
    if not user:
        return {}
    try:
        password = Path(path).read_text().rstrip("\r\n") if path else ""
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is no text"
        raise BadInput(f"{PASSWORD_FILE}={path}", why, "a file that holds the password") from None
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"authorization": f"Basic {token}"}


def stands_by(board: Json) -> bool:
    """Whether the controller that answered does not lead; one of an older version never says."""
    return bool(board.get("role") == "standby")


def standby_text(board: Json, url: str) -> str:
    """Why a standby at `url` cannot do what was asked of it, in one line."""
    return f"the controller at {url} stands by and knows no jobs; {where_to_ask(board, url)}"


def where_to_ask(board: Json, url: str) -> str:
    """What to do about a board of a standby at `url`, as the end of a sentence."""
    if not board["leader"]:
        return "nobody is known to lead: ask the other controllers, or this one again in a moment"
    asked = urllib.parse.urlsplit(url)
    host, _, port = board["leader"].rpartition(":")
    if host == socket.gethostname() and asked.hostname in LOOPBACK:
        host = f"[{asked.hostname}]" if ":" in asked.hostname else asked.hostname
    return f"ask the one that leads: --controller {asked.scheme}://{host}:{port}"


def quoted(name: str) -> str:
    """A job's name as a part of an address."""
    return urllib.parse.quote(name, safe="")


def _who() -> str:
    """Who says so, for the trail: a claim, which the controller marks as one."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container without a name for its uid
        name = f"uid {os.getuid()}"
    return "".join(c for c in f"{name}@{socket.gethostname()}" if c.isprintable())[:WHO_LENGTH]


def _skew_s(date: str) -> float:
    """How far this machine's clock is ahead of the controller's; 0 within what its clock tells."""
    try:
        told = email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return 0.0
    skew_s = time.time() - told
    return skew_s if abs(skew_s) > SKEW_S_MIN else 0.0


def _tls_fault(error: OSError) -> str:
    """What is wrong between two that do answer each other; empty for anything else."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"shows a certificate that is not trusted here ({reason.verify_message}): name its "
            "authority by SSL_CERT_FILE=ca.crt in the environment"
        )
    if isinstance(reason, ssl.SSLError):
        return f"refuses encryption ({reason.reason or reason}): is it http:// instead of https://?"
    return ""


def _cause(error: OSError, timeout_s: float) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"nothing within {timeout_s:.0f} s"
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
