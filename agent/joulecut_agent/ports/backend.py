"""Interface of a device back end; NVML and the simulator register theirs by entry point."""

from typing import Any, Protocol

from joulecut_agent.ports.reader import DeviceReader
from joulecut_agent.ports.writer import DeviceWriter


class Backend(Protocol):
    """`options` is the mapping under the device's name in the agent's configuration.

    `state_dir` is the agent's directory. Both methods raise DeviceError, and BadInput on unknown
    options.
    """

    def open_reader(self, options: dict[str, Any], state_dir: str) -> DeviceReader: ...

    def open_writer(self, options: dict[str, Any], state_dir: str) -> DeviceWriter: ...
