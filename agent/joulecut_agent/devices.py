"""Device back ends by name, found as entry points of the group `joulecut.devices`.

Only the configured back end is imported; the agent does not know the simulator.
"""

from importlib.metadata import entry_points

from joulecut_agent.ports.backend import Backend
from joulecut_wire.errors import BadInput, not_installed

GROUP = "joulecut.devices"


def names() -> list[str]:
    return sorted({point.name for point in entry_points(group=GROUP)})


def address(name: str) -> str:
    """Import path of a back end, `module:name`. Raises BadInput on an unknown name."""
    for point in entry_points(group=GROUP):
        if point.name == name:
            return point.value
    raise BadInput("device", f"{name!r} is unknown", ", ".join(names()))


def load(name: str) -> Backend:
    """Raises BadInput on an unknown name, Unavailable if its package is not installed."""
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                backend: Backend = point.load()
            except ImportError as error:
                raise not_installed(f"device {name} cannot be loaded: {error}", "all") from None
            return backend
    raise BadInput("device", f"{name!r} is unknown", ", ".join(names()))
