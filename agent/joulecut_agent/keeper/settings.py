"""Settings of a keeper, read from the agent's configuration file."""

from dataclasses import dataclass, field
from pathlib import Path

from joulecut_agent.keeper.bounds import Bounds


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a keeper.

    `site_default` is (min, max) in MHz of a GPU without a lease; None: the driver's default.
    `journal_dir` may be lost at a reboot; "" is `state_dir`.
    `power_safe` is the power limit after a lease has expired: "recorded" (as found before the
    first write), "keep", or the site's cap in mW.
    """

    state_dir: str
    bounds: Bounds = field(default_factory=Bounds)
    site_default: tuple[int, int] | None = None
    power_safe: str | int = "recorded"
    restore_jitter_s: float = 0.0
    stop_file: str = ""
    journal_dir: str = ""

    @property
    def journal_file(self) -> Path:
        return Path(self.journal_dir or self.state_dir) / "journal"
