"""Observes a phase of the demo from outside: metrics of agents, reports of the job, the page.

One tick supervises the processes, reads what is new, and prints live numbers from time to time.
The demo's result rests on these observations alone and never on a plan.
"""

import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joulecut_sim.demo.cluster import Cluster, Say
from joulecut_sim.results import Record, Window, parse
from joulecut_wire.http_client import Answer, Server

HTTP_S_MAX = 2.0  # loopback; a process that needs longer is busy, and is asked again
BODY_BYTES_MAX = 8 << 20  # an API answer is tens of kilobytes
_APPLIED = re.compile(
    r'^joulecut_control_commands_total\{[^}]*op="apply"[^}]*\} ([0-9.e+]+)', re.MULTILINE
)


def get_json(address: str, path: str) -> dict[str, Any]:
    """An object of this machine; empty where there is none."""
    answer = _answer(address, path)
    try:
        value = answer.json() if answer else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _answer(address: str, path: str) -> Answer | None:
    """None without a good one."""
    host, _, port = address.rpartition(":")
    try:
        found = Server(host, int(port)).ask(path, within_s=HTTP_S_MAX, bytes_max=BODY_BYTES_MAX)
    except OSError:
        return None
    return found if found.status == 200 else None


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
        answer = _answer(address, "/metrics")
        if answer is None:
            return False
        text = answer.body.decode(errors="replace")
        now = sum(float(value) for value in _APPLIED.findall(text))
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


TICK_S = 0.1
SCRAPE_S = 1.0
TOLD_S = 5.0  # between two lines of progress
LOOKS_MAX = 3  # at an agent that is busy; one that is gone counts on when it is back
SHOWN = 10  # iterations averaged in a line of progress


class Stopped(Exception):
    """A person or a service manager asked the demo to end."""


class Watch:
    """`stopping` may be set from a signal handler at any time."""

    def __init__(self, say: Say, results: Follower) -> None:
        self._say = say
        self._results = results
        self.cluster: Cluster | None = None
        self.commands = Commands()
        self.stopping = False
        self._judged: tuple[Window, float] | None = None
        self._scraped_s = 0.0
        self._told_s = time.monotonic()

    @property
    def recent(self) -> tuple[Record, ...]:
        """The job's last iterations, oldest first."""
        return tuple(self._results.recent)

    def judge(self, window: Window | None, from_s: float = 0.0) -> None:
        """From now on iterations that begin at or after `from_s` count for `window`."""
        if self._judged is not None:
            self._judged[0].cut()
        self._judged = None if window is None else (window, from_s)

    def pause(self, seconds: float) -> None:
        """Sleeps. Raises Stopped once `stopping` is set."""
        until_s = time.monotonic() + seconds
        while not self.stopping and (left_s := until_s - time.monotonic()) > 0.0:
            time.sleep(min(left_s, TICK_S))
        if self.stopping:
            raise Stopped

    def run(self, seconds: float, *, until: Callable[[], bool] | None = None) -> bool:
        """Watches for so long, or until a condition holds; whether it did."""
        limit_s = time.monotonic() + seconds
        while time.monotonic() < limit_s:
            self._tick()
            if until is not None and until():
                return True
            self.pause(TICK_S)
        return until is None

    def count_commands(self) -> int:
        """Settings sent up to now, freshly read."""
        assert self.cluster is not None
        for node, address in self.cluster.metrics.items():
            for _ in range(LOOKS_MAX):
                if self.commands.look(node, address):
                    break
        self._scraped_s = time.monotonic()
        return self.commands.total

    def _tick(self) -> None:
        assert self.cluster is not None
        self.cluster.watch()
        new = self._results.look()
        if self._judged is not None:
            window, from_s = self._judged
            for record in new:
                if record.begin_s >= from_s:
                    window.add(record)
        now_s = time.monotonic()
        if now_s - self._scraped_s >= SCRAPE_S:
            self.count_commands()
        if now_s - self._told_s >= TOLD_S:
            self._told_s = now_s
            self._say(f"    {pulse(self.recent)}; {self.commands.total} commands")


def pulse(recent: tuple[Record, ...]) -> str:
    """The job's last few iterations in a line."""
    window = Window()
    for record in recent[-SHOWN:]:
        window.add(record)
    time_s, energy_j = window.time_s, window.energy_j
    if time_s is None or energy_j is None:
        return "no iterations yet"
    clocks = recent[-1].clocks_mhz
    return (
        f"{time_s:.4f} s an iteration, {energy_j / time_s:,.0f} W, "
        f"clocks {' '.join(map(str, clocks))} MHz"
    )
