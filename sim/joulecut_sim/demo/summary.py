"""The demo's summary, in the format that outside checks rely on.

Times and energies come from the job's reports and the simulated energy counters. A field
that could not be measured is null.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulecut_sim.demo.layout import put
from joulecut_sim.demo.settings import JOB
from joulecut_sim.results import Window
from joulecut_wire.errors import Unavailable

# The share of energy that plans of a granularity could save of a plant at a slowdown. Clocks that
# change within an iteration have limits: their number (0: none), and the seconds between two.
Possible = Callable[..., float]


@dataclass(slots=True)
class Tally:
    """Measurements of a demo; `zero` while no slowdown was allowed. Granularities and limits of
    changes are those of the plans in force at the end of their phases.
    """

    mode: str = "off"
    granularity: str = "gpu"
    changes: int = 0
    min_dwell_s: float = 0.0
    granularity_zero: str = "gpu"
    baseline: Window = field(default_factory=Window)
    zero: Window = field(default_factory=Window)
    controlled: Window = field(default_factory=Window)
    predicted_saved_ratio: float | None = None
    commands_sent: int = 0
    commands_while_recommending: int = 0
    gpus_restored: int = 0
    gpus_total: int = 0

    def saved_in(self, window: Window) -> float | None:
        """Against the baseline."""
        before, after = self.baseline.energy_j, window.energy_j
        return None if before is None or after is None else 1.0 - after / before

    def slowdown_in(self, window: Window) -> float | None:
        """Against the baseline."""
        before, after = self.baseline.time_s, window.time_s
        return None if before is None or after is None else after / before - 1.0


def agreed(slowdown: float, policy_slowdown: float) -> float:
    """The larger of the slowdown that came about and the one that was agreed to: the strictest
    reading of what could have been saved.
    """
    return max(0.0, slowdown, policy_slowdown)


def summary(
    tally: Tally, possible: float | None, possible_zero: float | None = None
) -> dict[str, Any]:
    """The summary as JSON values."""
    return {
        "jobs": [
            {
                "name": JOB,
                "mode": tally.mode,
                "granularity": tally.granularity,
                "baseline": _window(tally.baseline),
                "controlled": _window(tally.controlled),
                "saved_ratio": tally.saved_in(tally.controlled),
                "slowdown_ratio": tally.slowdown_in(tally.controlled),
                "predicted_saved_ratio": tally.predicted_saved_ratio,
                "possible_saved_ratio": possible,
            }
        ],
        "zero_slowdown": {
            "granularity": tally.granularity_zero,
            "saved_ratio": tally.saved_in(tally.zero),
            "slowdown_ratio": tally.slowdown_in(tally.zero),
            "possible_saved_ratio": possible_zero,
        },
        "commands_sent": tally.commands_sent,
        "commands_while_recommending": tally.commands_while_recommending,
        "gpus_restored": tally.gpus_restored,
        "gpus_total": tally.gpus_total,
    }


def write(path: Path, summary: dict[str, Any]) -> None:
    """Raises Unavailable where the file cannot be written."""
    try:
        put(path, json.dumps(summary, indent=2) + "\n")
    except OSError as error:
        raise Unavailable(f"the summary cannot be written: {path}: {error.strerror}") from None


def _window(window: Window) -> dict[str, float | None]:
    return {"iteration_time_s": window.time_s, "energy_j": window.energy_j}
