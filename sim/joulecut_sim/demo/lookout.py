"""What can be seen from outside: the agents' metrics, the controller's API, the job's reports.

The demo judges the system by these alone; it never looks into a plan to learn what happened.
"""

import http.client
import json
import re
from collections import deque
from pathlib import Path
from typing import Any

from joulecut_sim.results import Record, parse

HTTP_S_MAX = 2.0  # loopback; a process that needs longer is busy, and is asked again
BODY_BYTES_MAX = 8 << 20  # an API answer is tens of kilobytes
_APPLIED = re.compile(
    r'^joulecut_control_commands_total\{[^}]*op="apply"[^}]*\} ([0-9.e+]+)', re.MULTILINE
)


def get(address: str, path: str) -> bytes | None:
    """The body of a page on this machine; None where there is no good answer."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=HTTP_S_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read(BODY_BYTES_MAX) if answer.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def get_json(address: str, path: str) -> dict[str, Any]:
    """As `get`, for an object; empty where there is none."""
    body = get(address, path)
    try:
        told = json.loads(body) if body else {}
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


class Commands:
    """Settings sent to the agents, by their own counters; a restarted agent counts from 0."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._seen: dict[str, float] = {}

    @property
    def total(self) -> int:
        return round(sum(self._before.values()) + sum(self._seen.values()))

    def look(self, node: str, address: str) -> bool:
        """Reads one agent's counters; whether it answered."""
        body = get(address, "/metrics")
        if body is None:
            return False
        now = sum(float(value) for value in _APPLIED.findall(body.decode(errors="replace")))
        if now < self._seen.get(node, 0.0):
            self._before[node] = self._before.get(node, 0.0) + self._seen[node]
        self._seen[node] = now
        return True


class Follower:
    """Reads the job's results as they are written, each record once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.recent: deque[Record] = deque(maxlen=64)

    def look(self) -> tuple[Record, ...]:
        """What is new since the last look."""
        try:
            if self._path.stat().st_size < self._offset:
                self._offset = 0  # the job began a new file
            with self._path.open("rb") as file:
                file.seek(self._offset)
                raw = file.read()
        except OSError:
            return ()
        whole = raw[: raw.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = tuple(record for line in whole.splitlines() if (record := parse(line)))
        self.recent.extend(new)
        return new
