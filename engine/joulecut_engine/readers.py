"""Readers of users' files, found by the entry-point group `joulecut.readers`.

The engine takes values. What reads a stage profile, a job file or a run file registers itself, as
devices do with an agent, so that a library reads as the command line does.
"""

from importlib.metadata import entry_points
from typing import Any

GROUP = "joulecut.readers"


def reader(name: str, package: str = "joulecut") -> Any:
    """`package` brings it. Raises ValueError where the installation has none."""
    for point in entry_points(group=GROUP, name=name):
        return point.load()
    raise ValueError(f"no reader {name}: {package} brings it, and is not installed as a whole")
