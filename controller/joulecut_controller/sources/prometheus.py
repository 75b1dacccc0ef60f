"""Read-only client of a Prometheus; every failure becomes one line.

Redirects are not followed (a password would go with them), and the size of an answer is bounded.
"""

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from joulecut_wire import user_file
from joulecut_wire.address import is_loopback
from joulecut_wire.errors import BadInput, Unavailable

TIMEOUT_S = 120.0  # Prometheus's own default limit for a query
ANSWER_BYTES_MAX = 256 << 20  # chunks are chosen far below
SECRET_BYTES_MAX = 1 << 16

RATE_BYTES_MAX = 1 << 20  # of the answer to an instant query: one value is expected
ALLOWED = "http://HOST:PORT[/PREFIX] or https://..., for example http://127.0.0.1:9090"


class Series(msgspec.Struct, frozen=True):
    """One row of a matrix: labels, and (unix seconds, value) in the order of time."""

    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Data(msgspec.Struct, frozen=True):
    result: list[Series]


class _Matrix(msgspec.Struct, frozen=True):
    data: _Data


@dataclass(frozen=True, slots=True)
class Words:
    """How messages name what the operator gave: flags of a command, or keys of a file."""

    address: str
    credentials: str
    ca: str
    cert: str


FLAGS = Words(
    "--prometheus",
    "--bearer-token-file FILE, or --username NAME with --password-file FILE",
    "--ca",
    "--cert",
)
KEYS = Words(
    "prometheus.url",
    "prometheus.bearer_token_file, or username with password_file",
    "prometheus.ca",
    "prometheus.cert",
)


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials. Raises BadInput for files that cannot be read."""

    bearer_token: Path | None = None
    username: str = ""
    password: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    words: Words = FLAGS

    def headers(self) -> dict[str, str]:
        if self.bearer_token is not None:
            return {"Authorization": f"Bearer {_secret(self.bearer_token)}"}
        if self.username:
            word = _secret(self.password) if self.password is not None else ""
            pair = base64.b64encode(f"{self.username}:{word}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        return {}

    def context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise BadInput(
                f"{self.words.ca} {self.ca}", _why(error), "a file of PEM certificates"
            ) from None
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key)
            except (OSError, ssl.SSLError) as error:
                where = f"{self.words.cert} {self.cert}"
                raise BadInput(where, _why(error), "a PEM certificate and its key") from None
        return context


class _Straight(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: they come back as errors."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Prometheus:
    """One server by its URL. Raises BadInput for a URL that cannot be one."""

    def __init__(self, url: str, access: Access, *, timeout_s: float = TIMEOUT_S) -> None:
        self._words, self._timeout_s = access.words, timeout_s
        self.url = checked_url(url, access.words)
        self._headers = access.headers()
        if (
            self._headers
            and self.url.startswith("http://")
            and not is_loopback(urllib.parse.urlsplit(self.url).hostname or "")
        ):
            what = f"{self.url} would receive a secret without encryption"
            raise BadInput(self._words.address, what, "https://, or an address of this machine")
        handlers: list[urllib.request.BaseHandler] = [_Straight()]
        # No proxy: a Prometheus is on this machine or this network.
        handlers.append(urllib.request.ProxyHandler({}))
        handlers.append(urllib.request.HTTPSHandler(context=access.context()))
        self._open = urllib.request.build_opener(*handlers).open

    def names(self, begin_s: float, end_s: float, matcher: str) -> frozenset[str]:
        """Names of metrics with any sample in this time. Raises Unavailable."""
        asked = {"start": f"{begin_s:.3f}", "end": f"{end_s:.3f}", "match[]": matcher}
        raw = self._get("/api/v1/label/__name__/values", asked)
        data = self._parsed(raw).get("data")
        if not isinstance(data, list):
            raise self._not_prometheus("its response has no list of names")
        return frozenset(map(str, data))

    def range(self, query: str, begin_s: float, end_s: float, step_s: float) -> list[Series]:
        """Raises Unavailable."""
        asked = {
            "query": query,
            "start": f"{begin_s:.3f}",
            "end": f"{end_s:.3f}",
            "step": f"{step_s:.3f}",
            "timeout": f"{self._timeout_s:.0f}s",
        }
        raw = self._get("/api/v1/query_range", asked)
        try:
            return msgspec.json.decode(raw, type=_Matrix).data.result
        except msgspec.MsgspecError:
            raise self._not_prometheus("its response to a range query is not a matrix") from None

    def now(self, query: str) -> tuple[float, ...]:
        """The values of an expression as of now, of all its series. Raises Unavailable."""
        asked = {"query": query, "timeout": f"{self._timeout_s:.0f}s"}
        answer = self._parsed(self._get("/api/v1/query", asked, RATE_BYTES_MAX))
        try:
            data = answer["data"]
            if data["resultType"] == "scalar":
                return (float(data["result"][1]),)
            return tuple(float(row["value"][1]) for row in data["result"])
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._not_prometheus("its response to a query has no values") from None

    def _get(self, path: str, asked: Mapping[str, str], bytes_max: int = ANSWER_BYTES_MAX) -> bytes:
        request = urllib.request.Request(  # noqa: S310 -- the scheme was checked
            f"{self.url}{path}?{urllib.parse.urlencode(asked)}", headers=self._headers
        )
        try:
            with self._open(request, timeout=self._timeout_s) as answer:
                raw: bytes = answer.read(bytes_max + 1)
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except http.client.HTTPException:
            raise self._not_prometheus("it does not speak HTTP") from None
        except OSError as error:
            raise self._no_answer(error) from None
        if len(raw) > bytes_max:
            raise Unavailable(f"{self.url} answers with more than {bytes_max} bytes")
        return raw

    def _refused(self, error: urllib.error.HTTPError) -> Unavailable:
        if error.code in {401, 403}:
            said = "requires authentication" if error.code == 401 else "denies access"
            return Unavailable(f"{self.url} {said}: {self._words.credentials}")
        if 300 <= error.code < 400:
            where = error.headers.get("Location", "somewhere else")
            return Unavailable(f"{self.url} redirects to {where}: give that URL")
        try:
            said = str(json.loads(error.read(4096))["error"])
        except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
            return self._not_prometheus(f"it answers {error.code} {error.reason}")
        return Unavailable(f"Prometheus at {self.url}: {said}")

    def _no_answer(self, error: OSError) -> Unavailable:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            return Unavailable(
                f"the certificate of {self.url} cannot be verified "
                f"({reason.verify_message}): give its CA certificate with {self._words.ca} FILE"
            )
        if isinstance(reason, TimeoutError):
            said = f"no answer within {self._timeout_s:.0f} s"
        else:
            said = _why(reason) if isinstance(reason, OSError) else str(reason)
        return Unavailable(
            f"no Prometheus answers at {self.url} ({said}): check that it runs, and "
            "check the address"
        )

    def _parsed(self, raw: bytes) -> dict[str, Any]:
        try:
            value = json.loads(raw)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self._not_prometheus("its response is not JSON")
        return value

    def _not_prometheus(self, why: str) -> Unavailable:
        return Unavailable(
            f"{self.url} is not a Prometheus: {why}; "
            f"{self._words.address} takes the address of its web page"
        )


def samples(rows: Sequence[Series]) -> int:
    return sum(len(row.values) for row in rows)


def checked_url(url: str, words: Words = FLAGS) -> str:
    """Without a slash at its end. Raises BadInput where it is no address."""
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # raises for an invalid port
        (parts.hostname or "").encode("idna")  # raises for what no resolver takes
    except ValueError as error:
        raise BadInput(words.address, f"{url}: {error}", ALLOWED) from None
    plain = not (parts.query or parts.fragment or parts.username)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not plain:
        raise BadInput(words.address, f"{url!r} is not the URL of a Prometheus", ALLOWED)
    if any(ord(letter) <= 32 or ord(letter) > 126 for letter in url):
        raise BadInput(words.address, f"{url!r} has characters that no URL has", ALLOWED)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _secret(path: Path) -> str:
    raw = user_file.read(path, SECRET_BYTES_MAX)
    try:
        word = raw.decode().strip()
    except UnicodeDecodeError:
        word = ""
    if not word.isprintable() or not word or len(raw) > SECRET_BYTES_MAX:
        raise BadInput(str(path), "holds no secret", "one line of text")
    return word


def _why(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
