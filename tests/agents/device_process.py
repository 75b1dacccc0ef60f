"""A process that owns a device, as agent and keeper do, and does what it is told line by line.

Started by `device_rigs.py` as `python device_process.py NAME OPTIONS STATE_DIR`. One JSON list
`[port, method, *arguments]` in, one JSON object out: {"value"} or {"error": [class, code, text]}.
"""

import dataclasses
import json
import sys
import time
from importlib.metadata import entry_points
from typing import Any

from joulecut_agent.ports.failure import DeviceError
from joulecut_wire.errors import BadInput


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, DeviceError):
        return [type(value).__name__, value.code, str(value)]
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def main() -> None:
    name, options, state_dir = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    (entry,) = entry_points(group="joulecut.devices", name=name)
    backend = entry.load()
    ports: dict[str, Any] = {}
    for line in sys.stdin:
        port, method, *arguments = json.loads(line)
        began_s = time.monotonic()
        try:
            if method == "open":
                ports[port] = getattr(backend, f"open_{port}")(options, state_dir)
                answer = {"value": None}
            elif method == "hammer":  # writes without end, until somebody kills us
                print(json.dumps({"value": None, "between_s": [began_s, began_s]}), flush=True)
                while True:
                    ports[port].lock(*arguments)
                    ports[port].reset(arguments[0])
            else:
                answer = {"value": plain(getattr(ports[port], method)(*arguments))}
        except (DeviceError, BadInput) as error:
            code = getattr(error, "code", "")
            answer = {"error": [type(error).__name__, code, str(error)]}
        answer["between_s"] = [began_s, time.monotonic()]
        print(json.dumps(answer), flush=True)


main()
