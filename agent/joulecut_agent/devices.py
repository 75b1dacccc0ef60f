"""Finds the device back end that the configuration names, without importing any other.

Back ends register under the entry-point group `joulecut.devices`: so the agent can run on
a simulator that it knows nothing of.
"""

from importlib.metadata import entry_points

from joulecut_agent.ports.backend import Backend
from joulecut_wire.errors import BadInput, Unavailable

GROUP = "joulecut.devices"


def names() -> list[str]:
    return sorted({point.name for point in entry_points(group=GROUP)})


def address(name: str) -> str:
    """Where a back end is, as `module:name`: for a process that loads it by itself.

    Raises BadInput on a name nobody registered.
    """
    for point in entry_points(group=GROUP):
        if point.name == name:
            return point.value
    raise BadInput("device", f"{name!r} is unknown", ", ".join(names()))


def load(name: str) -> Backend:
    """Raises BadInput on a name nobody registered, Unavailable where its role is missing."""
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                backend: Backend = point.load()
            except ImportError as error:
                raise Unavailable(
                    f"device {name} cannot be loaded: {error}; pip install 'joulecut[all]' has it"
                ) from None
            return backend
    raise BadInput("device", f"{name!r} is unknown", ", ".join(names()))
