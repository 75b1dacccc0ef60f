"""The agent's configuration file, read and checked as a whole before anything starts.

An unknown key is a warning: a typing error rolled out to a thousand nodes must not stop measuring.
A wrong value is refused, with file and line. In the sections on access an unknown key is refused
too: a mistyped role would be lost.
"""

import os
import re
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from joulecut_agent import devices
from joulecut_agent.control.access import OBSERVE, PATTERNS_MAX, ROLES, LocalSocket, Rules
from joulecut_agent.control.audit_log import AuditLimits
from joulecut_agent.jobs.log_line import GONE, PRESETS, QUANTITIES, LogSource
from joulecut_agent.jobs.log_tail import LINE_BYTES_MAX
from joulecut_agent.jobs.owner import SOURCES
from joulecut_agent.jobs.settings import ApiServer, AttributionSettings
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.settings import Settings as KeeperSettings
from joulecut_agent.log import log
from joulecut_agent.settings import Settings
from joulecut_wire import card_facts, document
from joulecut_wire.address import is_loopback, port_of
from joulecut_wire.card_facts import CardFacts
from joulecut_wire.document import Document, KeyPath
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import Fault, address, choice, number, shown, text, whole
from joulecut_wire.section import Key, Listed, Section, flat, key, read, section_of, whether_given
from joulecut_wire.tls import TlsFiles

NODE = "JOULECUT_NODE"  # environment variable; set in a pod by Kubernetes
NODE_LENGTH_MAX = 253  # as names of hosts
LOGS_MAX = 64
SEARCHED_WITHIN_S = 1.0  # of a processor; `.*` twice in a pattern takes a tenth of it
COUNT_MAX = 1e12  # samples or tokens of an iteration
SOCKET = "/run/joulecut/jobs.sock"  # the default of `joulecut.Reporter` too
STATE_DIR = "/var/lib/joulecut"
GRPC_SOCKET = "grpc.sock"  # in `state_dir`
CLOCK_MHZ_MAX = 10_000  # above every GPU; catches kHz and Hz
POWER_W_MAX = 10_000.0  # above every board; catches mW
KEEP_HOURS_MAX = 720.0  # a month: a budget outlives no controller for longer
RESTORE_JITTER_S_MAX = 60.0  # no longer than a lease may last
PATTERN_LENGTH_MAX = 256
PATTERN_STARS_MAX = 8
AUDIT_BYTES_MIN, AUDIT_BYTES_MAX = 1 << 16, 1 << 30  # one long line fits; a disk is not filled
AUDIT_FILES_MAX = 100
POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
CREDENTIALS = "/var/run/secrets/kubernetes.io/serviceaccount"
HOST_VARIABLE = "KUBERNETES_SERVICE_HOST"
PORT_VARIABLE = "KUBERNETES_SERVICE_PORT"
SOCKET_PATH_BYTES_MAX = 107  # sun_path holds 108, the last of them zero

Take = Callable[[object], Any]
_PATH = text(4096, "a path")
_CLOCK, _POWER = whole(0, CLOCK_MHZ_MAX), number(0.0, POWER_W_MAX)


def _word(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not value or " " in value:
        raise Fault(shown(value), "printable text without spaces")
    return value


def _node_name(value: object) -> str:
    name = _word(value)
    if "/" in name or len(name) > NODE_LENGTH_MAX:
        allowed = f"at most {NODE_LENGTH_MAX} characters, without the / between a node and its GPU"
        raise Fault(shown(name), allowed)
    return name


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Fault(f"{shown(value)} is not a mapping", "a mapping of keys")
    return value


def _keeper_mode(value: object) -> str:
    mode = _word(value)
    if mode not in {"child", "none"} and "/" not in mode:
        raise Fault(shown(mode), "child, none, or a path with a /")
    return mode


def _power_safe(value: object) -> str | int:
    """The power limit after a lease has expired: "recorded", "keep", or milliwatts."""
    if isinstance(value, str) and value not in {"recorded", "keep"}:
        raise Fault(shown(value), f"recorded, keep, or watts from 1 to {POWER_W_MAX:g}")
    return value if isinstance(value, str) else round(1000.0 * number(1.0, POWER_W_MAX)(value))


def _absolute(value: object) -> str:
    if not (path := _PATH(value)).startswith("/"):
        raise Fault(f"path {shown(path)}", "an absolute path; * and ? are wildcards")
    return path


def _pattern(value: object) -> re.Pattern[str]:
    """A preset, or a regular expression that finds a time or a rate."""
    given = text(4096, "a pattern")(value)
    if given in GONE:
        allowed = f"joulecut run -- COMMAND, a pattern of your own, or {', '.join(PRESETS)}"
        raise Fault(f"pattern {shown(given)} is gone", allowed)
    try:
        pattern = re.compile(PRESETS.get(given, given))
    except re.error as error:
        raise Fault(f"pattern: {error}", "a regular expression") from None
    if not set(QUANTITIES) & set(pattern.groupindex):
        allowed = (
            f"a group (?P<NAME>...) with NAME {', '.join(QUANTITIES)}, or {', '.join(PRESETS)}"
        )
        raise Fault(f"pattern {shown(given)} has no time", allowed)
    if given not in PRESETS and not _searched_soon(pattern):
        what = f"pattern {shown(given)} takes longer than {SEARCHED_WITHIN_S:g} s on one line"
        raise Fault(what, "a pattern without a repeat inside a repeat, like (a+)+")
    return pattern


def _searched_soon(pattern: re.Pattern[str]) -> bool:
    """Whether lines of one letter that it names, or of a digit, are searched in time. The search
    would hold up the whole agent.
    """

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, late)  # the search looks for signals by itself
    try:
        for letter in sorted({*pattern.pattern, *"0a "}):
            signal.setitimer(signal.ITIMER_VIRTUAL, SEARCHED_WITHIN_S)
            pattern.search(letter * LINE_BYTES_MAX + "\0")
    except TimeoutError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
    return True


def _order(value: object) -> tuple[str, ...]:
    good = isinstance(value, list) and value and all(word in SOURCES for word in value)
    if not isinstance(value, list) or not good or len(set(value)) < len(value):
        raise Fault(shown(value), f"a list of {', '.join(SOURCES)}, each once")
    return tuple(value)


def _listed(value: object, each: Take) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) > PATTERNS_MAX:
        what = "too long" if isinstance(value, list) else "not a list"
        raise Fault(what, f"a list of up to {PATTERNS_MAX} texts")
    return tuple(each(one) for one in value)


def _name_pattern(value: object) -> str:
    pattern = text(PATTERN_LENGTH_MAX, "a text")(value)
    if pattern != pattern.strip() or pattern.count("*") > PATTERN_STARS_MAX:
        allowed = f"a DNS name, a URI, CN=NAME, or *, with at most {PATTERN_STARS_MAX} stars"
        raise Fault(shown(pattern), allowed)
    return pattern


# Sections that are the value they describe, or keys that are handed on as they are.
_BOUNDS = flat(
    dict,
    clock_min_mhz=_CLOCK,
    clock_max_mhz=_CLOCK,
    min_dwell_s=number(0.0, 3600.0),
    writes_per_minute=whole(1, 600),
    changed_share_per_minute=number(0.0, 1.0),
    power_min_w=_POWER,
    power_max_w=_POWER,
)
_SITE_DEFAULT = flat(dict, clock_min_mhz=_CLOCK, clock_max_mhz=_CLOCK)
_JOB = text(253, "a name")
_LOG = flat(
    LogSource, strict=True, required=("job", "path", "pattern"),
    job=_JOB, path=_absolute, pattern=_pattern, accumulation=whole(1, 65_536),
    samples=number(1.0, COUNT_MAX), tokens=number(1.0, COUNT_MAX),
)  # fmt: skip
_TLS = flat(dict, strict=True, required=True, cert=_PATH, key=_PATH, client_ca=_PATH)
_ROLES: dict[str, Any] = dict.fromkeys(ROLES, partial(_listed, each=_name_pattern))
_ACCESS = flat(dict, strict=True, loopback=partial(_listed, each=choice(*ROLES)), **_ROLES)
_AUDIT = flat(
    AuditLimits,
    strict=True,
    bytes_max=whole(AUDIT_BYTES_MIN, AUDIT_BYTES_MAX),
    files_max=whole(1, AUDIT_FILES_MAX),
)


@dataclass(frozen=True, slots=True)
class ListenKeys:
    metrics: tuple[str, int] = key(address(0), ("127.0.0.1", 9430))
    grpc: tuple[str, int] = key(address(0), ("127.0.0.1", 9431))
    socket: str = key(_PATH, SOCKET)
    grpc_socket: str = key(_PATH, "")
    grpc_socket_group: str = key(text(64, "the name of a group"), "")


@dataclass(frozen=True, slots=True)
class LeaseKeys:
    ttl_s_max: float = key(number(0.1, Bounds().ttl_s_max), Bounds().ttl_s_max)
    restore_spread_s: float = key(number(0.0, RESTORE_JITTER_S_MAX), 0.0)


@dataclass(frozen=True, slots=True)
class PowerKeys:
    safe: str | int = key(_power_safe, "recorded")
    keep_hours: float = key(number(0.0, KEEP_HOURS_MAX), 0.0)


@dataclass(frozen=True, slots=True)
class ReportKeys:
    bind: str = key(choice("owner", "any"), "owner")


@dataclass(frozen=True, slots=True)
class KubernetesKeys:
    pod_resources: str = key(_PATH, POD_RESOURCES)
    pods: str = key(choice("api", "none"), "none")
    credentials: str = key(_PATH, CREDENTIALS)


@dataclass(frozen=True, slots=True)
class SlurmKeys:
    mapping_dir: str = key(_PATH, "")


@dataclass(frozen=True, slots=True)
class AttributionKeys:
    order: tuple[str, ...] = key(_order, SOURCES)
    kubernetes: KubernetesKeys = key(KubernetesKeys, KubernetesKeys())
    slurm: SlurmKeys = key(SlurmKeys, SlurmKeys())
    proc: str = key(_PATH, "/proc")
    cgroups: str = key(_PATH, "/sys/fs/cgroup")
    in_kubernetes: bool = whether_given("kubernetes")
    in_slurm: bool = whether_given("slurm")


@dataclass(frozen=True, slots=True)
class AgentKeys:
    """The whole file, without the keys that a device has for itself under its own name."""

    device: str = key(_word)
    node: str = key(_node_name, "")
    listen: ListenKeys = key(ListenKeys, ListenKeys())
    state_dir: str = key(_PATH, STATE_DIR)
    journal_dir: str = key(_PATH, "")
    sample_interval_s: float = key(number(0.05, 60.0), 1.0)
    lease: LeaseKeys = key(LeaseKeys, LeaseKeys())
    bounds: dict[str, Any] | None = key(_BOUNDS, None)
    power: PowerKeys = key(PowerKeys, PowerKeys())
    site_default: dict[str, int] | None = key(_SITE_DEFAULT, None)
    keeper: str = key(_keeper_mode, "child")
    stop_file: str = key(_PATH, "")
    attribution: AttributionKeys = key(AttributionKeys, AttributionKeys())
    reports: ReportKeys = key(ReportKeys, ReportKeys())
    logs: tuple[LogSource, ...] = key(Listed(_LOG), ())
    tls: dict[str, str] | None = key(_TLS, None)
    access: dict[str, tuple[str, ...]] | None = key(_ACCESS, None)
    audit: AuditLimits = key(_AUDIT, AuditLimits())
    web_config: str = key(_PATH, "")
    measured: str = key(_PATH, "")


def load(path: Path, node: str | None = None) -> Settings:
    """`node` overrides the file. Raises BadInput; warns of unknown keys."""
    return settings_of(document.load(path), path.resolve().parent, node)


def settings_of(doc: Document, folder: Path, node: str | None = None) -> Settings:
    """As `load`; relative paths are to `folder`."""
    return _Reading(doc, folder).settings(node)


class _Reading:
    """One file: its keys, and what depends on several of them. Relative paths are to `folder`."""

    def __init__(self, doc: Document, folder: Path) -> None:
        self._doc, self._folder, self._ignored = doc, folder, 0
        names = devices.names()
        root = section_of(AgentKeys)
        device = replace(root.keys["device"], take=devices.named)
        own = {name: Key(name, _mapping) for name in names}

        def made(**values: Any) -> AgentKeys:
            self.options = {name: values.pop(name) for name in names if name in values}
            return AgentKeys(**values)

        whole_file = Section(made, {**root.keys, "device": device, **own})
        self.keys: AgentKeys = read(doc, whole_file, doc.data, unknown=self._warn)
        self.measured = self._measured()

    def settings(self, node: str | None) -> Settings:
        keys, listen, tls = self.keys, self.keys.listen, self.keys.tls
        if tls is None and not is_loopback(listen.grpc[0]):
            what, allowed = (
                f"{listen.grpc[0]} without encryption",
                "a loopback address, or a section tls",
            )
            raise self._doc.bad(("listen", "grpc"), what, allowed)
        if len(keys.logs) > LOGS_MAX:
            raise self._doc.bad(("logs",), f"{len(keys.logs)} logs", f"up to {LOGS_MAX} logs")
        return Settings(
            device=keys.device,
            options=self.options.get(keys.device, {}),
            node=_node(node, keys.node),
            metrics=listen.metrics,
            grpc=listen.grpc,
            local_socket=self.local_socket(),
            keeper=self._keeper(),
            socket=str(self._socket(("listen", "socket"), listen.socket)),
            sample_interval_s=keys.sample_interval_s,
            keeper_mode=self._keeper_mode(),
            tls=self.tls(),
            rules=self.rules(),
            audit=keys.audit,
            web_config=self._optional(keys.web_config),
            attribution=self._attribution(),
            logs=keys.logs,
            measured=self.measured,
            keys_ignored=self._ignored,
        )

    def _measured(self) -> tuple[CardFacts, ...]:
        """One that is damaged or missing is a warning: GPUs must not go without a keeper for it."""
        path = self._optional(self.keys.measured)
        try:
            if path and not path.exists():
                raise BadInput(str(path), "no such file", "a file of `joulecut selftest --save`")
            return card_facts.read(path) if path else ()
        except BadInput as error:
            what = f"is not used: {error.where}: {error.what}"
            _log(self._doc.bad(("measured",), what, error.allowed))
            return ()

    def tls(self) -> TlsFiles | None:
        given, folder = self.keys.tls, self._folder
        if given is None:
            return None
        return TlsFiles(folder / given["cert"], folder / given["key"], folder / given["client_ca"])

    def rules(self) -> Rules:
        given = self.keys.access
        if given is None:
            return Rules()
        patterns = {role: given[role] for role in given.keys() & ROLES}
        if "loopback" not in given:
            return Rules(patterns)
        roles = given["loopback"]
        if excess := [role for role in roles if role != OBSERVE]:
            what = f"{', '.join(excess)} without a certificate: ignored"
            allowed = "observe; commands use listen.grpc_socket or tls"
            _log(self._doc.bad(("access", "loopback"), what, allowed))
        return Rules(patterns, loopback_observes=OBSERVE in roles)

    def local_socket(self) -> LocalSocket:
        """Without `listen.grpc_socket` it is in `state_dir`, which no two agents share."""
        listen = self.keys.listen
        if not listen.grpc_socket:
            default = self._folder / self.keys.state_dir / GRPC_SOCKET
            group = listen.grpc_socket_group
            return LocalSocket(str(default), group, required=bool(group))
        path = self._socket(("listen", "grpc_socket"), listen.grpc_socket)
        if path == self._folder / listen.socket:
            what, allowed = "is listen.socket too", "a path of its own"
            raise self._doc.bad(("listen", "grpc_socket"), what, allowed)
        return LocalSocket(str(path), listen.grpc_socket_group)

    def _keeper_mode(self) -> str:
        mode = self.keys.keeper
        return str(self._socket(("keeper",), mode)) if "/" in mode else mode

    def _keeper(self) -> KeeperSettings:
        keys = self.keys
        state_dir = self._folder / keys.state_dir
        self._socket(("state_dir",), f"{keys.state_dir}/keeper.sock")
        journal_dir = self._folder / keys.journal_dir if keys.journal_dir else state_dir
        same = os.path.realpath(journal_dir) == os.path.realpath(state_dir)
        return KeeperSettings(
            state_dir=str(state_dir),
            bounds=self._bounds(),
            site_default=self._site_default(),
            power_safe=keys.power.safe,
            restore_jitter_s=keys.lease.restore_spread_s,
            stop_file=str(self._optional(keys.stop_file) or state_dir / "stop"),
            journal_dir="" if same else str(journal_dir),
        )

    def _bounds(self) -> Bounds:
        bounds = Bounds(ttl_s_max=self.keys.lease.ttl_s_max, **self.keys.bounds or {})
        # What was measured of a card only tightens, whatever driver it was measured with.
        dwell_s = max([bounds.min_dwell_s, *(card.dwell_s for card in self.measured)])
        keep_power_s = 3600.0 * self.keys.power.keep_hours
        bounds = replace(bounds, min_dwell_s=dwell_s, keep_power_s=keep_power_s)
        self._ordered("bounds", bounds.clock_min_mhz, bounds.clock_max_mhz)
        low_w, high_w = bounds.power_min_w, bounds.power_max_w
        if high_w and low_w > high_w:
            place = ("bounds", "power_min_w")
            raise self._doc.bad(place, f"{low_w:g} W", f"at most {high_w:g} W")
        return bounds

    def _site_default(self) -> tuple[int, int] | None:
        given = self.keys.site_default
        if not given:
            return None
        low, high = given.get("clock_min_mhz", 0), given.get("clock_max_mhz", 0)
        self._ordered("site_default", low, high)
        if not high:
            what, allowed = "no clock_max_mhz", "the clock that the site locks"
            raise self._doc.bad(("site_default",), what, allowed)
        return low, high

    def _ordered(self, section: str, low: int, high: int) -> None:
        if high and low > high:
            raise self._doc.bad((section, "clock_min_mhz"), f"{low} MHz", f"at most {high} MHz")

    def _attribution(self) -> AttributionSettings:
        keys = self.keys.attribution
        pods, slurm = keys.kubernetes, keys.slurm
        if keys.in_slurm and self._doc.data["attribution"]["slurm"] and not slurm.mapping_dir:
            place = ("attribution", "slurm", "mapping_dir")
            raise self._doc.bad(place, "is missing", "a directory")
        found = AttributionSettings(
            order=keys.order,
            mapping_dir=self._optional(slurm.mapping_dir),
            proc=self._folder / keys.proc,
            cgroups=self._folder / keys.cgroups,
            bind=self.keys.reports.bind,
        )
        if not keys.in_kubernetes:
            return found
        return replace(
            found,
            pod_resources=self._folder / pods.pod_resources,
            api=self._api_server(pods),
        )

    def _api_server(self, keys: KubernetesKeys) -> ApiServer | None:
        if keys.pods == "none":
            return None
        host, port = os.environ.get(HOST_VARIABLE, ""), os.environ.get(PORT_VARIABLE, "443")
        if not host or port_of(port) < 1:
            what = f"api, but {HOST_VARIABLE} and {PORT_VARIABLE} name no server"
            raise self._doc.bad(("attribution", "kubernetes", "pods"), what, "none outside a pod")
        return ApiServer(host, int(port), self._folder / keys.credentials)

    def _optional(self, path: str) -> Path | None:
        return self._folder / path if path else None

    def _socket(self, place: KeyPath, given: str) -> Path:
        """The kernel bounds the length of a unix socket's path."""
        path = self._folder / given
        size = len(str(path).encode())
        if size > SOCKET_PATH_BYTES_MAX:
            what = f"{size} bytes is too long for the socket {path.name} in it"
            raise self._doc.bad(place, what, f"at most {SOCKET_PATH_BYTES_MAX} bytes in all")
        return path

    def _warn(self, fault: BadInput) -> None:
        self._ignored += 1
        _log(fault)


def _log(fault: BadInput) -> None:
    """A fault that does not stop the start."""
    log("agent", f"warning: {fault}", "warning")


def _node(given: str | None, named: str) -> str:
    """By flag, by file, by environment, or else the host name."""
    for where, name in (("--node", given), ("", named), (NODE, os.environ.get(NODE))):
        if name or (name is not None and where == "--node"):
            try:
                return _node_name(name)
            except Fault as fault:
                raise BadInput(where, fault.what, fault.allowed) from None
    return socket.gethostname()
