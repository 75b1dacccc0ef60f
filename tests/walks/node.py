"""The node of a walk: a fake driver, agent and keeper as processes, their supervisor, and the log.

The supervisor stands for systemd: what has ended is started again. The log is what the checker
reads: the driver's record of writes, drained here, and what befell driver and processes.
"""

import contextlib
import heapq
import itertools
import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from cable import Cable
from controllers import STAGES, Controllers
from wall_clock import build_wall_clock

from fixture import FakeNvml
from joulecut import Reporter
from layout import MODELS

GPUS, BYSTANDER, PLUGGED_LATE = 8, 6, 7  # no command names GPU 6; GPU 7 is plugged in later
CLOCK_MHZ, POWER_W = (510, 1395), (150, 390)  # the bounds, within the range of an A100
CLOCK_LOWEST_MHZ, DEFAULT_MHZ, DEFAULT_MW = 210, 1410, 400_000
STEP_CLOCKS_MHZ = (600, 750)  # of timed steps alone, so that the checker knows them
BIN = Path(sys.executable).parent
POLL_S = 0.02
BEAT_S, STALL_S = 0.02, 0.1  # a beat that comes later than that is a stall of the machine
READY_S = 90.0  # for a busy machine
LED_S = 300.0  # there, until controllers have measured enough to lower a clock
RESTART_S = 0.2  # of the supervisor, as RestartSec= of a unit
LOST_S = 10.0  # a limit that has not gone back by then stays
END_S = 75.0  # longer than the longest wait between two tries of a restore

_BEAT = f"""
import sys, time
while True:
    begun_s = time.monotonic()
    time.sleep({BEAT_S})
    late_s = time.monotonic() - begun_s - {BEAT_S}
    if late_s > {STALL_S}:
        print(time.monotonic(), late_s, flush=True)
"""


@dataclass(frozen=True)
class Site:
    """One kind of installation."""

    own_keeper: bool = False
    site_default_mhz: int = 0
    power_safe: str | int = "recorded"  # or watts
    journal_apart: bool = False
    ttl_s: float = 1.0
    led: bool = False  # by two real controllers


SITES = {
    "child": Site(),
    "unit": Site(own_keeper=True),
    "locked": Site(own_keeper=True, site_default_mhz=1380, journal_apart=True),
    "capped": Site(own_keeper=True, power_safe=180, journal_apart=True),
    "led": Site(own_keeper=True, ttl_s=4.0, led=True),
}


class Log:
    """JSON lines, each with the time of the monotonic clock; for any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w")
        self._lock = threading.Lock()

    def add(self, at_s: float | None = None, **event: Any) -> None:
        with self._lock:
            line = {"at_s": time.monotonic() if at_s is None else at_s, **event}
            self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        with self._lock:
            self._file.close()


@dataclass
class Unit:
    """A process that the supervisor keeps running."""

    name: str
    argv: list[str]
    process: subprocess.Popen[bytes] | None = None
    start_s: float = 0.0  # not before
    started_s: float = 0.0


class Node:
    """`with Node(folder, site) as node:` has an agent that is ready. Ends everything."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.home = Path(tempfile.mkdtemp(prefix="jw"))
        self.state_dir = self.home / "state"
        self.state_dir.mkdir()
        self.driver = FakeNvml(self.home / "gpus", gpus=GPUS)
        self.driver.set_permission(True)
        for gpu in range(GPUS):
            self.driver.set_load(gpu, 1.0)
        self.shown = PLUGGED_LATE
        self.driver.show_gpus(self.shown)
        self.log = Log(self.home / "driver.log")
        self.foreign: dict[int, tuple[int, int]] = {}  # locks of other writers
        self.foreign_w: dict[int, int] = {}
        self.journal_was_lost = False  # limits of ours may stay then
        self.failure: BaseException | None = None
        self._numbers = itertools.count(1)
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._lock, self._drain_lock = threading.Lock(), threading.Lock()
        self._over = threading.Event()
        self._writes_seen = 0
        self._keeper_pid = 0
        self._socket_seen: tuple[int, int] | None = None  # of the keeper that was up last
        self._down = True
        self._agent = Unit("agent", self._argv("run"))
        self._keeper = Unit("keeper", self._argv("keeper")) if site.own_keeper else None
        self._leading: dict[str, Unit] = {}
        self.controllers: Controllers | None = None
        self._wall = self.home / "wall"
        self._wall.write_bytes(struct.pack("q", 0))
        self._output = (self.home / "output").open("ab")
        self.cable = Cable(self.home / "near.sock", self.home / "agent.sock")
        self._beat = subprocess.Popen([sys.executable, "-c", _BEAT], stdout=subprocess.PIPE)
        self._threads = [
            threading.Thread(target=run, name=run.__name__, daemon=True)
            for run in (self._supervise, self._watch_beat)
        ]

    def __enter__(self) -> Self:
        self._write_config()
        self.log.add(keeper="down")
        for thread in self._threads:
            thread.start()
        try:
            ready = self.home / "agent.sock"
            until(lambda: not self._down and ready.exists(), "a ready agent")
            if self.site.led:
                self._start_controllers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_controllers(self) -> None:
        """Returns when they have set a clock."""
        for gpu in range(STAGES):
            self.driver.set_processes(gpu, {os.getpid(): 1 << 30})
        self.controllers = Controllers(
            self.home, self.driver, self.site.ttl_s, lambda: self.log.add(contact=True)
        )
        self._leading = {
            name: Unit(name, self.controllers.argv(name)) for name in self.controllers.cables
        }
        until(lambda: any(self.driver.locks()), "clocks that a controller has set", LED_S)

    def iterate(self, iteration_s: float) -> None:
        """A job reports an iteration of every GPU, again and again."""
        socket = str(self.home / "jobs.sock")
        uuids = self.driver.uuids
        reporters = [Reporter("walk", uuid, n, socket=socket) for n, uuid in enumerate(uuids)]

        def run() -> None:
            number, end_s = 0, time.monotonic()
            while not self._over.wait(max(0.0, end_s - time.monotonic())):
                for reporter in reporters:
                    reporter.iteration(number, iteration_s)
                number, end_s = number + 1, end_s + iteration_s

        self._threads.append(threading.Thread(target=run, name="iterate", daemon=True))
        self._threads[-1].start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(READY_S)
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for unit in self._units:
            if unit.process is not None:
                unit.process.wait()
        if self.controllers is not None:
            self.controllers.close()
        self.cable.close()
        self.log.close()
        self._output.close()

    def remove(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def output(self) -> str:
        """What agent and keeper have printed."""
        return (self.home / "output").read_text(errors="replace")

    @property
    def address(self) -> str:
        """For commands."""
        return f"unix:{self.home}/near.sock"

    def contract(self) -> dict[str, Any]:
        """What the checker knows of this site."""
        safe = self.site.power_safe
        default_mhz = self.site.site_default_mhz
        return {
            "gpus": GPUS,
            "ttl_s": self.site.ttl_s,
            "clock_mhz": CLOCK_MHZ,
            "clock_lowest_mhz": CLOCK_LOWEST_MHZ,
            "power_mw": [1000 * watts for watts in POWER_W],
            "default_mw": DEFAULT_MW,
            "site_default": [CLOCK_LOWEST_MHZ, default_mhz] if default_mhz else None,
            "safe_mw": 1000 * safe if isinstance(safe, int) else -1 if safe == "keep" else 0,
            "step_mhz": STEP_CLOCKS_MHZ,
            "capped_mhz": {
                str(watts): mhz
                for watts in range(POWER_W[0], DEFAULT_MW // 1000)
                if (mhz := MODELS["a100"].capped_mhz(watts)) < DEFAULT_MHZ
            },
            "others": [1, os.getpid()],
            "bystanders": [BYSTANDER],
        }

    def _write_config(self) -> None:
        site = self.site
        config: dict[str, Any] = {
            "device": "nvml",
            "nvml": {"permission": "driver"},
            "node": "n1",
            "listen": {
                "metrics": "127.0.0.1:0",
                "grpc": "127.0.0.1:0",
                "grpc_socket": "agent.sock",
                "socket": "jobs.sock",
            },
            "state_dir": "state",
            "sample_interval_s": 0.2,
            "lease": {"ttl_s_max": site.ttl_s},
            "bounds": {
                "min_dwell_s": 0.0,
                "writes_per_minute": 600,
                "clock_min_mhz": CLOCK_MHZ[0],
                "clock_max_mhz": CLOCK_MHZ[1],
                "power_min_w": POWER_W[0],
                "power_max_w": POWER_W[1],
            },
            "power": {"safe": site.power_safe},
            "keeper": str(self.state_dir / "keeper.sock") if site.own_keeper else "child",
        }
        if site.site_default_mhz:
            config["site_default"] = {"clock_max_mhz": site.site_default_mhz}
        if site.journal_apart:
            (self.home / "memory").mkdir()
            config["journal_dir"] = "memory"
        (self.home / "agent.yaml").write_text(yaml.safe_dump(config))

    # -- processes ------------------------------------------------------------------------------

    @property
    def agent_pid(self) -> int:
        """0 while there is none."""
        return _pid(self._agent)

    @property
    def keeper_pid(self) -> int:
        if self._keeper is None:
            return _child(self.agent_pid, "keeper")
        return _pid(self._keeper)

    @property
    def writer_pid(self) -> int:
        return _child(self.keeper_pid, "")

    @property
    def reader_pid(self) -> int:
        return _child(self.agent_pid, "reader_process")

    def age_s(self, what: str) -> float:
        """How long ago agent or keeper was started."""
        unit = self._agent if what == "agent" or self._keeper is None else self._keeper
        return time.monotonic() - unit.started_s

    @property
    def first_pid(self) -> int:
        return _pid(self._leading.get("first"))

    @property
    def second_pid(self) -> int:
        return _pid(self._leading.get("second"))

    @property
    def _units(self) -> list[Unit]:
        own = [self._keeper] if self._keeper is not None else []
        return [*own, self._agent, *self._leading.values()]

    def pids(self) -> list[int]:
        """Of every process, children first, so that none is left without a parent."""
        names = ("writer", "reader", "keeper", "agent", "first", "second")
        return [pid for name in names if (pid := int(getattr(self, f"{name}_pid")))]

    def signal(self, what: str, number: signal.Signals) -> bool:
        """Signals agent, keeper, writer or reader; whether there was one."""
        pid = int(getattr(self, f"{what}_pid"))
        if not pid:
            return False
        if what == "keeper" and number in {signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP}:
            self.keeper_is_down()
        if what == "writer" and number in {signal.SIGKILL, signal.SIGSTOP}:
            self.log.add(writer="lost")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def keeper_is_down(self) -> None:
        """Noted before it is so, if it is asked for; the watch notes when one answers again."""
        self._down = True
        self.log.add(keeper="down")

    def goes_on(self, what: str, pid: int) -> None:
        """A stopped process continues; a keeper that was stopped answers again from now on."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
            if what == "keeper" and pid == self.keeper_pid:
                self._down = False
                self.log.add(keeper="up")

    def run(self, command: str) -> None:
        """One more process of the product, which nobody waits for."""
        process = self._start(Unit(command, self._argv(command)))
        self.after(READY_S, process.poll)

    def _argv(self, command: str) -> list[str]:
        return [str(BIN / "joulecut-agent"), command, "--config", str(self.home / "agent.yaml")]

    def _start(self, unit: Unit) -> "subprocess.Popen[bytes]":
        env = self.driver.environment()
        if unit.name == "keeper":
            env |= {"LD_PRELOAD": str(build_wall_clock()), "JOULECUT_WALL_CLOCK": str(self._wall)}
        return subprocess.Popen(
            unit.argv,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=env,
        )

    def plug(self) -> None:
        """The last GPU is there from now on."""
        self.shown = GPUS
        self.driver.show_gpus(GPUS)

    def shift_wall_clock(self, seconds: float) -> None:
        with self._wall.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shift:
            shift[:8] = struct.pack("q", int(seconds * 1e9))

    # -- what the supervisor does -----------------------------------------------------------------

    def after(self, wait_s: float, act: Callable[[], object]) -> None:
        with self._lock:
            heapq.heappush(self._due, (time.monotonic() + wait_s, next(self._numbers), act))

    def trouble(self, kind: str, gpu: int, for_s: float, undo: Callable[[], None]) -> None:
        """Notes trouble that has just begun, and ends it in time."""
        number = next(self._numbers)
        self.log.add(trouble=number, kind=kind, gpu=gpu)

        def end() -> None:
            undo()
            self.log.add(over=number)

        self.after(for_s, end)

    def end_troubles(self) -> None:
        """Everything that would end by itself ends now."""
        with self._lock:
            due, self._due = self._due, []
        for _, _, act in sorted(due, key=lambda one: one[:2]):
            act()

    def _supervise(self) -> None:
        try:
            while not self._over.wait(POLL_S):
                self._look_once()
        except Exception as failure:
            self.failure = failure

    def _look_once(self) -> None:
        now_s, due = time.monotonic(), []
        with self._lock:
            while self._due and self._due[0][0] <= now_s:
                due.append(heapq.heappop(self._due)[2])
        for act in due:
            act()
        self.drain()
        for unit in self._units:
            self._keep_up(unit, now_s)
        self._watch_keeper()

    def _keep_up(self, unit: Unit, now_s: float) -> None:
        if unit.process is not None and unit.process.poll() is not None:
            self.log.add(process=unit.name, status=unit.process.returncode)
            unit.process, unit.start_s = None, now_s + RESTART_S
        if unit.process is None and now_s >= unit.start_s:
            unit.process, unit.started_s = self._start(unit), now_s

    def _watch_keeper(self) -> None:
        """A keeper that has ended unasked is down, too; its socket is new when the next answers."""
        pid = self.keeper_pid
        if not self._down and pid != self._keeper_pid:
            self.keeper_is_down()
        if self._down and pid:
            seen = self._socket()
            if seen is not None and seen != self._socket_seen:
                self._keeper_pid, self._socket_seen, self._down = pid, seen, False
                self.log.add(keeper="up")

    def _socket(self) -> tuple[int, int] | None:
        try:
            about = (self.state_dir / "keeper.sock").stat()
        except FileNotFoundError:
            return None
        return about.st_ino, about.st_ctime_ns

    def drain(self) -> None:
        """Into the log: what the driver has been asked to set since the last time."""
        with self._drain_lock:
            writes, self._writes_seen = self.driver.writes_since(self._writes_seen)
            for write in writes:
                self.log.add(
                    write.at_s,
                    write={
                        "pid": write.pid,
                        "gpu": write.gpu,
                        "function": write.function,
                        "arguments": write.arguments,
                        "code": write.code,
                        "done": write.done,
                        "command": write.command,
                        "begun_s": write.begun_s,
                    },
                )

    def _watch_beat(self) -> None:
        os.set_blocking(self._beat.stdout.fileno(), False)
        while not self._over.wait(POLL_S):
            for line in self._beat.stdout.readlines() or []:
                at_s, late_s = map(float, line.split())
                self.log.add(at_s, stall_s=late_s)
        self._beat.kill()
        self._beat.wait()
        self._beat.stdout.close()

    # -- the end ------------------------------------------------------------------------------

    def settle(self) -> None:
        """All trouble ends, nobody commands; waits until the keeper is back and every GPU is free,
        and notes the end.
        """
        self._leading, leading = {}, self._leading
        for unit in leading.values():
            if unit.process is not None:
                unit.process.kill()
                unit.process.wait()
        self.end_troubles()
        self.plug()
        self.cable.heal(lossy=True)
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        end_s = time.monotonic() + END_S
        quiet_s = time.monotonic() + self.site.ttl_s + 3.0  # a command may still be on its way
        while time.monotonic() < end_s and not (
            not self._down and self._is_free(quiet_s + LOST_S) and time.monotonic() > quiet_s
        ):
            time.sleep(0.1)
        self._over.set()  # nothing is judged after the end
        for thread in self._threads:
            thread.join(READY_S)
        self.drain()
        self.log.add(found={"locks": self.driver.locks(), "limits_mw": self._limits_mw()})

    def _limits_mw(self) -> list[int]:
        return [round(1000 * watts) for watts in self.driver.limits_w()]

    def _is_free(self, lost_s: float) -> bool:
        """`lost_s`: until when a limit is waited for that may stay, after damage to the journal."""
        now_s = time.monotonic()
        default = (CLOCK_LOWEST_MHZ, self.site.site_default_mhz)
        locks = enumerate(self.driver.locks())
        unlocked = all(lock in {None, default, self.foreign.get(gpu)} for gpu, lock in locks)
        safe_w = self.site.power_safe
        limits_w = enumerate(self.driver.limits_w())
        known_w = {DEFAULT_MW / 1000, safe_w}
        unlimited = all(watts in {*known_w, self.foreign_w.get(gpu)} for gpu, watts in limits_w)
        return unlocked and (unlimited or (self.journal_was_lost and now_s > lost_s))


def until(condition: Callable[[], object], what: str, patience_s: float = READY_S) -> None:
    end_s = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"{what}: not within {patience_s:g} s")
        time.sleep(POLL_S)


def _pid(unit: Unit | None) -> int:
    """Of a process that runs; 0 otherwise."""
    process = unit.process if unit is not None else None
    return process.pid if process is not None and process.poll() is None else 0


def _child(pid: int, word: str) -> int:
    """The first child of `pid` with `word` in its arguments; 0 where there is none."""
    if not pid:
        return 0
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    for child in children:
        with contextlib.suppress(OSError):
            _, _, arguments = Path(f"/proc/{child}/cmdline").read_text().partition("\0")
            if word in arguments:  # the program's own path may have the word as well
                return int(child)
    return 0
