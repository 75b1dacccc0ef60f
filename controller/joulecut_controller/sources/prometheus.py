"""Read-only client of a Prometheus; every failure becomes one line.

Redirects are not followed (a password would go with them), and the size of an answer is bounded.
"""

import base64
import ssl
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from joulecut_wire import http_client, user_file
from joulecut_wire.address import is_loopback
from joulecut_wire.errors import BadInput, Unavailable
from joulecut_wire.http_client import Answer

TIMEOUT_S = 120.0  # Prometheus's own default limit for a query
ANSWER_BYTES_MAX = 256 << 20  # chunks are chosen far below

RATE_BYTES_MAX = 1 << 20  # of the answer to an instant query: one value is expected
NAME = "Prometheus"  # where a fault is, in messages
# As flags of a command, without dashes as keys of a configuration.
CREDENTIALS = "give --bearer-token-file FILE, or --username NAME with --password-file FILE"
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
class Access:
    """Credentials. Raises BadInput for files that cannot be read."""

    bearer_token: Path | None = None
    username: str = ""
    password: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def headers(self) -> dict[str, str]:
        if self.bearer_token is not None:
            return {"Authorization": f"Bearer {user_file.line(self.bearer_token)}"}
        if self.username:
            word = user_file.line(self.password) if self.password is not None else ""
            pair = base64.b64encode(f"{self.username}:{word}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        return {}

    def context(self) -> ssl.SSLContext:
        for path in filter(None, (self.ca, self.cert, self.key)):
            user_file.open_regular(path).close()  # OpenSSL would wait for a pipe's writer
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            allowed = "a file of PEM certificates"
            raise BadInput(str(self.ca), http_client.why(error), allowed) from None
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key)
            except (OSError, ssl.SSLError) as error:
                allowed = "a PEM certificate and its key"
                raise BadInput(str(self.cert), http_client.why(error), allowed) from None
        return context


class Prometheus:
    """One server by its URL. Raises BadInput for a URL that cannot be one."""

    def __init__(self, url: str, access: Access, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.url = http_client.checked_url(NAME, url, "a Prometheus", ALLOWED, prefix=True)
        self._headers = access.headers()
        if (
            self._headers
            and self.url.startswith("http://")
            and not is_loopback(urllib.parse.urlsplit(self.url).hostname or "")
        ):
            what = f"{self.url} would receive a secret without encryption"
            raise BadInput(NAME, what, "https://, or an address of this machine")
        # All public certificates take 40 ms to read, and a job's rate is asked for again and again.
        given = self.url.startswith("https://") or access.ca is not None or access.cert is not None
        self._server = http_client.server_of(self.url, access.context() if given else None)

    def names(self, begin_s: float, end_s: float, matcher: str) -> frozenset[str]:
        """Names of metrics with any sample in this time. Raises Unavailable."""
        asked = {"start": f"{begin_s:.3f}", "end": f"{end_s:.3f}", "match[]": matcher}
        data = self._parsed(self._get("/api/v1/label/__name__/values", asked)).get("data")
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
        answer = self._get("/api/v1/query_range", asked)
        try:
            return msgspec.json.decode(answer.body, type=_Matrix).data.result
        except (ValueError, RecursionError):  # msgspec's own errors are values as well
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
        except (LookupError, TypeError, ValueError, OverflowError):
            raise self._not_prometheus("its response to a query has no values") from None

    def _get(
        self, path: str, asked: Mapping[str, str], bytes_max: int = ANSWER_BYTES_MAX
    ) -> Answer:
        prefix = urllib.parse.urlsplit(self.url).path
        try:
            answer = self._server.ask(
                f"{prefix}{path}?{urllib.parse.urlencode(asked)}",
                within_s=self._timeout_s,
                bytes_max=bytes_max,
                headers=self._headers,
            )
        except http_client.NotHttp:
            raise self._not_prometheus("it does not speak HTTP") from None
        except http_client.TooLong as error:
            raise Unavailable(f"{self.url} answers with {error}") from None
        except OSError as error:
            raise self._no_answer(error) from None
        if answer.status != 200:
            raise self._refused(answer)
        return answer

    def _refused(self, answer: Answer) -> Unavailable:
        status = answer.status
        if status in {401, 403}:
            said = "requires authentication" if status == 401 else "denies access"
            return Unavailable(f"{self.url} {said}: {CREDENTIALS}")
        if 300 <= status < 400:
            where = answer.headers.get("Location", "somewhere else")
            return Unavailable(f"{self.url} redirects to {where}: give that URL")
        try:
            said = str(answer.json()["error"])
        except (ValueError, KeyError, TypeError):
            return self._not_prometheus(f"it answers {status} {answer.reason}")
        return Unavailable(f"Prometheus at {self.url}: {said}")

    def _no_answer(self, error: OSError) -> Unavailable:
        if isinstance(error, ssl.SSLCertVerificationError):
            return Unavailable(
                f"the certificate of {self.url} cannot be verified "
                f"({error.verify_message}): give the file of its CA certificate"
            )
        return Unavailable(
            f"no Prometheus answers at {self.url} ({http_client.why(error)}): check that it runs, "
            "and check the address"
        )

    def _parsed(self, answer: Answer) -> dict[str, Any]:
        try:
            value = answer.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self._not_prometheus("its response is not JSON")
        return value

    def _not_prometheus(self, why: str) -> Unavailable:
        return Unavailable(
            f"{self.url} is not a Prometheus: {why}; give the address of its web page"
        )


def samples(rows: Sequence[Series]) -> int:
    return sum(len(row.values) for row in rows)
