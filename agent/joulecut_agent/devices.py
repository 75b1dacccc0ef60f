"""Device back ends by name, found as entry points of the group `joulecut.devices`.

Only the configured back end is imported; the agent does not know the simulator.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from joulecut_agent.ports.reader import DeviceReader
from joulecut_agent.ports.writer import DeviceWriter
from joulecut_wire.errors import BadInput, not_installed
from joulecut_wire.quantity import choice

GROUP = "joulecut.devices"
SIMULATED = "simulated"  # of joulecut-lab, a distribution of its own


class Backend(Protocol):
    """`options` is the mapping under the device's name in the agent's configuration, `state_dir`
    the agent's directory. Both methods raise DeviceError, and BadInput on unknown options.
    """

    def open_reader(self, options: dict[str, Any], state_dir: str) -> DeviceReader: ...

    def open_writer(self, options: dict[str, Any], state_dir: str) -> DeviceWriter: ...


def names() -> list[str]:
    return sorted({point.name for point in entry_points(group=GROUP)})


def named(given: object) -> str:
    """The value of a key. Raises Fault, and Unavailable where the lab would bring it."""
    known = names()
    if given == SIMULATED and SIMULATED not in known:
        raise not_installed("device simulated is of the lab, which is not installed", "", lab=True)
    return str(choice(*known)(given))


def address(name: str) -> str:
    """Import path of a back end, `module:name`. Raises BadInput on an unknown name."""
    return _point(name).value


def load(name: str) -> Backend:
    """Raises BadInput on an unknown name, Unavailable if its package is not installed."""
    try:
        backend: Backend = _point(name).load()
    except ImportError as error:
        raise not_installed(f"device {name} cannot be loaded: {error}", "agent") from None
    return backend


def _point(name: str) -> EntryPoint:
    for point in entry_points(group=GROUP):
        if point.name == name:
            return point
    raise BadInput("device", f"{name!r} is unknown", ", ".join(names()))
