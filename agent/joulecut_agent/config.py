"""The agent's configuration file, read and checked as a whole before anything starts.

An unknown key is a warning: a typing error rolled out to a thousand nodes must not stop measuring.
A wrong value is refused, with file and line. In the sections on access an unknown key is refused
too: a mistyped role would be lost.
"""

import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from joulecut_agent import devices
from joulecut_agent.config_reader import ConfigReader, is_word
from joulecut_agent.control.access import OBSERVE, PATTERNS_MAX, ROLES, LocalSocket, Rules
from joulecut_agent.control.audit_log import AuditLimits
from joulecut_agent.jobs.log_tail import PRESETS, LogSource
from joulecut_agent.jobs.owner import SOURCES
from joulecut_agent.jobs.settings import ApiServer, AttributionSettings, OtlpSettings
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.settings import Settings as KeeperSettings
from joulecut_agent.settings import Settings
from joulecut_wire import card_facts, document
from joulecut_wire.address import is_loopback
from joulecut_wire.card_facts import CardFacts
from joulecut_wire.document import KeyPath
from joulecut_wire.errors import BadInput
from joulecut_wire.tls import TlsFiles

NODE = "JOULECUT_NODE"  # environment variable; set in a pod by Kubernetes
METRICS = "127.0.0.1:9430"
GRPC = "127.0.0.1:9431"
# OpenTelemetry's own ports, so that an exporter finds the agent without being configured.
OTLP_GRPC, OTLP_HTTP = "127.0.0.1:4317", "127.0.0.1:4318"
OFF = "off"
LOGS_MAX = 64
SOCKET = "/run/joulecut/jobs.sock"  # the default of `joulecut.Reporter` too
STATE_DIR = "/var/lib/joulecut"
GRPC_SOCKET = "grpc.sock"  # in `state_dir`
CLOCK_MHZ_MAX = 10_000  # above every GPU; catches kHz and Hz
POWER_W_MAX = 10_000.0  # above every board; catches mW
RESTORE_JITTER_S_MAX = 60.0  # no longer than a lease may last
PATTERN_LENGTH_MAX = 256
PATTERN_STARS_MAX = 8
AUDIT_BYTES_MIN, AUDIT_BYTES_MAX = 1 << 16, 1 << 30  # one long line fits; a disk is not filled
AUDIT_FILES_MAX = 100
POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
CREDENTIALS = "/var/run/secrets/kubernetes.io/serviceaccount"
HOST_VARIABLE = "KUBERNETES_SERVICE_HOST"
PORT_VARIABLE = "KUBERNETES_SERVICE_PORT"
KEYS = (
    "device", "node", "listen", "state_dir", "journal_dir", "sample_interval_s", "lease", "bounds",
    "power", "site_default", "keeper", "stop_file", "attribution", "reports", "logs",
    "tls", "access", "audit", "web_config", "measured",
)  # fmt: skip


def load(path: Path, node: str | None = None) -> Settings:
    """`node` overrides the file. Raises BadInput; warns of unknown keys."""
    doc = document.load(path)
    if not isinstance(doc.data, dict):
        raise doc.bad((), "no mapping of keys", ", ".join(KEYS))
    config = ConfigReader(doc, path.resolve().parent)
    device = config.text(("device",), None, devices.names())
    config.warn_unknown((), [*KEYS, *devices.names()])
    config.warn_unknown(
        ("listen",),
        ["metrics", "grpc", "socket", "grpc_socket", "grpc_socket_group", "otlp_grpc", "otlp_http"],
    )
    config.warn_unknown(("lease",), ["ttl_s_max", "restore_spread_s"])
    config.warn_unknown(("power",), ["safe"])
    grpc = config.address(("listen", "grpc"), GRPC)
    tls = _tls(config)
    if tls is None and not is_loopback(grpc[0]):
        allowed = "a loopback address, or a section tls"
        raise config.bad(("listen", "grpc"), f"{grpc[0]} without encryption", allowed)
    return Settings(
        device=device,
        options=config.mapping((device,)),
        node=_node(config, node),
        metrics=config.address(("listen", "metrics"), METRICS),
        grpc=grpc,
        local_socket=_local_socket(config),
        keeper=_keeper(config),
        socket=str(_report_socket(config)),
        sample_interval_s=config.number(("sample_interval_s",), 1.0, 0.05, 60.0),
        keeper_mode=_keeper_mode(config),
        tls=tls,
        rules=_rules(config),
        audit=_audit(config),
        web_config=config.optional_path(("web_config",)),
        attribution=_attribution(config),
        otlp=_otlp(config, device),
        logs=_logs(config),
        measured=_measured(config),
        keys_ignored=config.ignored,  # last: after every section was read
    )


def _measured(config: ConfigReader) -> tuple[CardFacts, ...]:
    """A damaged file is a warning: GPUs must not go without a keeper because of it."""
    path = config.optional_path(("measured",))
    try:
        return card_facts.read(path) if path else ()
    except BadInput as error:
        config.warn(("measured",), f"is not used: {error.where}: {error.what}", error.allowed)
        return ()


def _node(config: ConfigReader, given: str | None) -> str:
    """By flag, by file, by environment, or else the host name."""
    named = _checked_word("--node", given) or config.text(("node",), "")
    return named or _checked_word(NODE, os.environ.get(NODE) or None) or socket.gethostname()


def _checked_word(where: str, value: str | None) -> str:
    """The value of a flag or variable, "" if not given."""
    if value is not None and not is_word(value):
        raise BadInput(where, f"{value!r}", "printable text without spaces")
    return value or ""


def _report_socket(config: ConfigReader) -> Path:
    path = config.path(("listen", "socket"), SOCKET)
    config.check_socket_path(("listen", "socket"), path)
    return path


def _otlp(config: ConfigReader, device: str) -> OtlpSettings:
    """On by default beside real GPUs: simulated agents of one machine would share the ports."""
    given = [config.value(("listen", key)) for key in ("otlp_grpc", "otlp_http")]
    standard = device != "simulated"
    return OtlpSettings(
        grpc=_otlp_address(config, "otlp_grpc", OTLP_GRPC if standard else OFF),
        http=_otlp_address(config, "otlp_http", OTLP_HTTP if standard else OFF),
        required=any(value is not None for value in given),
    )


def _otlp_address(config: ConfigReader, key: str, default: str) -> tuple[str, int] | None:
    path = ("listen", key)
    value = config.value(path)
    if value in {OFF, False} or (value is None and default == OFF):  # YAML reads off as false
        return None
    host, port = config.address(path, default)
    if host not in {"127.0.0.1", "localhost"}:
        raise config.bad(path, f"{host}", "127.0.0.1:PORT, or off")
    return "127.0.0.1", port


def _logs(config: ConfigReader) -> tuple[LogSource, ...]:
    """Logs of jobs: strict, since a mistyped key would leave a job without a rate."""
    path, keys = ("logs",), ("job", "path", "pattern")
    given = config.value(path)
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > LOGS_MAX:
        raise config.bad(path, f"{given!r}", f"a list of up to {LOGS_MAX} logs")
    return tuple(_log_source(config, given, i, keys) for i in range(len(given)))


def _log_source(config: ConfigReader, given: list[Any], i: int, keys: tuple[str, ...]) -> LogSource:
    path, entry = ("logs", i), given[i]
    fitting = isinstance(entry, dict) and set(entry) == set(keys)
    if not fitting or not all(isinstance(entry[key], str) and entry[key] for key in keys):
        raise config.bad(path, f"{entry!r}", "texts job, path and pattern")
    if not entry["path"].startswith("/"):
        raise config.bad(path, f"path {entry['path']!r}", "an absolute path; * and ? are wildcards")
    text = PRESETS.get(entry["pattern"], entry["pattern"])
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise config.bad(path, f"pattern: {error}", "a regular expression") from None
    if not {"ms", "s"} & set(pattern.groupindex):
        allowed = f"a group (?P<ms>...) or (?P<s>...), or {', '.join(PRESETS)}"
        raise config.bad(path, f"pattern {entry['pattern']!r} has no time", allowed)
    return LogSource(entry["job"], entry["path"], pattern)


# -- keeper ------------------------------------------------------------------------------


def _keeper_mode(config: ConfigReader) -> str:
    mode = config.text(("keeper",), "child")
    if mode in {"child", "none"}:
        return mode
    if "/" not in mode:
        raise config.bad(("keeper",), f"{mode!r}", "child, none, or a path with a /")
    path = config.path(("keeper",), mode)
    config.check_socket_path(("keeper",), path)
    return str(path)


def _keeper(config: ConfigReader) -> KeeperSettings:
    state_dir = config.path(("state_dir",), STATE_DIR)
    config.check_socket_path(("state_dir",), state_dir / "keeper.sock")
    journal_dir = config.path(("journal_dir",), str(state_dir))
    return KeeperSettings(
        state_dir=str(state_dir),
        bounds=_bounds(config),
        site_default=_site_default(config),
        power_safe=_power_safe(config),
        restore_jitter_s=config.number(
            ("lease", "restore_spread_s"), 0.0, 0.0, RESTORE_JITTER_S_MAX
        ),
        stop_file=str(config.path(("stop_file",), str(state_dir / "stop"))),
        journal_dir="" if journal_dir.resolve() == state_dir.resolve() else str(journal_dir),
    )


def _bounds(config: ConfigReader) -> Bounds:
    plain = Bounds()
    config.warn_unknown(("bounds",), [name for name in Bounds.__slots__ if name != "ttl_s_max"])
    low_mhz, high_mhz = _clock_range(config, "bounds")
    low_w = config.number(("bounds", "power_min_w"), 0.0, 0.0, POWER_W_MAX)
    high_w = config.number(("bounds", "power_max_w"), 0.0, 0.0, POWER_W_MAX)
    if high_w and low_w > high_w:
        raise config.bad(("bounds", "power_min_w"), f"{low_w:g} W", f"at most {high_w:g} W")
    return Bounds(
        ttl_s_max=config.number(("lease", "ttl_s_max"), plain.ttl_s_max, 0.1, 3600.0),
        clock_min_mhz=low_mhz,
        clock_max_mhz=high_mhz,
        # What was measured of a card only tightens, whatever driver it was measured with.
        min_dwell_s=max(
            [
                config.number(("bounds", "min_dwell_s"), plain.min_dwell_s, 0.0, 3600.0),
                *(card.dwell_s for card in _measured(config)),
            ]
        ),
        writes_per_minute=config.whole(
            ("bounds", "writes_per_minute"), plain.writes_per_minute, 1, 600
        ),
        changed_share_per_minute=config.number(
            ("bounds", "changed_share_per_minute"), plain.changed_share_per_minute, 0.0, 1.0
        ),
        power_min_w=low_w,
        power_max_w=high_w,
    )


def _site_default(config: ConfigReader) -> tuple[int, int] | None:
    path = ("site_default",)
    config.warn_unknown(path, ["clock_min_mhz", "clock_max_mhz"])
    low_mhz, high_mhz = _clock_range(config, "site_default")
    if not config.mapping(path):
        return None
    if not high_mhz:
        raise config.bad(path, "no clock_max_mhz", "the clock that the site locks")
    return low_mhz, high_mhz


def _clock_range(config: ConfigReader, section: str) -> tuple[int, int]:
    config.mapping((section,))
    low = config.whole((section, "clock_min_mhz"), 0, 0, CLOCK_MHZ_MAX)
    high = config.whole((section, "clock_max_mhz"), 0, 0, CLOCK_MHZ_MAX)
    if high and low > high:
        raise config.bad((section, "clock_min_mhz"), f"{low} MHz", f"at most {high} MHz")
    return low, high


def _power_safe(config: ConfigReader) -> str | int:
    """The power limit after a lease has expired: "recorded", "keep", or milliwatts."""
    path = ("power", "safe")
    value = config.value(path)
    if value is None:
        return "recorded"
    if isinstance(value, str):
        if value not in {"recorded", "keep"}:
            allowed = f"recorded, keep, or watts from 1 to {POWER_W_MAX:g}"
            raise config.bad(path, f"{value!r}", allowed)
        return value
    return round(1000.0 * config.number(path, 0.0, 1.0, POWER_W_MAX))


# -- access ------------------------------------------------------------------------------


def _tls(config: ConfigReader) -> TlsFiles | None:
    given = config.strict_mapping(("tls",), ("cert", "key", "client_ca"))
    if given is None:
        return None
    paths = [config.optional_path(("tls", key)) for key in ("cert", "key", "client_ca")]
    missing = [key for key in ("cert", "key", "client_ca") if key not in given]
    if missing:
        raise config.bad(("tls",), f"{missing[0]} is missing", "cert, key and client_ca")
    cert, key, ca = paths
    if cert is None or key is None or ca is None:
        raise config.bad(("tls",), "a path is empty", "cert, key and client_ca")
    return TlsFiles(cert, key, ca)


def _rules(config: ConfigReader) -> Rules:
    given = config.strict_mapping(("access",), (*ROLES, "loopback"))
    if given is None:
        return Rules()
    patterns = {
        role: _patterns(config, ("access", role), given[role]) for role in given.keys() & ROLES
    }
    if "loopback" not in given:
        return Rules(patterns)
    roles = _texts(config, ("access", "loopback"), given["loopback"])
    for i, role in enumerate(roles):
        if role not in ROLES:
            raise config.bad(("access", "loopback", i), f"{role!r}", ", ".join(ROLES))
    if excess := [role for role in roles if role != OBSERVE]:
        what = f"{', '.join(excess)} without a certificate: ignored"
        config.warn(("access", "loopback"), what, "observe; commands use listen.grpc_socket or tls")
    return Rules(patterns, loopback_observes=OBSERVE in roles)


def _patterns(config: ConfigReader, path: KeyPath, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = _texts(config, path, value)
    for i, text in enumerate(texts):
        if text != text.strip() or text.count("*") > PATTERN_STARS_MAX:
            allowed = f"a DNS name, a URI, CN=NAME, or *, with at most {PATTERN_STARS_MAX} stars"
            raise config.bad((*path, i), f"{text!r}", allowed)
    return texts


def _texts(config: ConfigReader, path: KeyPath, value: Any) -> tuple[str, ...]:
    allowed = f"a list of up to {PATTERNS_MAX} texts"
    if not isinstance(value, list) or len(value) > PATTERNS_MAX:
        raise config.bad(path, "too long" if isinstance(value, list) else "not a list", allowed)
    for i, text in enumerate(value):
        good = isinstance(text, str) and text.isprintable() and 0 < len(text) <= PATTERN_LENGTH_MAX
        if not good:
            allowed = f"a text of up to {PATTERN_LENGTH_MAX} characters"
            raise config.bad((*path, i), f"{text!r}", allowed)
    return tuple(value)


def _audit(config: ConfigReader) -> AuditLimits:
    plain = AuditLimits()
    config.strict_mapping(("audit",), ("bytes_max", "files_max"))
    return AuditLimits(
        config.whole(("audit", "bytes_max"), plain.bytes_max, AUDIT_BYTES_MIN, AUDIT_BYTES_MAX),
        config.whole(("audit", "files_max"), plain.files_max, 1, AUDIT_FILES_MAX),
    )


def _local_socket(config: ConfigReader) -> LocalSocket:
    """Without `listen.grpc_socket` it is in `state_dir`, which no two agents share."""
    path = config.optional_path(("listen", "grpc_socket"))
    group = config.value(("listen", "grpc_socket_group"))
    if group is not None and (not isinstance(group, str) or not group.isprintable() or not group):
        raise config.bad(("listen", "grpc_socket_group"), f"{group!r}", "the name of a group")
    if path is None:
        default = config.path(("state_dir",), STATE_DIR) / GRPC_SOCKET
        return LocalSocket(str(default), group or "", required=group is not None)
    config.check_socket_path(("listen", "grpc_socket"), path)
    if path == config.path(("listen", "socket"), SOCKET):
        raise config.bad(("listen", "grpc_socket"), "is listen.socket too", "a path of its own")
    return LocalSocket(str(path), group or "")


# -- attribution -------------------------------------------------------------------------


def _attribution(config: ConfigReader) -> AttributionSettings:
    at = ("attribution",)
    kubernetes, slurm = (*at, "kubernetes"), (*at, "slurm")
    config.warn_unknown(at, ("order", "kubernetes", "slurm", "proc", "cgroups"))
    config.warn_unknown(("reports",), ["bind", "power"])
    config.warn_unknown(kubernetes, ("pod_resources", "pods", "credentials", "pod_logs"))
    config.warn_unknown(slurm, ["mapping_dir"])
    in_kubernetes = bool(config.mapping(kubernetes)) or "kubernetes" in config.mapping(at)
    mapping_dir = config.optional_path((*slurm, "mapping_dir"))
    if config.mapping(slurm) and mapping_dir is None:
        raise config.bad((*slurm, "mapping_dir"), "is missing", "a directory")
    found = AttributionSettings(
        order=_source_order(config, (*at, "order")),
        mapping_dir=mapping_dir,
        proc=config.path((*at, "proc"), "/proc"),
        cgroups=config.path((*at, "cgroups"), "/sys/fs/cgroup"),
        bind=config.text(("reports", "bind"), "owner", ("owner", "any")),
        power=config.text(("reports", "power"), "sample", ("sample", "none")) == "sample",
    )
    if not in_kubernetes:
        return found
    return replace(
        found,
        pod_resources=config.path((*kubernetes, "pod_resources"), POD_RESOURCES),
        api=_api_server(config, kubernetes),
        pod_logs=config.optional_path((*kubernetes, "pod_logs")),
    )


def _source_order(config: ConfigReader, path: KeyPath) -> tuple[str, ...]:
    given = config.value(path)
    if given is None:
        return SOURCES
    good = isinstance(given, list) and given and all(word in SOURCES for word in given)
    if not good or len(set(given)) < len(given):
        raise config.bad(path, f"{given!r}", f"a list of {', '.join(SOURCES)}, each once")
    return tuple(given)


def _api_server(config: ConfigReader, kubernetes: tuple[str, ...]) -> ApiServer | None:
    if config.text((*kubernetes, "pods"), "none", ("api", "none")) == "none":
        return None
    host, port = os.environ.get(HOST_VARIABLE, ""), os.environ.get(PORT_VARIABLE, "443")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        what = f"api, but {HOST_VARIABLE} and {PORT_VARIABLE} name no server"
        raise config.bad((*kubernetes, "pods"), what, "none outside a pod")
    return ApiServer(host, int(port), config.path((*kubernetes, "credentials"), CREDENTIALS))
