"""GPUs behind the NVIDIA driver, through nvidia-ml-py: the back end `nvml`.

Reader and writer load on demand: the keeper does not load the reader, nor the agent the writer.
"""

from typing import TYPE_CHECKING, Any

import pynvml  # noqa: F401 - both need it; if missing, loading this back end reports it

from joulecut_wire.errors import BadInput

if TYPE_CHECKING:  # the keeper loads this module, and not the reader's types
    from joulecut_agent.ports.reader import DeviceReader
    from joulecut_agent.ports.writer import DeviceWriter


class NvmlBackend:
    """Options: `permission: capability | driver`.

    Whether clocks may be set is decided by this process's capabilities, before the first call, or
    by the driver's answer alone.
    """

    def open_reader(self, options: dict[str, Any], state_dir: str) -> "DeviceReader":  # noqa: ARG002
        from joulecut_agent.nvml.reader import NvmlReader  # noqa: PLC0415

        _needs_capability(options)
        return NvmlReader()

    def open_writer(self, options: dict[str, Any], state_dir: str) -> "DeviceWriter":  # noqa: ARG002
        from joulecut_agent.nvml.writer import NvmlWriter  # noqa: PLC0415

        return NvmlWriter(_needs_capability(options))


def _needs_capability(options: dict[str, Any]) -> bool:
    for key, value in options.items():
        if key != "permission":
            raise BadInput(f"nvml.{key}", "unknown key", "permission")
        if value not in {"capability", "driver"}:
            raise BadInput("nvml.permission", f"{value!r}", "capability, driver")
    return options.get("permission") != "driver"


backend = NvmlBackend()
