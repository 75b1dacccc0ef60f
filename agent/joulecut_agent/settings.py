"""Checked settings of an agent: made by `config`, used by `loop` and `parts`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulecut_agent.control.access import LocalSocket, Rules
from joulecut_agent.control.audit_log import AuditLimits
from joulecut_agent.jobs.log_line import LogSource
from joulecut_agent.jobs.settings import AttributionSettings
from joulecut_agent.keeper.settings import Settings as KeeperSettings
from joulecut_wire.card_facts import CardFacts
from joulecut_wire.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class Settings:
    """`keeper_mode` is child, none, or the path of a keeper's socket; addresses are (host, port).

    `keys_ignored`: number of unknown keys in the file.
    """

    device: str
    options: dict[str, Any]
    node: str
    metrics: tuple[str, int]
    grpc: tuple[str, int]
    socket: str
    sample_interval_s: float
    keeper_mode: str
    keeper: KeeperSettings
    tls: TlsFiles | None = None
    rules: Rules = field(default_factory=Rules)
    local_socket: LocalSocket | None = None
    audit: AuditLimits = field(default_factory=AuditLimits)
    web_config: Path | None = None
    attribution: AttributionSettings = field(default_factory=AttributionSettings)
    logs: tuple[LogSource, ...] = ()
    measured: tuple[CardFacts, ...] = ()
    keys_ignored: int = 0
