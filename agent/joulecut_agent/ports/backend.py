"""What a device back end offers; the simulator and NVML register theirs by entry point."""

from typing import Any, Protocol

from joulecut_agent.ports.reader import DeviceReader
from joulecut_agent.ports.writer import DeviceWriter


class Backend(Protocol):
    """A device back end. `options` is the mapping under the device's name in the agent's
    configuration, `state_dir` the agent's own directory. Both raise DeviceError, and
    BadInput on unknown options.
    """

    def open_reader(self, options: dict[str, Any], state_dir: str) -> DeviceReader: ...

    def open_writer(self, options: dict[str, Any], state_dir: str) -> DeviceWriter: ...
