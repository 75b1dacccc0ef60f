"""Settings of attribution: the sources of owners, in order."""

from dataclasses import dataclass
from pathlib import Path

from joulecut_agent.jobs.owner import SOURCES


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Address of the API server, and the folder with `ca.crt` and `token` (rotated in place)."""

    host: str
    port: int
    credentials: Path


@dataclass(frozen=True, slots=True)
class AttributionSettings:
    """`pod_resources` and `mapping_dir` are None for a scheduler that is not used."""

    order: tuple[str, ...] = SOURCES
    pod_resources: Path | None = None
    api: ApiServer | None = None
    mapping_dir: Path | None = None
    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")
    bind: str = "owner"  # which processes may report for a GPU: its owner's, or any
