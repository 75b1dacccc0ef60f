"""One event of a daemon's log as one line: text, or JSON with time and level.

The format is a property of the process, chosen once at its start (`--log-format`). Text is
`COMPONENT: MESSAGE`, before which a warning or error says so, without a time, which journald and
the container runtime add.
"""

import json
import time
from typing import Literal

Level = Literal["info", "warning", "error"]
TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)
# A pipe that polls writable takes PIPE_BUF (4096) bytes whole; so a line is never interleaved.
LINE_BYTES_MAX = 4000
JOB_CHARACTERS_MAX = 253  # as a policy allows; escaped, they take 3,036 bytes

_format = TEXT


def use(log_format: str) -> None:
    """Sets the format of this process: one of FORMATS."""
    global _format  # noqa: PLW0603 -- as standard error, there is one per process
    _format = log_format


def in_use() -> str:
    return _format


def rendered(component: str, message: str, level: Level = "info", job: str = "") -> bytes:
    """The line with its end, at most LINE_BYTES_MAX bytes and one more; a longer message is cut.

    `job` is a field of JSON, where the line is about one job; its message names the job as well.
    """
    if _format == TEXT:
        mark = "" if level == "info" or message.startswith(f"{level}: ") else f"{level}: "
        text = f"{component}: {mark}{message}"
        text = "".join(c if c.isprintable() else "?" for c in text)
        return text.encode(errors="replace")[:LINE_BYTES_MAX] + b"\n"
    while len(line := _object(component, message, level, job)) > LINE_BYTES_MAX:
        message = message[: len(message) * 3 // 4]
    return line + b"\n"


def _object(component: str, message: str, level: Level, job: str) -> bytes:
    """ASCII alone: what JSON must escape is escaped, and so is everything else."""
    now_s = time.time()
    at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_s))}.{int(now_s * 1000) % 1000:03}Z"
    record = {"time": at, "level": level, "component": component, "message": message}
    if job:
        record["job"] = job[:JOB_CHARACTERS_MAX]
    return json.dumps(record).encode()
