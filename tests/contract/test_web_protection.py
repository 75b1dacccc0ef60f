"""The exporter toolkit's web configuration at both HTTP doors: TLS, client names, passwords."""

import asyncio
import base64
import contextlib
import http.client
import shutil
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml
from certificates import Authority, Leaf
from prometheus_client.registry import Collector
from running_agent import PATIENCE_S, eventually

from joulecut_agent.control.health import Health
from joulecut_agent.export import http_server
from joulecut_agent.export.exporter import Families
from joulecut_agent.export.http_server import Exporter
from joulecut_controller.web.app import build
from joulecut_controller.web.board_cache import Publisher
from joulecut_controller.web.server import Server
from joulecut_wire.errors import BadInput
from joulecut_wire.web_config import WebConfig

PASSWORD = "correct horse"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4, b"2a")).decode()


def nothing() -> Collector:
    return Families()


class Web:
    """A folder with a web configuration, its certificates, and what was complained of."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder = folder
        self.ca = Authority(folder, "ca")
        self.server = self.ca.leaf("server", "IP:127.0.0.1")
        self.complaints: list[str] = []
        self.write(config)
        self.config = WebConfig(folder / "web.yaml", self.complaints.append)

    def write(self, config: Mapping[str, Any]) -> None:
        fresh = self.folder / "web.yaml.new"
        fresh.write_text(yaml.safe_dump(dict(config)))
        fresh.replace(self.folder / "web.yaml")


TLS = {"cert_file": "server.pem", "key_file": "server.key"}
MUTUAL = {
    **TLS,
    "client_ca_file": "ca.pem",
    "client_auth_type": "RequireAndVerifyClientCert",
}


def fetch(
    port: int, ca: Path | None = None, leaf: Leaf | None = None, *, path: str = "/metrics",
    password: str | None = None, user: str = "prometheus", highest: ssl.TLSVersion | None = None,
) -> tuple[int, dict[str, str]]:  # fmt: skip
    """Status and headers; 0 where no answer came."""
    context = ssl.create_default_context(cafile=ca)
    if leaf is not None:
        context.load_cert_chain(leaf.cert, leaf.key)
    if highest is not None:
        context.maximum_version = highest
    line: http.client.HTTPConnection
    if ca is None:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    else:
        line = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)
    headers = {}
    if password is not None:
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        headers["Authorization"] = f"Basic {token}"
    try:
        line.request("GET", path, headers=headers)
        answer = line.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        return 0, {}
    finally:
        line.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}


class ListenAddresses:
    """The same protection at the agent's page and at the controller's."""

    def __init__(self, kind: str, web: WebConfig) -> None:
        self.kind = kind
        self.web = web

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        if self.kind == "agent":
            probes = {"/healthz": lambda: Health(True, ("ok",))}
            exporter = Exporter(nothing, "127.0.0.1", 0, self.web, probes)
            exporter.start()
            yield exporter.port
            return
        ready, done = threading.Event(), asyncio.Event()
        ports: list[int] = []
        loop = asyncio.new_event_loop()

        async def serve() -> None:
            app = build(Publisher(), metrics=lambda _: b"", web=self.web)
            server = Server(app, "127.0.0.1", 0, self.web)
            await server.start()
            ports.append(server.port)
            ready.set()
            await done.wait()
            await server.stop()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        assert ready.wait(PATIENCE_S)
        try:
            yield ports[0]
        finally:
            loop.call_soon_threadsafe(done.set)
            thread.join(PATIENCE_S)
            loop.close()


@pytest.fixture(params=["agent", "controller"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(http_server, "REQUEST_WAIT_S", PATIENCE_S)  # nobody here is slow on purpose
    return str(request.param)


def test_tls_and_its_lowest_version(tmp_path: Path, kind: str) -> None:
    web = Web(tmp_path, tls_server_config={**TLS, "min_version": "TLS13"})
    with ListenAddresses(kind, web.config).open() as port:
        assert fetch(port, web.ca.cert)[0] == 200
        assert fetch(port, web.ca.cert, highest=ssl.TLSVersion.TLSv1_2)[0] == 0
        assert fetch(port)[0] == 0, "plain text"


def test_client_certificates_of_a_ca(tmp_path: Path, kind: str) -> None:
    web = Web(tmp_path, tls_server_config=MUTUAL)
    prom = web.ca.leaf("prom", "DNS:prom.test")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    forged = Authority(elsewhere, "ca").leaf("prom", "DNS:prom.test")
    with ListenAddresses(kind, web.config).open() as port:
        assert fetch(port, web.ca.cert, prom)[0] == 200
        for leaf in (forged, None):
            assert fetch(port, web.ca.cert, leaf)[0] == 0
        assert fetch(port, web.ca.cert, prom)[0] == 200
    assert web.config.authenticates


def test_passwords_and_headers(tmp_path: Path, kind: str) -> None:
    web = Web(
        tmp_path,
        basic_auth_users={"prometheus": HASH},
        http_server_config={"headers": {"X-Frame-Options": "SAMEORIGIN"}, "http2": False},
    )
    with ListenAddresses(kind, web.config).open() as port:
        status, headers = fetch(port)
        assert status == 401
        assert headers["www-authenticate"].startswith("Basic ")
        for password, user in (
            ("wrong", "prometheus"),
            (PASSWORD, "other"),
            ("", ""),
            ("\0", "prometheus"),
            ("nobody", "ghost"),  # the stand-in that is compared for who is unknown
            ("x" * 500, "prometheus"),
        ):
            assert fetch(port, password=password, user=user)[0] == 401
        for _ in range(2):
            status, headers = fetch(port, password=PASSWORD)
            assert (status, headers["x-frame-options"]) == (200, "SAMEORIGIN")
        assert fetch(port, path="/healthz")[0] in {200, 503}, "no password for a probe"


def test_a_changed_file_is_read_again_and_a_broken_one_is_not(tmp_path: Path, kind: str) -> None:
    web = Web(tmp_path, tls_server_config=TLS)
    with ListenAddresses(kind, web.config).open() as port:
        assert fetch(port, web.ca.cert)[0] == 200
        web.write({"tls_server_config": {**TLS, "min_versoin": "TLS13"}})
        eventually("the complaint", lambda: fetch(port, web.ca.cert) and web.complaints)
        assert "min_versoin" in web.complaints[0]
        assert "stay in force" in web.complaints[0]
        assert fetch(port, web.ca.cert)[0] == 200
        web.write({"tls_server_config": MUTUAL, "basic_auth_users": {"prometheus": HASH}})
        eventually("the new rules", lambda: fetch(port, web.ca.cert)[0] == 0)
        leaf = web.ca.leaf("prom", "DNS:prom.test")
        assert fetch(port, web.ca.cert, leaf)[0] == 401
        assert fetch(port, web.ca.cert, leaf, password=PASSWORD)[0] == 200
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        other = Authority(elsewhere, "ca")
        fresh = other.leaf("server", "IP:127.0.0.1")
        shutil.copy(fresh.key, tmp_path / "server.key")
        shutil.copy(fresh.cert, tmp_path / "server.pem")
        eventually(
            "the new certificate",
            lambda: fetch(port, other.cert, leaf, password=PASSWORD)[0] == 200,
        )
        web.write({"basic_auth_users": {"prometheus": HASH}})
        eventually("the complaint", lambda: fetch(port, other.cert) and len(web.complaints) > 2)
        assert fetch(port)[0] == 0, "TLS does not go away under a running page"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"tls_config": {}}, "tls_config: unknown key"),
        ({"tls_server_config": {"cert_file": "server.pem"}}, "key_file: key missing"),
        ({"tls_server_config": {**TLS, "cipher_suites": []}}, "cipher_suites: unknown key"),
        ({"tls_server_config": {**TLS, "min_version": "TLS10"}}, "allowed: TLS12 | TLS13"),
        ({"tls_server_config": {**TLS, "key_file": "ca.key"}}, "is not the key of"),
        ({"tls_server_config": {**TLS, "key_file": "ca.pem"}}, "does not load"),
        ({"tls_server_config": {**TLS, "cert_file": "no.pem"}}, "No such file"),
        (
            {"tls_server_config": {**MUTUAL, "client_auth_type": "RequireAnyClientCert"}},
            '"RequireAnyClientCert" is not allowed',
        ),
        ({"tls_server_config": {**TLS, "client_ca_file": "ca.pem"}}, "one without the other"),
        ({"tls_server_config": {**MUTUAL, "client_allowed_sans": []}}, "sans: unknown key"),
        ({"basic_auth_users": {"a": "secret"}}, "basic_auth_users.a: is not a bcrypt hash"),
        ({"basic_auth_users": {"a": "$2a$31$" + "a" * 53}}, "of a cost from 4 to 15"),
        ({"basic_auth_users": ["a"]}, "is not a mapping"),
        ({"http_server_config": {"headers": {"Server": "x"}}}, "headers.Server: unknown key"),
        ({"http_server_config": {"headers": {"X-Frame-Options": "a\r\nb: c"}}}, "one line"),
        ({"rate_limit": {}}, "rate_limit: unknown key"),
    ],
)
def test_bad_configurations_are_one_line(
    tmp_path: Path, config: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadInput) as caught:
        Web(tmp_path, **config)
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value)
