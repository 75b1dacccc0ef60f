"""The steps of a walk: what is commanded, and what befalls driver, processes, disk and network.

A step is a name with its arguments, drawn from the seed before the walk begins, so that a walk can
be printed, shortened and taken again. Steps come in stretches; each stretch has its own few kinds
of faults, because faults of all kinds at once would excuse one another.
"""

import contextlib
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commander import ITERATION_S, Commander
from controllers import NAMES
from node import BYSTANDER, CLOCK_LOWEST_MHZ, CLOCK_MHZ, GPUS, SITES, STEP_CLOCKS_MHZ, Node

TTL_S = SITES["unit"].ttl_s  # of commands; sites with controllers have their own
STRETCH = 80  # steps with the same kinds of faults
KINDS_AT_ONCE = 4
COMMANDS = 0.6  # of the steps
PAUSE_S = 0.05  # between two steps, on average
IMPORTED_S = 4.0  # before that a Python process reads its modules, and none of our code runs
RULES_MAX = 24  # of the fake driver's 32
NAMED = [gpu for gpu in range(GPUS) if gpu != BYSTANDER]
UNSHARED, SHARED = NAMED[:-2], NAMED[-2:]  # with other writers; refused for a minute after that
SETTERS = {
    "lock": "nvmlDeviceSetGpuLockedClocks",
    "reset": "nvmlDeviceResetGpuLockedClocks",
    "limit": "nvmlDeviceSetPowerManagementLimit",
}
CALLS = (*SETTERS.values(), "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMigMode",
         "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetClockInfo")  # fmt: skip
CODES = (3, 10, 15, 16, 17, 19, 21, 23, 999)  # of NVML; `permission` stands for 4
SINGLE_BIT_ECC, DOUBLE_BIT_ECC = 0x1, 0x2  # event types of nvml.h
XIDS = (13, 31, 48, 63, 79, 94)
SOME_CLOCKS = (510, 705, 900, 1005, 1200, 1305)
SOME_WATTS = (160, 200, 250, 300, 380)
THEIR_WATTS = (170, 225, 275, 350, 400)  # none of ours: equal limits cannot be told apart

Settings = Mapping[int, tuple[int, ...]]  # min MHz, max MHz, watts and a timed step by GPU


@dataclass(frozen=True)
class Step:
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    pause_s: float = 0.0

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{self.name}({given}), {self.pause_s:g} s"


def drawn(seed: int, count: int, off: frozenset[str], *, led: bool) -> list[Step]:
    """The steps of a walk, without those in `off`. `led`: controllers command, and not the walk."""
    rng = random.Random(seed)
    weights = LED_WEIGHTS if led else COMMAND_WEIGHTS
    kinds = [name for name in FAULTS if name not in off]
    steps: list[Step] = []
    faults: list[str] = []
    while len(steps) < count:
        if len(steps) % STRETCH == 0:
            faults = rng.sample(kinds, min(KINDS_AT_ONCE, len(kinds)))
        draw = COMMAND_DRAWS if rng.random() < COMMANDS or not faults else FAULTS
        if draw is COMMAND_DRAWS:
            (name,) = rng.choices(list(weights), list(weights.values()))
        else:
            name = rng.choices(faults, [RARELY.get(fault, 1.0) for fault in faults])[0]
        arguments = draw[name](rng)
        steps.append(Step(name, arguments, round(rng.expovariate(1.0 / PAUSE_S), 3)))
    return steps


# -- commands -------------------------------------------------------------------------------------


def _settings(rng: random.Random) -> Settings:
    gpus = rng.sample(NAMED, rng.randint(1, 4))
    high = rng.choice(SOME_CLOCKS)
    low = rng.choice((0, 0, CLOCK_MHZ[0]))
    watts = rng.choice((0, 0, *SOME_WATTS))
    step = rng.choice((0, 0, *STEP_CLOCKS_MHZ))
    return dict.fromkeys(gpus, (low, high, watts, step if step < high else 0))


def _apply(rng: random.Random) -> dict[str, Any]:
    ttl_s = round(rng.uniform(0.2, TTL_S), 2)
    return {"leads": rng.random() < 0.85, "settings": _settings(rng), "ttl_s": ttl_s}


def _refused(rng: random.Random) -> dict[str, Any]:
    bad = {
        "clock": {0: (0, 450, 0)}, "table": {1: (0, 1001, 0)}, "above": {2: (0, 1410, 0)},
        "watts": {3: (0, 1005, 120)}, "huge": {4: (0, 0, 395)},
    }  # fmt: skip
    what = rng.choice([*bad, "ttl"])
    settings, ttl_s = (_settings(rng), TTL_S * 1.5) if what == "ttl" else (bad[what], TTL_S)
    return {"leads": rng.random() < 0.85, "settings": settings, "ttl_s": ttl_s}


COMMAND_WEIGHTS = {
    "apply": 50, "renew": 25, "again": 5, "clear": 5, "refused": 4, "older": 4, "take_over": 4,
    "quiet": 3,
}  # fmt: skip
LED_WEIGHTS = {"quiet": 60, "controller": 6, "cut": 6}
COMMAND_DRAWS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "apply": _apply,
    "renew": lambda rng: {"leads": rng.random() < 0.85, "back": rng.randrange(4)},
    "again": lambda rng: {"leads": rng.random() < 0.85},
    "clear": lambda rng: {
        "leads": rng.random() < 0.85, "gpus": rng.choice(([], rng.sample(NAMED, 2))),
        "job": rng.choice(("", "walk")),
    },
    "refused": _refused,
    "older": lambda rng: {**_apply(rng), "epoch": rng.choice((0, 1))},
    "take_over": lambda rng: {},
    "quiet": lambda rng: {"for_s": round(rng.uniform(0.2, 1.5), 2)},
    "controller": lambda rng: {"who": rng.choice(NAMES), "kill": rng.random() < 0.3,
                               "for_s": round(rng.uniform(0.5, 8.0), 2)},
    "cut": lambda rng: {"who": rng.choice(NAMES), "for_s": round(rng.uniform(0.5, 8.0), 2),
                        "lossy": rng.random() < 0.5},
}  # fmt: skip

# -- faults ---------------------------------------------------------------------------------------


def _gpu(rng: random.Random) -> dict[str, Any]:
    return {"gpu": rng.choice(NAMED), "for_s": round(rng.uniform(0.2, 3.0), 2)}


def _for(low_s: float, high_s: float) -> Callable[[random.Random], dict[str, Any]]:
    return lambda rng: {"for_s": round(rng.uniform(low_s, high_s), 2)}


def _process(*names: str) -> Callable[[random.Random], dict[str, Any]]:
    return lambda rng: {"what": rng.choice(names)}


def _late(rng: random.Random) -> dict[str, Any]:
    """A limit is late where nobody else sets one, who could not be told from the late one."""
    call = rng.choice(("lock", "limit"))
    return {
        "gpu": rng.choice(NAMED if call == "lock" else UNSHARED), "call": call,
        "late_s": round(rng.uniform(1.0, 6.0), 2), "hangs": rng.random() < 0.7,
    }  # fmt: skip


def _stop(rng: random.Random) -> dict[str, Any]:
    return {
        "what": rng.choice(("agent", "keeper", "writer", "reader")),
        "for_s": round(rng.uniform(0.2, 3.0), 2),
    }


FAULTS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    # the driver
    "hang": lambda rng: {**_gpu(rng), "call": rng.choice(CALLS)},
    "hang_several": lambda rng: {
        "gpus": rng.sample(NAMED, rng.randint(2, 6)), "call": rng.choice(list(SETTERS)),
        "for_s": round(rng.uniform(1.0, 4.0), 2),
    },
    "slow": lambda rng: {**_gpu(rng), "call": rng.choice(CALLS),
                         "delay_s": round(rng.uniform(0.02, 1.0), 2)},
    "late": _late,
    "lie": lambda rng: {"gpu": rng.choice(NAMED), "count": rng.randint(1, 2),
                        "call": rng.choice(("reset", "reset", "lock", "limit"))},
    "error": lambda rng: {**_gpu(rng), "call": rng.choice(CALLS), "code": rng.choice(CODES),
                          "probability": rng.choice((0.3, 1.0))},
    "lose": _gpu,
    "reload": lambda rng: {"for_s": rng.choice((0.0, round(rng.uniform(0.1, 2.0), 2)))},
    "whole_driver": _for(0.5, 3.0),
    "persistence": lambda rng: {"gpu": rng.choice(NAMED)},
    "xid": lambda rng: {"gpu": rng.choice(NAMED), "code": rng.choice(XIDS)},
    "ecc": lambda rng: {"gpu": rng.choice(NAMED), "double": rng.random() < 0.5},
    "mig": _gpu,
    "plug": lambda rng: {},
    "permission": _for(0.2, 2.0),
    "foreign_lock": lambda rng: {"gpu": rng.choice(SHARED),
                                 "for_s": round(rng.uniform(0.1, 5.0), 2),
                                 "clock_mhz": rng.choice((0, *SOME_CLOCKS))},
    "foreign_limit": lambda rng: {"gpu": rng.choice(SHARED),
                                  "watts": rng.choice(THEIR_WATTS)},
    "out_of_band": lambda rng: {**_gpu(rng), "watts": rng.choice(THEIR_WATTS)},
    "brake": _gpu,
    # processes
    "kill": _process("agent", "keeper", "writer", "reader"),
    "end": _process("agent", "keeper"),
    "stop": _stop,
    "out_of_memory": lambda rng: {},
    "restore": lambda rng: {},
    "release": _for(0.2, 1.5),
    # disk and descriptors
    "full_disk": _for(0.2, 3.0),
    "journal": lambda rng: {"how": rng.choice(("flip", "garbage")),
                            "at": rng.random()},
    "no_descriptors": lambda rng: {"what": rng.choice(("agent", "keeper")),
                                   "for_s": round(rng.uniform(0.2, 2.0), 2)},
    "stop_file": _for(0.2, 1.5),
    # network and time
    "partition": lambda rng: {"for_s": round(rng.uniform(0.2, 3.0), 2),
                              "lossy": rng.random() < 0.5},
    "half_open": _for(0.5, 3.0),
    "wall_clock": lambda rng: {"seconds": rng.choice((-1e9, -3600.0, -0.5, 0.5, 3600.0, 1e9))},
}  # fmt: skip

# A start of a Python process costs as much as fifty commands.
RARELY = {"kill": 0.3, "end": 0.15, "out_of_memory": 0.1, "restore": 0.1, "stop": 0.4,
          "journal": 0.15, "permission": 0.1, "no_descriptors": 0.3, "whole_driver": 0.3,
          "reload": 0.3, "release": 0.3, "plug": 0.1}  # fmt: skip


class Steps:
    """Takes steps on a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._rivals = [Commander(node, 1), Commander(node, 2)]  # the second one leads
        self._rules = 0
        self._newest: Settings = {0: (0, 1005, 0)}
        if not node.site.led:
            node.iterate(ITERATION_S)

    def take(self, step: Step) -> None:
        if step.arguments.get("gpu", 0) < self._node.shown:
            getattr(self, f"_{step.name}")(**step.arguments)
        time.sleep(step.pause_s)

    @property
    def accepted(self) -> int:
        return sum(rival.accepted for rival in self._rivals)

    def close(self) -> None:
        for rival in self._rivals:
            rival.close()

    # -- commands -------------------------------------------------------------------------------

    def _apply(self, leads: bool, settings: Settings, ttl_s: float, epoch: int = -1) -> None:
        """GPUs that are not plugged in yet are left out."""
        limits = {int(gpu): tuple(limits) for gpu, limits in settings.items()}
        self._newest = {gpu: one for gpu, one in limits.items() if gpu < self._node.shown}
        self._rivals[leads].apply(self._newest, ttl_s, epoch=epoch)

    _refused = _older = _apply

    def _again(self, leads: bool) -> None:
        self._rivals[leads].apply(self._newest, TTL_S, again=True)

    def _renew(self, leads: bool, back: int) -> None:
        self._rivals[leads].renew(TTL_S, back)

    def _clear(self, leads: bool, gpus: list[int], job: str) -> None:
        self._rivals[leads].clear(gpus, job)

    def _take_over(self) -> None:
        """The rival leads from now on; the other believes that it still does."""
        self._rivals.reverse()
        self._rivals[True].epoch = self._rivals[False].epoch + 1

    def _quiet(self, for_s: float) -> None:
        time.sleep(for_s)

    def _controller(self, who: str, kill: bool, for_s: float) -> None:
        """A controller is killed, or stopped for a while."""
        if kill:
            self._node.signal(who, signal.SIGKILL)
        else:
            self._stop(who, for_s)

    def _cut(self, who: str, for_s: float, lossy: bool) -> None:
        """The network between one controller and the agent."""
        if self._node.controllers is not None:
            cable = self._node.controllers.cables[who]
            cable.cut()
            self._node.after(for_s, lambda: cable.heal(lossy=lossy))

    # -- the driver -----------------------------------------------------------------------------

    def _rule(self, kind: str, gpu: int, for_s: float, function: str, **rule: Any) -> None:
        """A rule of the fake driver, for a while."""
        if self._rules >= RULES_MAX:
            return
        driver = self._node.driver
        number = driver.set_error(function, rule.pop("code", 0), gpu=gpu, **rule)
        self._rules += 1

        def withdraw() -> None:
            driver.withdraw(number)
            self._rules -= 1

        self._node.trouble(kind, gpu, for_s, withdraw)

    def _hang(self, gpu: int, for_s: float, call: str) -> None:
        self._rule("hang", gpu, for_s, call, delay_s=-1.0)

    def _hang_several(self, gpus: list[int], call: str, for_s: float) -> None:
        for gpu in gpus:
            self._rule("hang", gpu, for_s, SETTERS[call], delay_s=-1.0)

    def _slow(self, gpu: int, for_s: float, call: str, delay_s: float) -> None:
        self._rule("slow", gpu, for_s, call, delay_s=delay_s)

    def _late(self, gpu: int, call: str, late_s: float, hangs: bool) -> None:
        delay_s = -1.0 if hangs else 0.0
        self._rule("late", gpu, late_s, SETTERS[call], late_s=late_s, delay_s=delay_s, count=1)

    def _lie(self, gpu: int, count: int, call: str = "reset") -> None:
        self._rule("lie", gpu, 3.0, SETTERS[call], lies=True, count=count)

    def _error(self, gpu: int, for_s: float, call: str, code: int, probability: float) -> None:
        self._rule("error", gpu, for_s, call, code=code, probability=probability)

    def _lose(self, gpu: int, for_s: float) -> None:
        driver = self._node.driver
        driver.lose(gpu, xid=79)

        def found() -> None:
            self._node.log.add(driver.return_gpu(gpu), forgot=gpu)

        self._node.trouble("lost", gpu, for_s, found)

    def _reload(self, for_s: float) -> None:
        node = self._node
        if for_s:
            node.driver.unload_driver()

        def load() -> None:
            node.log.add(node.driver.reload_driver(), forgot=-1)

        node.trouble("unloaded", -1, for_s, load)

    def _whole_driver(self, for_s: float) -> None:
        self._rule("whole_driver", -1, for_s, "*", delay_s=-1.0)

    def _persistence(self, gpu: int) -> None:
        self._node.log.add(self._node.driver.lose_persistence(gpu), forgot=gpu)

    def _xid(self, gpu: int, code: int) -> None:
        self._node.driver.xid(gpu, code)

    def _ecc(self, gpu: int, double: bool) -> None:
        self._node.driver.event(gpu, DOUBLE_BIT_ECC if double else SINGLE_BIT_ECC)

    def _mig(self, gpu: int, for_s: float) -> None:
        node = self._node
        node.driver.set_mig(gpu, True)
        node.log.add(mig=True, gpu=gpu)

        def off() -> None:
            node.driver.set_mig(gpu, False)
            node.log.add(mig=False, gpu=gpu)

        node.after(for_s, off)

    def _plug(self) -> None:
        self._node.plug()

    def _permission(self, for_s: float) -> None:
        """A keeper that was denied once sets nothing until it is started again."""
        node = self._node
        node.driver.set_permission(False)

        def allow() -> None:
            node.driver.set_permission(True)
            node.signal("keeper", signal.SIGKILL)

        node.trouble("permission", -1, for_s, allow)

    def _foreign_lock(self, gpu: int, for_s: float, clock_mhz: int) -> None:
        """Another writer locks a GPU for a while; or resets it once."""
        node = self._node

        def reset() -> None:
            node.foreign.pop(gpu, None)
            node.driver.foreign_reset(gpu)

        if not clock_mhz:
            reset()
            return
        node.driver.foreign_lock(gpu, CLOCK_LOWEST_MHZ, clock_mhz)
        node.foreign[gpu] = (CLOCK_LOWEST_MHZ, clock_mhz)
        node.after(for_s, reset)

    def _foreign_limit(self, gpu: int, watts: int) -> None:
        self._node.foreign_w[gpu] = watts
        self._node.driver.foreign_limit(gpu, watts)

    def _out_of_band(self, gpu: int, for_s: float, watts: int) -> None:
        driver = self._node.driver
        driver.set_out_of_band_limit(gpu, watts)
        self._node.after(for_s, lambda: driver.set_out_of_band_limit(gpu, 0))

    def _brake(self, gpu: int, for_s: float) -> None:
        driver = self._node.driver
        driver.set_power_brake(gpu, True)
        self._node.after(for_s, lambda: driver.set_power_brake(gpu, False))

    # -- processes --------------------------------------------------------------------------------

    def _kill(self, what: str) -> None:
        self._node.signal(what, signal.SIGKILL)

    def _end(self, what: str) -> None:
        self._node.signal(what, signal.SIGTERM)

    def _stop(self, what: str, for_s: float) -> None:
        node = self._node
        pid = int(getattr(node, f"{what}_pid"))
        if node.signal(what, signal.SIGSTOP):
            node.after(for_s, lambda: node.goes_on(what, pid))

    def _out_of_memory(self) -> None:
        """As the kernel ends a cgroup: every process of the node at once."""
        node = self._node
        for what in ("writer", "keeper", "agent", "reader"):
            node.signal(what, signal.SIGKILL)

    def _restore(self) -> None:
        self._node.run("restore")

    def _release(self, for_s: float) -> None:
        self._rivals[0].release(for_s)
        self._node.log.add(keeper="released")

    # -- disk and descriptors -----------------------------------------------------------------

    def _full_disk(self, for_s: float) -> None:
        """No byte can be written to a file by the keeper."""
        self._limit("keeper", resource.RLIMIT_FSIZE, 0, for_s)

    def _no_descriptors(self, what: str, for_s: float) -> None:
        self._limit(what, resource.RLIMIT_NOFILE, 3, for_s)

    def _limit(self, what: str, which: int, soft: int, for_s: float) -> None:
        node = self._node
        pid = int(getattr(node, f"{what}_pid"))
        usual = resource.getrlimit(which)  # as this process has it, and its children at first

        def lift() -> None:
            with contextlib.suppress(OSError):  # it has ended
                resource.prlimit(pid, which, usual)

        if not pid or node.age_s(what) < IMPORTED_S:
            return
        with contextlib.suppress(OSError):
            resource.prlimit(pid, which, (soft, usual[1]))
        if what == "keeper" and which == resource.RLIMIT_NOFILE:
            node.trouble("descriptors", -1, for_s, lift)
        else:
            node.after(for_s, lift)

    def _journal(self, how: str, at: float) -> None:
        """A journal is damaged, and its keeper killed at that moment."""
        node = self._node
        journal = self._journal_path()
        node.signal("keeper", signal.SIGKILL)
        node.journal_was_lost = True
        node.log.add(journal="damaged")
        node.log.add(epochs="forgotten")
        with contextlib.suppress(OSError):
            raw = bytearray(journal.read_bytes())
            place = int(at * len(raw))
            if how == "garbage":
                journal.write_bytes(random.Random(at).randbytes(200))
            elif raw:
                raw[min(place, len(raw) - 1)] ^= 0x10
                journal.write_bytes(raw)

    def _journal_path(self) -> Path:
        node = self._node
        return (node.home / "memory" if node.site.journal_apart else node.state_dir) / "journal"

    def _stop_file(self, for_s: float) -> None:
        stop = self._node.state_dir / "stop"
        stop.touch()
        self._node.after(for_s, lambda: stop.unlink(missing_ok=True))

    # -- network and time ---------------------------------------------------------------------

    def _partition(self, for_s: float, lossy: bool) -> None:
        cable = self._node.cable
        cable.cut()
        self._node.after(for_s, lambda: cable.heal(lossy=lossy))

    def _half_open(self, for_s: float) -> None:
        """A dozen connections to the command socket that say nothing."""
        opened = []
        for _ in range(12):
            one = socket.socket(socket.AF_UNIX)
            with contextlib.suppress(OSError):
                one.connect(str(self._node.home / "agent.sock"))
            opened.append(one)

        def close() -> None:
            for one in opened:
                one.close()

        self._node.after(for_s, close)

    def _wall_clock(self, seconds: float) -> None:
        self._node.shift_wall_clock(seconds)
