"""The agent's configuration file: read whole and checked before anything starts.

An unknown key is a warning here, because measuring must go on after a typing error in a
file that was rolled out to a thousand nodes; a wrong value is refused, with file and line.
"""

import math
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from joulecut_agent import devices, protection
from joulecut_agent.jobs import settings as attribution
from joulecut_agent.keeper import keeper
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.log import say
from joulecut_agent.settings import Settings
from joulecut_wire import document
from joulecut_wire.address import is_loopback
from joulecut_wire.document import Document, KeyPath
from joulecut_wire.errors import BadInput

NODE = "JOULECUT_NODE"  # of the environment: Kubernetes tells a pod its node by it
METRICS = "127.0.0.1:9430"
GRPC = "127.0.0.1:9431"
SOCKET = "/run/joulecut/jobs.sock"  # where `joulecut.Reporter` looks too
STATE_DIR = "/var/lib/joulecut"
SOCKET_PATH_BYTES_MAX = 107  # sun_path holds 108, the last of them zero
CLOCK_MHZ_MAX = 10_000  # no GPU comes near; a value in kHz or Hz is caught
POWER_W_MAX = 10_000.0  # no board comes near; a value in mW is caught
SPREAD_S_MAX = 60.0  # a GPU that nobody holds must not stay slow for longer than a lease may
KEYS = (
    "device", "node", "listen", "state_dir", "journal_dir", "sample_interval_s", "lease", "bounds",
    "power",
    "site_default", "keeper", "stop_file", "attribution", "reports", *protection.KEYS,
)  # fmt: skip


def load(path: Path, node: str | None = None) -> Settings:
    """`node` wins over the file. Raises BadInput with file, line and key; warns of unknown keys."""
    return _Reading(document.load(path), path.resolve().parent).settings(node)


class _Reading:
    def __init__(self, doc: Document, folder: Path) -> None:
        self._doc = doc
        self._folder = folder
        self._ignored = 0

    def settings(self, node: str | None) -> Settings:
        doc = self._doc
        if not isinstance(doc.data, dict):
            raise doc.bad((), "no mapping of keys", ", ".join(KEYS))
        device = self._text(("device",), None, devices.names())
        self._warn((), [*KEYS, *devices.names()])
        self._warn(("listen",), ["metrics", "grpc", "socket", *protection.LISTEN_KEYS])
        self._warn(("lease",), ["ttl_s_max", "restore_spread_s"])
        self._warn(("power",), ["safe"])
        grpc = self._address(("listen", "grpc"), GRPC)
        tls = protection.tls(doc, self._folder)
        if tls is None and not is_loopback(grpc[0]):
            allowed = "a loopback address, or a section tls"
            raise doc.bad(("listen", "grpc"), f"{grpc[0]} without encryption", allowed)
        local = protection.local_socket(doc, self._folder)
        if local is not None:
            self._fits(("listen", "grpc_socket"), Path(local.path))
        state_dir = self._path(("state_dir",), STATE_DIR)
        self._fits(("state_dir",), state_dir / "keeper.sock")
        jobs = self._path(("listen", "socket"), SOCKET)
        self._fits(("listen", "socket"), jobs)
        return Settings(
            device=device,
            options=self._mapping((device,)),
            node=self._node(node),
            metrics=self._address(("listen", "metrics"), METRICS),
            grpc=grpc,
            socket=str(jobs),
            sample_interval_s=self._number(("sample_interval_s",), 1.0, 0.05, 60.0),
            keeper_mode=self._keeper(),
            keeper=keeper.Settings(
                str(state_dir),
                self._bounds(),
                self._range(("site_default",)),
                self._power_safe(),
                self._number(("lease", "restore_spread_s"), 0.0, 0.0, SPREAD_S_MAX),
                str(self._path(("stop_file",), str(state_dir / "stop"))),
                self._journal_dir(state_dir),
            ),
            tls=tls,
            rules=protection.rules(doc),
            local_socket=local,
            audit=protection.audit(doc),
            web_config=protection.web_config(doc, self._folder),
            attribution=attribution.read(self),
            keys_ignored=self._ignored,  # last, when every section was read
        )

    def _node(self, given: str | None) -> str:
        """By flag, by file, by environment, or else the host's own name."""
        named = _word("--node", given) or self._text(("node",), "")
        return named or _word(NODE, os.environ.get(NODE) or None) or socket.gethostname()

    def _journal_dir(self, state_dir: Path) -> str:
        """ "" where the journal lies in the state directory."""
        folder = self._path(("journal_dir",), str(state_dir))
        return "" if folder.resolve() == state_dir.resolve() else str(folder)

    def _bounds(self) -> Bounds:
        plain = Bounds()
        names = [name for name in Bounds.__slots__ if name != "ttl_s_max"]
        self._warn(("bounds",), names)
        low, high = self._range(("bounds",)) or (0, 0)
        low_w = self._number(("bounds", "power_min_w"), 0.0, 0.0, POWER_W_MAX)
        high_w = self._number(("bounds", "power_max_w"), 0.0, 0.0, POWER_W_MAX)
        if high_w and low_w > high_w:
            where = ("bounds", "power_min_w")
            raise self._doc.bad(where, f"{low_w:g} W", f"at most {high_w:g} W")
        return Bounds(
            ttl_s_max=self._number(("lease", "ttl_s_max"), plain.ttl_s_max, 0.1, 3600.0),
            clock_min_mhz=low,
            clock_max_mhz=high,
            min_dwell_s=self._number(("bounds", "min_dwell_s"), plain.min_dwell_s, 0.0, 3600.0),
            writes_per_minute=int(
                self._number(
                    ("bounds", "writes_per_minute"), plain.writes_per_minute, 1, 600, whole=True
                )
            ),
            changed_share_per_minute=self._number(
                ("bounds", "changed_share_per_minute"), plain.changed_share_per_minute, 0.0, 1.0
            ),
            power_min_w=low_w,
            power_max_w=high_w,
        )

    def _power_safe(self) -> str | int:
        """What a power limit falls to: "recorded", "keep", or milliwatts."""
        path = ("power", "safe")
        value = self._value(path)
        if value is None or value == "recorded" or value == "keep":  # noqa: PLR1714 -- a list has no hash
            return "keep" if value == "keep" else "recorded"
        if isinstance(value, str):
            allowed = f"recorded, keep, or watts from 1 to {POWER_W_MAX:g}"
            raise self._doc.bad(path, f"{value!r}", allowed)
        return round(1000.0 * self._number(path, 0.0, 1.0, POWER_W_MAX))

    def _range(self, path: KeyPath) -> tuple[int, int] | None:
        if path == ("site_default",):
            self._warn(path, ["clock_min_mhz", "clock_max_mhz"])
        given = self._mapping(path)
        low = int(self._number((*path, "clock_min_mhz"), 0, 0, CLOCK_MHZ_MAX, whole=True))
        high = int(self._number((*path, "clock_max_mhz"), 0, 0, CLOCK_MHZ_MAX, whole=True))
        if high and low > high:
            raise self._doc.bad((*path, "clock_min_mhz"), f"{low} MHz", f"at most {high} MHz")
        if path == ("site_default",) and given and not high:
            raise self._doc.bad(path, "no clock_max_mhz", "the clock that the site locks")
        return (low, high) if given else None

    def _keeper(self) -> str:
        mode = self._text(("keeper",), "child")
        if mode in {"child", "none"}:
            return mode
        if "/" not in mode:
            raise self._doc.bad(("keeper",), f"{mode!r}", "child, none, or a path with a /")
        path = self._path(("keeper",), mode)
        self._fits(("keeper",), path)
        return str(path)

    def _mapping(self, path: KeyPath) -> dict[str, Any]:
        value = self._value(path)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._doc.bad(path, f"{value!r}", "a mapping of keys")
        return value

    def _value(self, path: KeyPath) -> Any:
        value = self._doc.data
        for depth, key in enumerate(path):
            if value is None:
                return None
            if not isinstance(value, dict):
                raise self._doc.bad(path[:depth], f"{value!r}", "a mapping of keys")
            value = value.get(str(key))
        return value

    def _text(
        self, path: KeyPath, default: str | None, allowed: Iterable[str] | None = None
    ) -> str:
        value = self._value(path)
        words = ", ".join(allowed) if allowed is not None else "printable text without spaces"
        if value is None:
            if default is None:
                raise self._doc.bad(path, "is missing", words)
            return default
        if not _is_word(value) or (allowed is not None and value not in allowed):
            raise self._doc.bad(path, f"{value!r}", words)
        return str(value)

    def _number(
        self, path: KeyPath, default: float, low: float, high: float, whole: bool = False
    ) -> float:
        value = self._value(path)
        if value is None:
            return default
        kind = "a whole number" if whole else "a number"
        good = isinstance(value, int | float) and not isinstance(value, bool)
        good = good and math.isfinite(value) and low <= value <= high
        if not good or (whole and value != int(value)):
            raise self._doc.bad(path, f"{value!r}", f"{kind} from {low:g} to {high:g}")
        return float(value)

    def _address(self, path: KeyPath, default: str) -> tuple[str, int]:
        value = self._value(path)
        text = default if value is None else value
        host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
        host = host.removeprefix("[").removesuffix("]")
        if (
            not host
            or not host.isprintable()
            or " " in host
            or not port.isascii()
            or not port.isdigit()
            or len(port) > 5
            or int(port) > 65_535
        ):
            raise self._doc.bad(path, f"{value!r}", "HOST:PORT, port 0 for a free one")
        return host, int(port)

    def _path(self, path: KeyPath, default: str) -> Path:
        value = self._value(path)
        if value is None:
            return Path(default)
        if not isinstance(value, str) or not value.isprintable() or not value:
            raise self._doc.bad(path, f"{value!r}", "a path")
        return self._folder / value

    def _fits(self, key: KeyPath, path: Path) -> None:
        size = len(str(path).encode())
        if size > SOCKET_PATH_BYTES_MAX:
            what = f"{size} bytes is too long for the socket {path.name} in it"
            raise self._doc.bad(key, what, f"at most {SOCKET_PATH_BYTES_MAX} bytes in all")

    def _warn(self, path: KeyPath, known: Iterable[str]) -> None:
        value = self._value(path)
        words = list(known)
        for key in value if isinstance(value, dict) else ():
            if key not in words:
                error = BadInput(
                    self._doc.where((*path, key)), "unknown key is ignored", ", ".join(words)
                )
                say("agent", f"warning: {error}")
                self._ignored += 1


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and bool(value) and " " not in value


def _word(where: str, value: str | None) -> str:
    """What a flag or a variable says, "" where it says nothing."""
    if value is not None and not _is_word(value):
        raise BadInput(where, f"{value!r}", "printable text without spaces")
    return value or ""
