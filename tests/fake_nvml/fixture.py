"""A node of fake GPUs for tests: what it shows, and what can be done to it.

`pythonpath = ["tests/fake_nvml"]` in the pytest options lets any test say

    from fixture import FakeNvml

    def test_a_daemon(fake_nvml: FakeNvml) -> None:
        fake_nvml.set_load(0, 1.0)
        process = subprocess.Popen([...], env=fake_nvml.environment())
        ...
        assert fake_nvml.locks()[0] == (210, 1005)

where the folder's conftest.py has `from fake_node import fake_nvml` (8 A100, a state of each test's
own); or make a `FakeNvml(tmp_path / "gpus.state", gpus=4, model="a40")` in the test itself.
NVML is loaded once
a process, so a client of the fake is a child process with `environment()`.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import layout
from fake_library import CompilerMissing, build

__all__ = ["Call", "CompilerMissing", "FakeNvml", "Write", "build"]

FOREVER = -1
EVERY_GPU = -1
XID_CRITICAL_ERROR = 0x8  # event types, nvml.h
MIG_CONFIG_CHANGE = 0x100


PROLOGUE = """
import json, sys, time
import pynvml as n

def code(function, *arguments):
    try:
        function(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0

n.nvmlInit()
"""
_EPILOGUE = "\nprint(json.dumps(answer))\n"


@dataclass(frozen=True)
class Write:
    """One setter call, as the library recorded it. `code` is NVML's answer."""

    at_s: float
    pid: int
    gpu: int
    function: str
    arguments: tuple[int, int]
    code: int
    done: bool = True  # whether the GPU was changed by it
    command: str = ""  # of the caller; "" for a write of this process
    begun_s: float = 0.0  # when it was called; it may have hung until `at_s`


@dataclass(frozen=True)
class Call:
    """One call of any kind. `gpu` is -1 where it named none."""

    at_s: float
    pid: int
    gpu: int
    function: str
    code: int


class _Faults:
    """Making calls fail and stall, and GPUs and drivers come and go."""

    _shared: layout.Shared
    _library: ctypes.CDLL
    uuids: tuple[str, ...]

    @contextlib.contextmanager
    def _look(self) -> Iterator[layout.State]:
        """The state, with everything done that was due by now."""
        with self._shared.turn() as state:
            self._library.fake_catch_up(ctypes.byref(state), _now_ns(state))
            yield state

    def _change(self, gpu: int, **values: Any) -> None:
        """Sets fields of a GPU, having let its counters catch up under the old ones."""
        with self._look() as state:
            for name, value in values.items():
                setattr(_gpu(state, gpu), name, value)

    def name_gpus(self, node: int) -> None:
        """UUIDs that no other node of this number has; before any process opens the driver."""
        self.uuids = tuple(layout.uuid_of(100 * node + gpu) for gpu in range(len(self.uuids)))
        for gpu, uuid in enumerate(self.uuids):
            self._change(gpu, uuid=uuid.encode())

    def set_error(
        self,
        function: str,
        code: int,
        *,
        gpu: int = EVERY_GPU,
        skip: int = 0,
        count: int = FOREVER,
        delay_s: float = 0.0,
        probability: float = 1.0,
        seed: int = 0,
        late_s: float = -1.0,
        lies: bool = False,
    ) -> int:
        """Makes a C function (or "field:186", or "*" for all) answer `code` after `skip` good
        calls, `count` times, each time with this probability. `delay_s` stalls the call first;
        a negative one hangs it. Code 0 only stalls. The number of the rule, for `withdraw`.

        For setters of clocks and limits, which then answer "success": with `late_s` the driver
        does what was asked that much later, even if the caller is dead by then; with `lies` never.
        """
        if not 0.0 <= probability <= 1.0:
            raise ValueError(f"probability {probability}: 0 to 1")
        delay_ms = -1 if delay_s < 0 else round(delay_s * 1000)
        with self._shared.turn() as state:
            free = next((hook for hook in state.hooks if not hook.function), None)
            if free is None:
                raise ValueError(f"all {layout.HOOKS_MAX} hooks are in use")
            state.hooks_total += 1
            free.id, free.hits = state.hooks_total, 0
            free.gpu, free.code, free.skip, free.count = gpu, code, skip, count
            free.delay_ms, free.probability, free.random = delay_ms, probability, seed
            free.late_ms, free.lies = -1 if late_s < 0 else round(late_s * 1000), int(lies)
            free.function = function.encode()  # last: now it is in force
            return int(free.id)

    def withdraw(self, rule: int) -> None:
        """Removes one rule; the calls that hang by it return."""
        with self._look() as state:
            for hook in state.hooks:
                if hook.id == rule:
                    hook.function = b""

    def hang(self, function: str, *, gpu: int = EVERY_GPU, skip: int = 0, count: int = 1) -> None:
        """Makes calls that never return, until `clear_errors()` or until they are killed."""
        self.set_error(function, 0, gpu=gpu, skip=skip, count=count, delay_s=-1)

    def hits(self, function: str) -> int:
        """How often the rules that are set for a function struck."""
        with self._shared.turn() as state:
            wanted = function.encode()
            return sum(hook.hits for hook in state.hooks if hook.function == wanted)

    def clear_errors(self) -> None:
        """No rule left, hung calls return, lost GPUs are there again as they were."""
        with self._look() as state:
            for hook in state.hooks:
                hook.function = b""
            for gpu in state.gpus[: state.gpu_count]:
                gpu.lost = 0

    def lose(self, gpu: int, xid: int = 0) -> None:
        """The GPU falls off the bus: each call about it answers GPU_IS_LOST."""
        self._change(gpu, lost=1)
        if xid:
            self.xid(gpu, xid)

    def return_gpu(self, gpu: int) -> float:
        """It is back, as after a reset: settings default, counters zero, old handles void.

        Like all that makes the driver forget settings it returns when, in monotonic time.
        """
        with self._look() as state:
            returned = _gpu(state, gpu)
            returned.attached += 1
            layout.load_driver(returned, _now_ns(state))
            returned.lost = 0
            return time.monotonic()

    def show_gpus(self, count: int) -> None:
        """As if only the first `count` GPUs were plugged in; the others are there once shown."""
        with self._look() as state:
            if not 0 <= count <= len(self.uuids):
                raise ValueError(f"{count} GPUs: this node has {len(self.uuids)}")
            state.gpu_count = count

    def xid(self, gpu: int, code: int) -> None:
        self.event(gpu, XID_CRITICAL_ERROR, code)

    def event(self, gpu: int, kind: int, data: int = 0) -> None:
        """Delivered once to each event set that has registered for this kind."""
        with self._shared.turn() as state:
            _gpu(state, gpu)
            state.events[state.events_total % layout.EVENTS_MAX] = layout.Event(kind, data, gpu)
            state.events_total += 1

    def reload_driver(self, *, upgraded: bool = False) -> float:
        """Locks and limits default, energy zero. Who had it open must open it again; after an
        upgrade only a process that has not yet loaded the library can.
        """
        with self._look() as state:
            state.driver_loaded, state.driver_loads = 1, state.driver_loads + 1
            state.driver_version += upgraded
            for gpu in state.gpus[: state.gpu_count]:
                layout.load_driver(gpu, _now_ns(state))
            return time.monotonic()

    def unload_driver(self) -> None:
        """From now on calls answer DRIVER_NOT_LOADED, until `load_driver()`."""
        with self._look() as state:
            state.driver_loaded = 0

    def load_driver(self) -> None:
        self.reload_driver()

    def lose_persistence(self, gpu: int) -> float:
        """Persistence mode off, and with it what was set; counters stay."""
        with self._look() as state:
            self._library.physics_forget(ctypes.byref(_gpu(state, gpu)), _now_ns(state))
            _gpu(state, gpu).persistence = 0
            return time.monotonic()

    def set_permission(self, allowed: bool | None) -> None:
        """True: everybody may write; False: nobody; None: who has CAP_SYS_ADMIN."""
        with self._shared.turn() as state:
            state.permission = {True: 0, False: 1, None: 2}[allowed]


class _Others(_Faults):
    """What others do to the GPUs: other writers, the site, the board's management controller."""

    def foreign_lock(self, gpu: int, min_mhz: int, max_mhz: int) -> None:
        """Somebody else locks the clocks; recorded as a write of this process."""
        self._foreign(gpu, "nvmlDeviceSetGpuLockedClocks", min_mhz, max_mhz)

    def foreign_reset(self, gpu: int) -> None:
        self._foreign(gpu, "nvmlDeviceResetGpuLockedClocks", 0, 0)

    def foreign_limit(self, gpu: int, watts: float) -> None:
        self._foreign(gpu, "nvmlDeviceSetPowerManagementLimit", int(watts * 1000), 0)

    def _foreign(self, gpu: int, function: str, first: int, second: int) -> None:
        with self._look() as state:
            changed, now_ns = _gpu(state, gpu), _now_ns(state)
            if function == "nvmlDeviceSetPowerManagementLimit":
                changed.limit_mw = _limit_mw(changed, first / 1000)
            else:
                lock = layout.ClockLock(_clock(changed, first), _clock(changed, second))
                self._library.physics_lock(ctypes.byref(changed), lock, now_ns)
            self._library.record_write(
                ctypes.byref(state),
                now_ns,
                os.getpid(),
                gpu,
                function.encode(),
                first,
                second,
                0,
                1,
            )

    def set_foreign_writer(
        self,
        gpu: int,
        *,
        clock_mhz: int = 0,
        limit_w: float = 0.0,
        every_s: float = 1.0,
        times: int = FOREVER,
    ) -> None:
        """Somebody who puts his own clock and limit back every so often, `times` times at most;
        recorded with pid 1. Neither clock nor limit: he goes away.
        """
        if every_s <= 0:
            raise ValueError(f"every {every_s} s: more than 0")
        with self._look() as state:
            bound = _gpu(state, gpu)
            every_ns = int(every_s * 1e9) if clock_mhz or limit_w else 0
            limit_mw = _limit_mw(bound, limit_w) if limit_w else 0
            bound.foreign = layout.ForeignWriter(
                every_ns, _now_ns(state) + every_ns, times, _clock(bound, clock_mhz), limit_mw
            )

    def set_site_lock(self, gpu: int, max_mhz: int) -> None:
        """Locked before anybody looked: in force at once, without record or reason."""
        with self._look() as state:
            changed = _gpu(state, gpu)
            lock = layout.ClockLock(changed.clocks_mhz[0], _clock(changed, max_mhz))
            changed.lock, changed.lock_before, changed.lock_at_ns = lock, lock, 0

    def set_out_of_band_limit(self, gpu: int, watts: float) -> None:
        """A limit from the management controller; 0 takes it away."""
        self._change(gpu, limit_out_of_band_mw=int(_positive("limit", watts) * 1000))

    def set_clock_ceiling(self, gpu: int, mhz: int) -> None:
        """Clocks above it are accepted and not reached, for no reason told; 0 takes it away."""
        self._change(gpu, clock_ceiling_mhz=int(_positive("clock", mhz)))

    def set_profiles(self, gpu: int, requested: tuple[int, ...], enforced: tuple[int, ...]) -> None:
        """Workload power profiles by number, as somebody else set them."""
        masks = [sum(1 << number for number in numbers) for numbers in (requested, enforced)]
        self._change(gpu, profiles_requested=masks[0], profiles_enforced=masks[1])

    def set_counter(self, gpu: int, *, step_s: float = 0.1, beside_w: float = 0.0) -> None:
        """How often the energy counter moves, and what it counts that is not the GPU's: a lie,
        since no power of a module answers.
        """
        step_ns = int(_positive("step", step_s) * 1e9)
        self._change(
            gpu, counter_step_ns=step_ns, module_w=beside_w, counts_module=int(beside_w > 0.0)
        )

    def set_unreached_clocks(self, gpu: int, clocks_mhz: tuple[int, ...]) -> None:
        """A lie: the card lists these clocks, and a lock at one gives a lower one."""
        with self._look() as state:
            changed = _gpu(state, gpu)
            listed = changed.clocks_mhz[: changed.clock_count]
            masks = [0] * len(changed.unreached)
            for mhz in clocks_mhz:
                place = listed.index(_clock(changed, mhz))
                masks[place // 32] |= 1 << place % 32
            changed.unreached[:] = masks

    def set_uuids_renumber(self, on: bool) -> None:
        """A lie: each session of NVML finds the UUIDs at other indices."""
        with self._look() as state:
            state.renumbers = int(on)

    def set_ecc_change_pending(self, gpu: int, on: bool) -> None:
        """ECC is to be off from the next reset on."""
        self._change(gpu, ecc_changes=int(on))

    def set_driver_version(self, major: int) -> None:
        """Before any client opens the driver."""
        with self._shared.turn() as state:
            state.driver_version = major

    def set_ambient(self, gpu: int, celsius: float) -> None:
        """The air it is cooled with; busy boards throttle in hot air."""
        self._change(gpu, ambient_celsius=celsius)

    def set_power_brake(self, gpu: int, on: bool) -> None:
        """The external power brake: half the clock."""
        self._change(gpu, power_brake=int(on))


class FakeNvml(_Others):
    """A node of fake GPUs: a state file, and the library that shows it to NVML's clients.

    Makes a fresh state; with `gpus=None` takes up the one that is there. Raises CompilerMissing.
    """

    def __init__(self, path: Path, gpus: int | None = 8, model: str = "a100") -> None:
        self.library_dir = build()
        self.path = path
        if gpus is not None:
            layout.create(path, gpus, layout.MODELS[model])
        self._shared = layout.Shared(path)
        with self._shared.turn() as state:
            self.uuids = tuple(gpu.uuid.decode() for gpu in state.gpus[: state.gpu_count])
        # The library's own physics, on our mapping: a change must not rewrite the past.
        self._library = ctypes.CDLL(str(self.library_dir / "libnvidia-ml.so.1"))
        whole, one, number = ctypes.POINTER(layout.State), ctypes.POINTER(layout.Gpu), ctypes.c_uint
        now_ns = ctypes.c_uint64
        self._library.fake_catch_up.argtypes = [whole, now_ns]
        self._library.physics_forget.argtypes = [one, now_ns]
        self._library.physics_lock.argtypes = [one, layout.ClockLock, now_ns]
        self._library.record_write.argtypes = [
            whole, now_ns, number, ctypes.c_int, ctypes.c_char_p, number, number, ctypes.c_int,
            ctypes.c_int,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """This process's environment, plus what makes a child load the fake."""
        found = os.environ.get("LD_LIBRARY_PATH", "")
        return {
            **os.environ,
            "LD_LIBRARY_PATH": f"{self.library_dir}:{found}" if found else str(self.library_dir),
            "JOULECUT_FAKE_NVML_STATE": str(self.path),
        }

    def ask(self, script: str) -> Any:
        """Runs a script in a child where `n` is pynvml, initialised; what it left in `answer`.

        `code(f, *args)` there is the number of the NVMLError that f raises, or 0.
        """
        done = subprocess.run(
            [sys.executable, "-c", PROLOGUE + script + _EPILOGUE],
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def set_load(self, gpu: int, ratio: float) -> None:
        """How busy a GPU is, 0 to 1; from now on."""
        if not 0.0 <= ratio <= 1.0:
            raise ValueError(f"load {ratio}: 0 to 1")
        self._change(gpu, load=ratio)

    def set_memory_used(self, gpu: int, used_bytes: int) -> None:
        self._change(gpu, memory_used_bytes=int(_positive("memory", used_bytes)))

    def set_processes(self, gpu: int, used_bytes: Mapping[int, int]) -> None:
        """Who computes there, by pid; those that have died are not listed."""
        if len(used_bytes) > layout.PROCESSES_MAX:
            raise ValueError(f"{len(used_bytes)} processes: at most {layout.PROCESSES_MAX}")
        with self._look() as state:
            listed = [layout.GpuProcess(pid, 0, used) for pid, used in used_bytes.items()]
            empty = [layout.GpuProcess()] * (layout.PROCESSES_MAX - len(listed))
            _gpu(state, gpu).processes[:] = listed + empty

    def set_ecc_errors(self, gpu: int, corrected: int, uncorrected: int) -> None:
        """Since the driver was loaded, and of the card's life."""
        errors = ((corrected, corrected), (uncorrected, uncorrected))
        with self._look() as state:
            for counts, (recent, ever) in zip(_gpu(state, gpu).ecc_errors, errors, strict=True):
                counts[:] = (recent, ever)

    def set_nvlink_errors(
        self, gpu: int, *, crc_flit: int = 0, crc_data: int = 0, replay: int = 0, recovery: int = 0
    ) -> None:
        with self._look() as state:
            _gpu(state, gpu).nvlink_errors[:] = (crc_flit, crc_data, replay, recovery)

    def set_traffic(
        self,
        gpu: int,
        *,
        nvlink_tx: float = 0.0,
        nvlink_rx: float = 0.0,
        pcie_tx: float = 0.0,
        pcie_rx: float = 0.0,
    ) -> None:
        """Bytes per second, from now on."""
        self._change(
            gpu,
            nvlink_tx_bytes_per_s=nvlink_tx,
            nvlink_rx_bytes_per_s=nvlink_rx,
            pcie_tx_bytes_per_s=pcie_tx,
            pcie_rx_bytes_per_s=pcie_rx,
        )

    def set_mig(self, gpu: int, enabled: bool) -> None:
        """Switches MIG at run time; clients are told by an event."""
        self._change(gpu, mig_enabled=int(enabled), mig_pending=int(enabled))
        self.event(gpu, MIG_CONFIG_CHANGE)

    def set_latency(self, gpu: int, seconds: float) -> None:
        """How long after a lock is accepted the clock follows."""
        self._change(gpu, set_latency_ns=int(_positive("latency", seconds) * 1e9))

    def advance(self, seconds: float) -> None:
        """Lets time pass for the GPUs without waiting for it."""
        with self._shared.turn() as state:
            state.clock_skew_ns += int(seconds * 1e9)

    def locks(self) -> tuple[tuple[int, int] | None, ...]:
        """Each GPU's locked range in MHz as last written; None where it is not locked."""
        with self._look() as state:
            return tuple(_range(gpu.lock) for gpu in state.gpus[: state.gpu_count])

    def limits_w(self) -> tuple[float, ...]:
        """Each GPU's power limit as last written, whatever is enforced."""
        with self._look() as state:
            return tuple(gpu.limit_mw / 1000 for gpu in state.gpus[: state.gpu_count])

    def energies_j(self) -> tuple[float, ...]:
        """What each GPU has used since its driver was loaded, exactly, ahead of its counter."""
        with self._look() as state:
            gpus = state.gpus[: state.gpu_count]
            return tuple(gpu.motion[gpu.motion_now].energy_mj / 1000 for gpu in gpus)

    def clients(self) -> tuple[int, ...]:
        """The processes that have NVML open now."""
        with self._look() as state:
            return tuple(sorted(client.pid for client in state.clients if client.pid))

    def writes(self) -> tuple[Write, ...]:
        """Every setter call so far, oldest first, refused ones too."""
        with self._look() as state:
            if state.writes_total > layout.WRITES_MAX:
                raise ValueError(f"more than {layout.WRITES_MAX} writes: the first ones are lost")
            return tuple(_write(record) for record in state.writes[: state.writes_total])

    def writes_since(self, seen: int) -> tuple[tuple[Write, ...], int]:
        """The setter calls after the first `seen` ones, and how many there are now."""
        with self._look() as state:
            total = int(state.writes_total)
            if total - seen > layout.WRITES_MAX:
                raise ValueError(
                    f"more than {layout.WRITES_MAX} writes since {seen}: some are lost"
                )
            places = [number % layout.WRITES_MAX for number in range(seen, total)]
            return tuple(_write(state.writes[place]) for place in places), total

    def writes_seen(self) -> int:
        """How many setter calls there were, at a glance: without a turn at the state, for who
        measures how long it takes others to get one.
        """
        return int(self._shared.glance().writes_total)

    def written_s(self, place: int) -> float:
        """When (monotonic) the setter call at this place was recorded; at a glance, too."""
        return float(self._shared.glance().writes[place].at_ns / 1e9)

    def forget_writes(self) -> None:
        """Starts the record of writes anew."""
        with self._look() as state:
            state.writes_total = 0

    def calls_total(self) -> int:
        """How many calls there have been, of any kind; for telling that there was none."""
        with self._shared.turn() as state:
            return int(state.calls_total)

    def calls(self) -> tuple[Call, ...]:
        """The last calls of any kind, oldest first; init, queries and shutdown too."""
        with self._shared.turn() as state:
            total = state.calls_total
            kept = range(max(0, total - layout.CALLS_MAX), total)
            records = [state.calls[number % layout.CALLS_MAX] for number in kept]
            return tuple(
                Call(r.at_ns / 1e9, r.pid, r.gpu, r.function.decode(), r.code) for r in records
            )


def _write(record: layout.WriteRecord) -> Write:
    return Write(
        record.at_ns / 1e9,
        record.pid,
        record.gpu,
        record.function.decode(),
        (record.arguments[0], record.arguments[1]),
        record.code,
        bool(record.done),
        record.command.decode(errors="replace"),
        record.begun_ns / 1e9,
    )


def _now_ns(state: layout.State) -> int:
    return time.monotonic_ns() + int(state.clock_skew_ns)


def _gpu(state: layout.State, index: int) -> layout.Gpu:
    if not 0 <= index < state.gpu_count:
        raise ValueError(f"GPU {index}: this node has {state.gpu_count}")
    return state.gpus[index]


def _clock(gpu: layout.Gpu, mhz: int) -> int:
    """A clock of its list, or 0. Raises ValueError."""
    clocks_mhz = gpu.clocks_mhz[: gpu.clock_count]
    if mhz and mhz not in clocks_mhz:
        step = f"{clocks_mhz[0]}, {clocks_mhz[1]} ... {clocks_mhz[-1]}"
        raise ValueError(f"{mhz} MHz: this card has {step}")
    return mhz


def _limit_mw(gpu: layout.Gpu, watts: float) -> int:
    low_w, high_w = gpu.limit_min_mw / 1000, gpu.limit_max_mw / 1000
    if not low_w <= watts <= high_w:
        raise ValueError(f"{watts:g} W: this card allows {low_w:g} to {high_w:g}")
    return int(watts * 1000)


def _positive(what: str, number: float) -> float:
    if not number >= 0:
        raise ValueError(f"{what} {number:g}: 0 or more")
    return number


def _range(lock: layout.ClockLock) -> tuple[int, int] | None:
    return (lock.min_mhz, lock.max_mhz) if lock.max_mhz else None
