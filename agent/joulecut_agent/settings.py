"""What an agent runs with, as one checked value: made by `config`, used by `loop`."""

from dataclasses import dataclass
from typing import Any

from joulecut_agent import keeper


@dataclass(frozen=True, slots=True)
class Settings:
    """`keeper_mode` is child, none, or the path of a keeper's socket; addresses are host, port."""

    device: str
    options: dict[str, Any]
    node: str
    metrics: tuple[str, int]
    grpc: tuple[str, int]
    socket: str
    sample_interval_s: float
    keeper_mode: str
    keeper: keeper.Settings
