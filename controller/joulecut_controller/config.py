"""The controller's configuration file: few keys, all checked before anything starts.

Unknown keys stop the controller: an operator who mistyped a bound must hear of it at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from joulecut_controller.election import leader_lock
from joulecut_controller.election.leader_lock import Timing
from joulecut_controller.reconcile.pacing import Pacing, renewal_s
from joulecut_controller.sources.agents import (
    AGENTS_MAX,
    AgentsByName,
    AgentSource,
    FileOfAgents,
    ListedAgents,
    address,
)
from joulecut_controller.sources.prometheus import Access
from joulecut_controller.sources.prometheus_rates import RateServer
from joulecut_controller.store.postgres_url import PREFIX as POSTGRESQL
from joulecut_controller.store.postgres_url import parse_postgres_url, without_password
from joulecut_controller.web.links import Links
from joulecut_controller.web.senders import Roles
from joulecut_wire import quantity, user_file
from joulecut_wire.address import is_loopback
from joulecut_wire.document import Document, KeyPath, load
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import Fault, number, shown, text
from joulecut_wire.section import Either, Listed, key, taken
from joulecut_wire.section import read as read_section
from joulecut_wire.tls import TlsFiles

STORE_PREFIX = "sqlite:///"
STORE_ALLOWED = f"{STORE_PREFIX}FILE, or {POSTGRESQL}USER@HOST:PORT/DATABASE"
INTERVAL_S_MIN = 0.1  # faster than agents sample, a pass would look at the same picture twice
INTERVAL_S_MAX = 300.0  # a lease is three of them; no one should wait longer for a GPU
TTL_S_MIN = 0.5  # a heartbeat every sixth of a second is what an event loop keeps
TTL_S_MAX = 60.0  # no agent takes a longer one
PROTECTED = "localhost or a loopback address; anything else needs a web_config with TLS"

NO_ROLES = Roles()

_PATH, _WORD = text(4096, "a path"), text(4096, "a text")


def _seconds(low: float, high: float) -> Callable[[object], float]:
    return number(low, high, unit="seconds")


def _url(value: object) -> str:
    """A store's address, whose password is not shown."""
    if not isinstance(value, str) or not value.startswith((POSTGRESQL, STORE_PREFIX)):
        raise Fault(shown(without_password(str(value))), STORE_ALLOWED)
    if value == STORE_PREFIX:
        raise Fault(shown(value), STORE_ALLOWED)
    return value


@dataclass(frozen=True, slots=True)
class AgentKeys:
    """Where agents are found: exactly one of them is given."""

    file: str | None = key(_PATH, None)
    dns: AgentsByName | None = key(AgentsByName, None)


@dataclass(frozen=True, slots=True)
class StoreKeys:
    """`url`, or `url_file` with it; the password may be in a file of its own."""

    url: str = key(_url, "")
    url_file: str = key(_PATH, "")
    password_file: str = key(_PATH, "")
    timeout_s: float | None = key(
        _seconds(leader_lock.TIMEOUT_S_MIN, leader_lock.TIMEOUT_S_MAX), None
    )


@dataclass(frozen=True, slots=True)
class ListenKeys:
    http: tuple[str, int] = key(quantity.address(0), ("127.0.0.1", 9440))


@dataclass(frozen=True, slots=True)
class LeaseKeys:
    ttl_s: float | None = key(_seconds(TTL_S_MIN, TTL_S_MAX), None)


@dataclass(frozen=True, slots=True)
class LeaderKeys:
    """How leadership is proven; see `leader_lock`."""

    check_s: float | None = key(_seconds(leader_lock.CHECK_S_MIN, leader_lock.CHECK_S_MAX), None)
    hold_s: float | None = key(_seconds(leader_lock.HOLD_S_MIN, leader_lock.HOLD_S_MAX), None)


@dataclass(frozen=True, slots=True)
class TlsKeys:
    cert: str = key(_PATH)
    secret: str = key(_PATH, name="key")
    ca: str = key(_PATH)
    server_name: str = key(_WORD, "")


@dataclass(frozen=True, slots=True)
class PrometheusKeys:
    url: str = key(_WORD)
    bearer_token_file: str | None = key(_PATH, None)
    username: str = key(_WORD, "")
    password_file: str | None = key(_PATH, None)
    ca: str | None = key(_PATH, None)
    cert: str | None = key(_PATH, None)
    secret: str | None = key(_PATH, None, name="key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKeys:
    """The whole file."""

    agents: AgentKeys | tuple[str, ...] = key(Either(AgentKeys, Listed(_WORD)))
    policy: str = key(_PATH)
    profiles: str | None = key(_PATH, None)
    store: StoreKeys | str = key(Either(StoreKeys, _url))
    listen: ListenKeys = key(ListenKeys, ListenKeys())
    interval_s: float = key(_seconds(INTERVAL_S_MIN, INTERVAL_S_MAX), 5.0)
    lease: LeaseKeys = key(LeaseKeys, LeaseKeys())
    leader: LeaderKeys = key(LeaderKeys, LeaderKeys())
    tls: TlsKeys | None = key(TlsKeys, None)
    web_config: str | None = key(_PATH, None)
    roles: Roles = key(Roles, NO_ROLES)
    links: Links = key(Links, Links())
    prometheus: PrometheusKeys | None = key(PrometheusKeys, None)


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
    roles: Roles = NO_ROLES  # of the users of `web_config`
    store_password_file: Path | None = None
    base: Path = Path()
    timing: Timing = field(default_factory=Timing)
    links: Links = Links()
    prometheus: RateServer | None = None  # for jobs whose policy names a rate


def read(path: Path) -> Config:
    """Reads a configuration. Raises BadInput with file, line, key and what is allowed."""
    return settings_of(load(path), path.absolute().parent)


def settings_of(document: Document, base: Path) -> Config:
    """As `read`; relative paths are to `base`."""
    keys: ConfigKeys = read_section(document, ConfigKeys, document.data)
    given = StoreKeys(url=keys.store) if isinstance(keys.store, str) else keys.store
    store = _store(document, keys.store, given, base)
    http, tls = keys.listen.http, keys.tls
    if keys.web_config is None and not is_loopback(http[0]):
        raise document.bad(("listen", "http"), f"{http[0]} without encryption", PROTECTED)
    if keys.web_config is None and keys.roles != NO_ROLES:
        raise document.bad(("roles",), "without a login", "roles beside a web_config")
    return Config(
        agents=_source(document, keys.agents, base, encrypted=tls is not None),
        policy=base / keys.policy,
        profiles=base / keys.profiles if keys.profiles else None,
        store=store,
        http=http,
        interval_s=keys.interval_s,
        ttl_s=keys.lease.ttl_s,
        tls=TlsFiles(base / tls.cert, base / tls.secret, base / tls.ca) if tls else None,
        server_name=tls.server_name if tls else "",
        web_config=base / keys.web_config if keys.web_config else None,
        roles=keys.roles,
        store_password_file=base / given.password_file if given.password_file else None,
        base=base,
        timing=_timing(document, keys, store, given.timeout_s),
        links=keys.links,
        prometheus=_prometheus(document, keys.prometheus, base) if keys.prometheus else None,
    )


def _prometheus(document: Document, keys: PrometheusKeys, base: Path) -> RateServer:
    files = (keys.bearer_token_file, keys.password_file, keys.ca, keys.cert, keys.secret)
    token, password, ca, cert, secret = (base / name if name else None for name in files)
    server = RateServer(keys.url, Access(token, keys.username, password, ca, cert, secret))
    try:
        server.connect()
    except BadInput as error:
        raise document.bad(("prometheus",), error.what, error.allowed) from None
    return server


def _timing(document: Document, keys: ConfigKeys, store: str, timeout_s: float | None) -> Timing:
    """How leadership is proven; the relations to leases and to the store hold in it."""
    check_s, hold_s = keys.leader.check_s, keys.leader.hold_s
    if store.startswith(POSTGRESQL):
        heartbeat_s = renewal_s(Pacing(keys.interval_s, 0.0, keys.lease.ttl_s).ttl_within_s(0.0))
        try:
            return leader_lock.timing(check_s, hold_s, timeout_s, renewal_s=heartbeat_s)
        except BadInput as error:
            path = tuple(error.where.split("."))
            raise document.bad(path, error.what, error.allowed) from None
    for path, found in ((("leader", "hold_s"), hold_s), (("store", "timeout_s"), timeout_s)):
        if found is not None:
            raise document.bad(path, "means nothing for a file", f"a store {POSTGRESQL}...")
    return leader_lock.file_lock_timing(check_s)


def _source(
    document: Document, keys: AgentKeys | tuple[str, ...], base: Path, *, encrypted: bool
) -> AgentSource:
    """Where agents are found."""
    if isinstance(keys, tuple):
        return ListedAgents(_agents(document, keys, base, encrypted=encrypted))
    given = [name for name in AgentKeys.__slots__ if getattr(keys, name) is not None]
    if len(given) != 1:
        what = f"{len(given)} sources" if given else "names no source"
        raise document.bad(("agents",), what, f"one of {', '.join(AgentKeys.__slots__)}")
    if keys.file is not None:
        return FileOfAgents(base / keys.file, encrypted)
    path = ("agents", given[0])
    if not encrypted:
        raise document.bad(path, "agents without encryption", "a section tls beside it")
    source: AgentSource = getattr(keys, given[0])
    return source


def _agents(
    document: Document, given: tuple[str, ...], base: Path, *, encrypted: bool
) -> tuple[str, ...]:
    """Each once."""
    if not 0 < len(given) <= AGENTS_MAX:
        raise document.bad(("agents",), f"{len(given)} agents", f"1 to {AGENTS_MAX} of host:port")
    agents: dict[str, int] = {}
    for i, one in enumerate(given):
        path: KeyPath = ("agents", i)
        agent = taken(document, lambda word: address(word, base, encrypted=encrypted), one, path)
        if agents.setdefault(agent, i) != i:
            raise document.bad(path, f"{agent} is given twice", "one of each")
    return tuple(agents)


def _store(document: Document, written: StoreKeys | str, keys: StoreKeys, base: Path) -> str:
    """The store's URL, whose file is relative to the configuration."""
    path: KeyPath = ("store",) if isinstance(written, str) else ("store", "url")
    url = keys.url
    if bool(url) == bool(keys.url_file):
        raise document.bad(("store",), "names no store", "one of url and url_file")
    try:
        if keys.url_file:
            path = ("store", "url_file")
            url = _url(user_file.line(base / keys.url_file))
        if url.startswith(POSTGRESQL):
            parse_postgres_url(url, base)
            return url
    except Fault as fault:
        raise document.bad(path, fault.what, fault.allowed) from None
    except BadInput as error:
        raise document.bad(path, error.what, error.allowed) from None
    if keys.password_file:
        raise document.bad(("store", "password_file"), "a file has none", POSTGRESQL + "...")
    return STORE_PREFIX + str(base / url.removeprefix(STORE_PREFIX))
