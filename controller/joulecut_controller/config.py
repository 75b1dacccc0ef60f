"""The controller's configuration file: few keys, all checked before anything starts.

Unknown keys stop the controller: an operator who mistyped a bound must hear of it at once.
"""

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulecut_controller.election import leader_lock
from joulecut_controller.election.leader_lock import Timing
from joulecut_controller.reconcile.pacing import Pacing, renewal_s
from joulecut_controller.sources.agents import (
    AGENTS_MAX,
    AgentsByName,
    AgentsBySrv,
    AgentsOfSlurm,
    AgentSource,
    FileOfAgents,
    ListedAgents,
)
from joulecut_controller.sources.endpoint_slices import ACCOUNT, AgentsOfService
from joulecut_controller.sources.prometheus import KEYS as PROMETHEUS_WORDS
from joulecut_controller.sources.prometheus import Access
from joulecut_controller.sources.prometheus_rates import RateServer
from joulecut_controller.store.postgres_url import PREFIX as POSTGRESQL
from joulecut_controller.store.postgres_url import parse_postgres_url, without_password
from joulecut_controller.web.links import Links, is_address
from joulecut_wire.address import is_loopback
from joulecut_wire.document import Document, KeyPath, load
from joulecut_wire.errors import BadInput
from joulecut_wire.tls import TlsFiles

KEYS = (
    "agents", "policy", "profiles", "store", "listen", "interval_s", "lease", "leader", "tls",
    "web_config", "links", "prometheus",
)  # fmt: skip
STORE_KEYS = ("url", "url_file", "password_file", "timeout_s")
URL_BYTES_MAX = 4_096
LINK_KEYS = ("grafana", "runbook", "audit_log")
TLS_KEYS = ("cert", "key", "ca", "server_name")
PROMETHEUS_KEYS = ("url", "bearer_token_file", "username", "password_file", "ca", "cert", "key")
STORE_PREFIX = "sqlite:///"
STORE_ALLOWED = f"{STORE_PREFIX}FILE, or {POSTGRESQL}USER@HOST:PORT/DATABASE"
HTTP_DEFAULT = "127.0.0.1:9440"
INTERVAL_S_DEFAULT = 5.0
INTERVAL_S_MIN = 0.1  # faster than agents sample, a pass would look at the same picture twice
INTERVAL_S_MAX = 300.0  # a lease is three of them; no one should wait longer for a GPU
TTL_S_MIN = 0.5  # a heartbeat every sixth of a second is what an event loop keeps
TTL_S_MAX = 3600.0
AGENT_SOURCES = ("file", "dns", "srv", "kubernetes", "slurm")
AGENT_PORT = 9431
LOOPBACK = "localhost, a loopback address, or unix:PATH; anything else needs a section tls"
PROTECTED = "localhost or a loopback address; anything else needs a web_config with TLS"
SOCKET = "unix:"
SOCKET_PATH_BYTES_MAX = 107  # sun_path of unix(7), without its end


@dataclass(frozen=True, slots=True)
class Config:
    """A checked configuration. `http` is (host, port), port 0 for any free one; files that a
    `store` on PostgreSQL names are relative to `base`.
    """

    agents: AgentSource
    policy: Path
    profiles: Path | None  # a folder of them, for policies to name
    store: str
    http: tuple[str, int]
    interval_s: float
    ttl_s: float | None
    tls: TlsFiles | None = None  # for agents: all of them then, so that none is met in plain text
    server_name: str = ""  # that every agent's certificate must hold, instead of its address
    web_config: Path | None = None
    store_password_file: Path | None = None
    base: Path = Path()
    timing: Timing = field(default_factory=Timing)
    links: Links = field(default_factory=Links)
    prometheus: RateServer | None = None  # for jobs whose policy names a rate


def read(path: Path) -> Config:
    """Reads a configuration. Raises BadInput with file, line, key and what is allowed."""
    document = load(path)
    data = _mapping(document, (), document.data, KEYS)
    for key in ("agents", "policy", "store"):
        if key not in data:
            raise document.bad((), f"key {key} is missing", ", ".join(KEYS))
    base = path.absolute().parent
    listen = _mapping(document, ("listen",), data.get("listen", {}), ("http",))
    lease = _mapping(document, ("lease",), data.get("lease", {}), ("ttl_s",))
    interval_s = _number(
        document,
        ("interval_s",),
        data.get("interval_s", INTERVAL_S_DEFAULT),
        INTERVAL_S_MIN,
        INTERVAL_S_MAX,
    )
    ttl_s = None
    if "ttl_s" in lease:
        ttl_s = _number(document, ("lease", "ttl_s"), lease["ttl_s"], TTL_S_MIN, TTL_S_MAX)
    store, password_file = _store(document, data["store"], base)
    tls, server_name = _tls(document, data, base)
    web_config = None
    if "web_config" in data:
        web_config = base / _text(document, ("web_config",), data["web_config"])
    http = _address(document, ("listen", "http"), listen.get("http", HTTP_DEFAULT), port_min=0)
    if web_config is None and not is_loopback(http[0]):
        raise document.bad(("listen", "http"), f"{http[0]} without encryption", PROTECTED)
    return Config(
        agents=_source(document, data["agents"], base, encrypted=tls is not None),
        policy=base / _text(document, ("policy",), data["policy"]),
        profiles=(
            base / _text(document, ("profiles",), data["profiles"]) if "profiles" in data else None
        ),
        store=store,
        http=http,
        interval_s=interval_s,
        ttl_s=ttl_s,
        tls=tls,
        server_name=server_name,
        web_config=web_config,
        store_password_file=password_file,
        base=base,
        timing=_timing(document, data, store, Pacing(interval_s, 0.0, ttl_s)),
        links=_links(document, data.get("links", {})),
        prometheus=_prometheus(document, data, base),
    )


def _prometheus(document: Document, data: dict[str, Any], base: Path) -> RateServer | None:
    if "prometheus" not in data:
        return None
    given = _mapping(document, ("prometheus",), data["prometheus"], PROMETHEUS_KEYS)
    texts = {key: _text(document, ("prometheus", key), text) for key, text in given.items()}
    files = {
        key: base / texts[name]
        for key, name in {
            "bearer_token": "bearer_token_file", "password": "password_file",
            "ca": "ca", "cert": "cert", "key": "key",
        }.items()
        if name in texts
    }  # fmt: skip
    if "url" not in texts:
        raise document.bad(("prometheus",), "key url is missing", ", ".join(PROMETHEUS_KEYS))
    access = Access(username=texts.get("username", ""), words=PROMETHEUS_WORDS, **files)
    server = RateServer(texts["url"], access)
    try:
        server.connect()
    except BadInput as error:
        raise document.bad(("prometheus",), f"{error.where}: {error.what}", error.allowed) from None
    return server


def _links(document: Document, value: Any) -> Links:
    given = _mapping(document, ("links",), value, LINK_KEYS)
    for key, text in given.items():
        if not is_address(_text(document, ("links", key), text)):
            raise document.bad(("links", key), f"{text!r}", "an address http://... or https://...")
    return Links(**given)


def _timing(document: Document, data: dict[str, Any], store: str, pacing: Pacing) -> Timing:
    """How leadership is proven; the relations to leases and to the store hold in it."""
    given = _mapping(document, ("leader",), data.get("leader", {}), ("check_s", "hold_s"))
    more = data["store"] if isinstance(data["store"], dict) else {}

    def seconds(path: KeyPath, of: dict[str, Any], low: float, high: float) -> float | None:
        key = str(path[-1])
        return _number(document, path, of[key], low, high) if key in of else None

    check_s = seconds(
        ("leader", "check_s"), given, leader_lock.CHECK_S_MIN, leader_lock.CHECK_S_MAX
    )
    hold_s = seconds(("leader", "hold_s"), given, leader_lock.HOLD_S_MIN, leader_lock.HOLD_S_MAX)
    limits = leader_lock.TIMEOUT_S_MIN, leader_lock.TIMEOUT_S_MAX
    timeout_s = seconds(("store", "timeout_s"), more, *limits)
    if store.startswith(POSTGRESQL):
        heartbeat_s = renewal_s(pacing.ttl_within_s(0.0))
        try:
            return leader_lock.timing(check_s, hold_s, timeout_s, renewal_s=heartbeat_s)
        except BadInput as error:
            path = tuple(error.where.split("."))
            raise document.bad(path, error.what, error.allowed) from None
    for path, found in ((("leader", "hold_s"), hold_s), (("store", "timeout_s"), timeout_s)):
        if found is not None:
            raise document.bad(path, "means nothing for a file", f"a store {POSTGRESQL}...")
    return leader_lock.file_lock_timing(check_s)


def _tls(document: Document, data: dict[str, Any], base: Path) -> tuple[TlsFiles | None, str]:
    if "tls" not in data:
        return None, ""
    given = _mapping(document, ("tls",), data["tls"], TLS_KEYS)
    for word in ("cert", "key", "ca"):
        if word not in given:
            raise document.bad(("tls",), f"key {word} is missing", ", ".join(TLS_KEYS))
    cert, key, ca = (base / _text(document, ("tls", k), given[k]) for k in ("cert", "key", "ca"))
    name = given.get("server_name")
    return TlsFiles(cert, key, ca), _text(document, ("tls", "server_name"), name) if name else ""


def _mapping(
    document: Document, path: KeyPath, value: Any, keys: tuple[str, ...]
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise document.bad(path, "not a mapping", f"keys {', '.join(keys)}")
    for key in value:
        if key not in keys:
            raise document.bad((*path, key), "unknown key", ", ".join(keys))
    return value


def _text(document: Document, path: KeyPath, value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise document.bad(path, f"{value!r} is not a text", "a text")
    return value


def _number(document: Document, path: KeyPath, value: Any, low: float, high: float) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or not low <= value <= high:
        raise document.bad(path, f"{value!r}", f"seconds from {low:g} to {high:g}")
    return float(value)


def _source(document: Document, value: Any, base: Path, *, encrypted: bool) -> AgentSource:
    """Where agents are found: a list of them, or a mapping with one of AGENT_SOURCES."""
    if not isinstance(value, dict):
        return ListedAgents(_agents(document, value, base, encrypted=encrypted))
    given = _mapping(document, ("agents",), value, AGENT_SOURCES)
    if len(given) != 1:
        what = f"{len(given)} sources" if given else "names no source"
        raise document.bad(("agents",), what, f"one of {', '.join(AGENT_SOURCES)}")
    kind, content = next(iter(given.items()))
    path = ("agents", kind)
    if kind == "file":
        return FileOfAgents(base / _text(document, path, content), encrypted)
    if not encrypted:
        raise document.bad(path, "agents without encryption", "a section tls beside it")
    if kind == "dns":
        named = _mapping(document, path, content, ("name", "port"))
        name = _text(document, (*path, "name"), named.get("name"))
        return AgentsByName(name, _port(document, path, named))
    if kind == "srv":
        named = _mapping(document, path, content, ("name", "server"))
        name, server = _text(document, (*path, "name"), named.get("name")), named.get("server")
        if server is not None:
            server = _address(document, (*path, "server"), server, port_min=1)
        return AgentsBySrv(name, server)
    if kind == "kubernetes":
        return _service(document, path, content, base)
    named = _mapping(document, path, content, ("port", "partition"))
    partition = named.get("partition")
    if partition is not None:
        partition = _text(document, (*path, "partition"), partition)
    return AgentsOfSlurm(_port(document, path, named), partition or "")


def _service(document: Document, path: KeyPath, content: Any, base: Path) -> AgentsOfService:
    """The agents behind a Kubernetes service. Inside a pod only `service` is needed."""
    given = _mapping(document, path, content, ("service", "namespace", "port", "api", "account"))

    def text(key: str, default: str = "") -> str:
        return _text(document, (*path, key), given[key]) if key in given else default

    api = text("api", os.environ.get("KUBERNETES_SERVICE_HOST", ""))
    if "api" in given:
        address = _address(document, (*path, "api"), api, port_min=1)
    elif api:
        address = api, int(os.environ.get("KUBERNETES_SERVICE_PORT") or "443")
    else:
        raise document.bad(path, "key api is missing outside a pod", "api: HOST:PORT")
    return AgentsOfService(
        service=_text(document, (*path, "service"), given.get("service")),
        api=address,
        namespace=text("namespace"),
        port=text("port", "grpc"),
        account=base / text("account", str(ACCOUNT)),
    )


def _port(document: Document, path: KeyPath, given: dict[str, Any]) -> int:
    port = given.get("port", AGENT_PORT)
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65_535:
        raise document.bad((*path, "port"), f"{port!r}", "1 to 65535")
    return port


def _agents(document: Document, value: Any, base: Path, *, encrypted: bool) -> tuple[str, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= AGENTS_MAX:
        what = f"{len(value)} agents" if isinstance(value, list) else "not a list"
        raise document.bad(("agents",), what, f"1 to {AGENTS_MAX} of host:port")
    agents: list[str] = []
    for i, item in enumerate(value):
        if isinstance(item, str) and item.startswith(SOCKET):
            address = _socket_address(document, ("agents", i), item.removeprefix(SOCKET), base)
        else:
            host, port = _address(document, ("agents", i), item, port_min=1)
            if not encrypted and not is_loopback(host):
                raise document.bad(("agents", i), f"{host} without encryption", LOOPBACK)
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if address in agents:
            raise document.bad(("agents", i), f"{address} is given twice", "one of each")
        agents.append(address)
    return tuple(agents)


def _socket_address(document: Document, path: KeyPath, given: str, base: Path) -> str:
    """`unix:` and an absolute path; a relative one is relative to the file."""
    socket = base / given
    if not given or not given.isprintable() or len(str(socket).encode()) > SOCKET_PATH_BYTES_MAX:
        allowed = f"unix:PATH of up to {SOCKET_PATH_BYTES_MAX} bytes"
        raise document.bad(path, f"'{SOCKET}{given}'", allowed)
    return f"{SOCKET}{socket}"


def _address(document: Document, path: KeyPath, value: Any, *, port_min: int) -> tuple[str, int]:
    text = _text(document, path, value)
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if (
        not host
        or not (port.isascii() and port.isdigit())
        or len(port) > 5
        or not port_min <= int(port) <= 65_535
    ):
        raise document.bad(path, f"{text!r}", f"host:port, port {port_min} to 65535")
    return host, int(port)


def _store(document: Document, value: Any, base: Path) -> tuple[str, Path | None]:
    """The store's URL, and the file with its password."""
    if not isinstance(value, dict):
        return _store_url(document, ("store",), value, base), None
    given = _mapping(document, ("store",), value, STORE_KEYS)
    if ("url" in given) == ("url_file" in given):
        raise document.bad(("store",), "names no store", "one of url and url_file")
    key = "url" if "url" in given else "url_file"
    text = given[key]
    if key == "url_file":
        text = _first_line(document, base / _text(document, ("store", key), text))
    url = _store_url(document, ("store", key), text, base)
    password_file = None
    if "password_file" in given:
        if not url.startswith(POSTGRESQL):
            raise document.bad(("store", "password_file"), "a file has none", POSTGRESQL + "...")
        name = _text(document, ("store", "password_file"), given["password_file"])
        password_file = base / name
    return url, password_file


def _store_url(document: Document, path: KeyPath, value: Any, base: Path) -> str:
    text = _text(document, path, value)
    if text.startswith(POSTGRESQL):
        try:
            parse_postgres_url(text, base)
        except BadInput as error:
            raise document.bad(path, error.what, error.allowed) from None
        return text
    if not text.startswith(STORE_PREFIX) or text == STORE_PREFIX:
        raise document.bad(path, f"{without_password(text)!r}", STORE_ALLOWED)
    return STORE_PREFIX + str(base / text.removeprefix(STORE_PREFIX))


def _first_line(document: Document, file: Path) -> str:
    try:
        return file.read_bytes()[:URL_BYTES_MAX].decode().strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        path = ("store", "url_file")
        raise document.bad(path, f"{file} cannot be read: {reason}", STORE_ALLOWED) from None
