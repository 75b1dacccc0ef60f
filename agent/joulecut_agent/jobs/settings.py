"""What attribution runs with, read from the agent's configuration.

Kubernetes and Slurm are asked only where the site names them; reports and processes always.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from joulecut_agent.jobs.owner import SOURCES
from joulecut_agent.jobs.pods import Server
from joulecut_wire.document import Document, KeyPath

POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
CREDENTIALS = "/var/run/secrets/kubernetes.io/serviceaccount"
HOST_VARIABLE = "KUBERNETES_SERVICE_HOST"
PORT_VARIABLE = "KUBERNETES_SERVICE_PORT"
BINDINGS = ("owner", "any")
KUBERNETES_KEYS = ("pod_resources", "pods", "credentials", "pod_logs")
KEYS = ("order", "kubernetes", "slurm", "proc", "cgroups")


@dataclass(frozen=True, slots=True)
class AttributionSettings:
    """`pod_resources` and `mapping_dir` are None where that scheduler is not asked."""

    order: tuple[str, ...] = SOURCES
    pod_resources: Path | None = None
    api: Server | None = None
    pod_logs: Path | None = None
    mapping_dir: Path | None = None
    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")
    bind: str = "owner"  # whose word of a GPU is taken: its owner's, or anybody's


class Reading(Protocol):
    """How the configuration file is read, with its complaints."""

    _doc: Document

    def _value(self, path: KeyPath) -> Any: ...
    def _text(self, path: KeyPath, default: str | None, allowed: Any = None) -> str: ...
    def _path(self, path: KeyPath, default: str) -> Path: ...
    def _mapping(self, path: KeyPath) -> dict[str, Any]: ...
    def _warn(self, path: KeyPath, known: Any) -> None: ...


def read(reading: Reading) -> AttributionSettings:
    """The keys `attribution` and `reports`. Raises BadInput."""
    at = ("attribution",)
    reading._warn(at, KEYS)
    reading._warn(("reports",), ["bind"])
    kubernetes, slurm = (*at, "kubernetes"), (*at, "slurm")
    reading._warn(kubernetes, KUBERNETES_KEYS)
    reading._warn(slurm, ["mapping_dir"])
    given = bool(reading._mapping(kubernetes)) or "kubernetes" in reading._mapping(at)
    mapping = bool(reading._mapping(slurm))
    logs = reading._value((*kubernetes, "pod_logs")) is not None
    if mapping and reading._value((*slurm, "mapping_dir")) is None:
        raise reading._doc.bad((*slurm, "mapping_dir"), "is missing", "a directory")
    return AttributionSettings(
        order=_order(reading, (*at, "order")),
        pod_resources=reading._path((*kubernetes, "pod_resources"), POD_RESOURCES)
        if given
        else None,
        api=_api(reading, kubernetes) if given else None,
        pod_logs=reading._path((*kubernetes, "pod_logs"), "") if given and logs else None,
        mapping_dir=reading._path((*slurm, "mapping_dir"), "") if mapping else None,
        proc=reading._path((*at, "proc"), "/proc"),
        cgroups=reading._path((*at, "cgroups"), "/sys/fs/cgroup"),
        bind=reading._text(("reports", "bind"), "owner", BINDINGS),
    )


def _order(reading: Reading, path: KeyPath) -> tuple[str, ...]:
    given = reading._value(path)
    if given is None:
        return SOURCES
    good = isinstance(given, list) and given and all(word in SOURCES for word in given)
    if not good or len(set(given)) < len(given):
        raise reading._doc.bad(path, f"{given!r}", f"a list of {', '.join(SOURCES)}, each once")
    return tuple(given)


def _api(reading: Reading, kubernetes: KeyPath) -> Server | None:
    if reading._text((*kubernetes, "pods"), "none", ("api", "none")) == "none":
        return None
    host, port = os.environ.get(HOST_VARIABLE, ""), os.environ.get(PORT_VARIABLE, "443")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        what = f"api, but {HOST_VARIABLE} and {PORT_VARIABLE} name no server"
        raise reading._doc.bad((*kubernetes, "pods"), what, "none outside a pod")
    return Server(host, int(port), reading._path((*kubernetes, "credentials"), CREDENTIALS))
