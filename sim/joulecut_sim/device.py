"""The device back end `simulated`, with the interface and quirks of a real card.

Registered under the entry-point group `joulecut.devices`; the agent loads it by name, so
no import runs from agent to simulator. Standard library only: an agent stays light.
"""

import random
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from joulecut_agent.ports.failure import DeviceError, Gone, NotPermitted, Unsupported
from joulecut_agent.ports.reader import Burst, DeviceReader, Reading, ignore_step
from joulecut_agent.ports.writer import DeviceWriter
from joulecut_sim.card import CARDS_MAX, StateFile
from joulecut_sim.physics import Card, clock_mhz, power_limit_w, power_shown_w, work_at
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import GpuDescription, GpuSnapshot
from joulecut_wire.quantity import Fault, choice, number, text, whole

# A set call takes 10-20 ms in NVML, and the clock follows some tens of milliseconds later
# (arXiv 2502.20075 measures a wide spread by target clock).
SET_LATENCY_S = 0.05
LATENCY_S_MAX = 10.0
SAMPLE_STEP_S, SAMPLES_MAX = 0.02, 128  # the fastest power samples of a driver, and its buffer

_TEXT, _LATENCY = text(4096, "text"), number(0.0, LATENCY_S_MAX, unit="seconds")
_OPTIONS: dict[str, Callable[[object], object]] = {
    "state": _TEXT,
    "cards": whole(1, CARDS_MAX),
    "sku": _TEXT,
    "node": _TEXT,
    "set_latency_s": _LATENCY,
    "set_latency_spread_s": _LATENCY,
    "permission": choice("full", "none"),
}


class SimulatedReader:
    """Reads the cards of a state file."""

    def __init__(self, state: StateFile) -> None:
        self._state = state
        self._seen_s: dict[int, float] = {}  # the newest sample returned of each GPU

    def describe(
        self,
        leave_out: Collection[int] = (),  # noqa: ARG002 -- a file does not hang
        step: Callable[[int], None] = ignore_step,  # noqa: ARG002
    ) -> tuple[GpuDescription, ...]:
        state, sku = self._state, self._state.sku
        return tuple(
            GpuDescription(
                uuid=state.uuid(index),
                index=index,
                model=sku.model,
                clocks_mhz=sku.clocks_mhz,
                power_limit_default_w=sku.power_limit_w,
                power_limit_min_w=sku.power_limit_min_w,
                power_limit_max_w=sku.power_limit_max_w,
                controllable=not state.card(index).mig,
                reason="MIG is on" if state.card(index).mig else "",
                energy_scope="gpu",  # the simulated counter's, whatever the card
            )
            for index in range(state.cards)
        )

    def read(
        self,
        leave_out: Collection[int] = (),
        step: Callable[[int], None] = ignore_step,  # noqa: ARG002
    ) -> tuple[Reading, ...]:
        wanted = (index for index in range(self._state.cards) if index not in leave_out)
        return tuple(map(self._read, wanted))

    def burst(self, index: int) -> Burst:
        """Power, utilisation and clock each SAMPLE_STEP_S; these cards have no links to count."""
        state, sku = self._state, self._state.sku
        card, moment_s = state.now(index)
        if card.lost:
            raise Gone("gpu_is_lost", f"GPU {index} fell off the bus")
        unix_s = time.time() - moment_s
        newest = int(moment_s / SAMPLE_STEP_S)
        seen = round(self._seen_s.get(index, 0.0) / SAMPLE_STEP_S)
        steps = range(max(seen, newest - SAMPLES_MAX) + 1, newest + 1)
        times_s = [step * SAMPLE_STEP_S for step in steps]
        self._seen_s[index] = newest * SAMPLE_STEP_S
        return Burst(
            power_w=tuple((unix_s + at, power_shown_w(sku, card, at)) for at in times_s),
            utilization_ratio=tuple((unix_s + at, _busy_ratio(card, at)) for at in times_s),
            clock_sm_mhz=tuple((unix_s + at, float(clock_mhz(sku, card, at))) for at in times_s),
        )

    def _read(self, index: int) -> Reading:
        began, taken_at_s = time.perf_counter(), time.monotonic()
        state, sku = self._state, self._state.sku
        uuid = state.uuid(index)
        card, moment_s = state.now(index)
        if card.lost:
            return Reading(uuid, None, Gone("gpu_is_lost", f"GPU {index} fell off the bus"))
        busy = _busy_ratio(card, moment_s)
        clock = clock_mhz(sku, card, moment_s)
        snapshot = GpuSnapshot(
            uuid=uuid,
            power_average_w=card.average_w,
            power_instant_w=power_shown_w(sku, card, moment_s),
            energy_j=card.latched_j,
            clock_sm_mhz=clock,
            clock_memory_mhz=sku.clock_memory_mhz,
            temperature_celsius=round(card.temperature_celsius),  # the sensor has whole degrees
            utilization_gpu_ratio=busy,
            utilization_memory_ratio=0.5 * busy,  # assumed: half of it moves data
            memory_used_bytes=card.memory_used_bytes,
            power_limit_enforced_w=power_limit_w(sku, card),
            event_reasons=_reasons(state, index, clock, busy, moment_s),
        )
        cost = (("read", time.perf_counter() - began),)
        return Reading(uuid, snapshot, None, cost, taken_at_s)

    def close(self) -> None:
        self._state.close()


def _busy_ratio(card: Card, when_s: float) -> float:
    work = work_at(card, when_s)
    return work.utilization if work else min(1.0, card.load_ratio)


def _reasons(
    state: StateFile, index: int, clock: int, busy: float, moment_s: float
) -> tuple[str, ...]:
    if busy <= 0.0:
        return ("idle",)
    _, high = state.lock_mhz(index, moment_s)
    return ("sw_power_cap",) if clock < (high or state.sku.clock_max_mhz) else ()


class SimulatedWriter:
    """Locks clocks in a state file; `permission: none` acts as a process without rights."""

    def __init__(
        self, state: StateFile, latency_s: float, permitted: bool, spread_s: float = 0.0
    ) -> None:
        """`spread_s`: between the fastest and the slowest change, around `latency_s`."""
        self._state = state
        self._latencies_s = (max(0.0, latency_s - spread_s / 2.0), latency_s + spread_s / 2.0)
        self._dice = random.Random()
        self._permitted = permitted

    def permission(self) -> str:
        return "" if self._permitted else "the simulated driver gives no right to set clocks"

    def uuids(self) -> tuple[str, ...]:
        return tuple(map(self._state.uuid, range(self._state.cards)))

    def clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        return () if self._state.index(uuid) is None else self._state.sku.clocks_mhz

    def uncontrollable(self, uuid: str) -> str:
        index = self._state.index(uuid)
        if index is None:
            return f"no GPU {uuid} on this node"
        return "MIG is on" if self._state.card(index).mig else ""

    def lock(self, uuid: str, clock_min_mhz: int, clock_max_mhz: int) -> None:
        index = self._usable(uuid)
        if reason := self.uncontrollable(uuid):  # may have changed since `describe`
            raise Unsupported("not_supported", f"{uuid}: {reason}")
        clocks = self._state.sku.clocks_mhz
        low = clock_min_mhz or clocks[0]
        if low not in clocks or clock_max_mhz not in clocks or low > clock_max_mhz:
            raise Unsupported(
                "invalid_argument", f"clocks {clock_min_mhz}-{clock_max_mhz} MHz on GPU {index}"
            )
        self._state.set_lock(index, low, clock_max_mhz, self._dice.uniform(*self._latencies_s))

    def reset(self, uuid: str) -> None:
        latency_s = self._dice.uniform(*self._latencies_s)
        self._state.set_lock(self._usable(uuid), 0, 0, latency_s)

    def power_limits_mw(self, uuid: str) -> tuple[int, int, int]:
        index, sku = self._usable(uuid), self._state.sku
        limits_w = (sku.power_limit_min_w, sku.power_limit_max_w)
        now_w = power_limit_w(sku, self._state.card(index))
        return round(limits_w[0] * 1000), round(limits_w[1] * 1000), round(now_w * 1000)

    def reading(self, uuid: str) -> tuple[int, float, tuple[str, ...]]:
        index = self._usable(uuid)
        card, moment_s = self._state.now(index)
        clock, busy = clock_mhz(self._state.sku, card, moment_s), _busy_ratio(card, moment_s)
        return clock, busy, _reasons(self._state, index, clock, busy, moment_s)

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        low_mw, high_mw, _ = self.power_limits_mw(uuid)
        if not low_mw <= limit_mw <= high_mw:
            raise Unsupported("invalid_argument", f"{limit_mw / 1000:g} W on GPU {uuid}")
        self._state.set_power_limit(self._usable(uuid), limit_mw)

    def close(self) -> None:
        self._state.close()

    def _usable(self, uuid: str) -> int:
        if not self._permitted:
            raise NotPermitted("no_permission", self.permission())
        index = self._state.index(uuid)
        if index is None:
            raise Unsupported("not_found", f"no GPU {uuid} on this node")
        if self._state.card(index).lost:
            raise Gone("gpu_is_lost", f"GPU {index} fell off the bus")
        return index


class SimulatedBackend:
    """`simulated: {state, cards, sku, node, set_latency_s, ...}`, all optional: see `_OPTIONS`."""

    def open_reader(self, options: dict[str, Any], state_dir: str) -> DeviceReader:
        _check(options)
        return SimulatedReader(_state(options, state_dir))

    def open_writer(self, options: dict[str, Any], state_dir: str) -> DeviceWriter:
        _check(options)
        return SimulatedWriter(
            _state(options, state_dir),
            options.get("set_latency_s", SET_LATENCY_S),
            options.get("permission", "full") == "full",
            options.get("set_latency_spread_s", 0.0),
        )


def _check(options: Mapping[str, object]) -> None:
    """Raises BadInput."""
    for key, value in options.items():
        if key not in _OPTIONS:
            raise BadInput(f"simulated.{key}", "unknown key", ", ".join(_OPTIONS))
        try:
            _OPTIONS[key](value)
        except Fault as fault:
            raise BadInput(f"simulated.{key}", fault.what, fault.allowed) from None


def _state(options: dict[str, Any], state_dir: str) -> StateFile:
    path = Path(options.get("state") or "gpus.state")
    try:
        return StateFile.open(
            Path(state_dir) / path,
            cards=options.get("cards"),
            sku=options.get("sku", ""),
            node=options.get("node", ""),
        )
    except OSError as error:
        raise DeviceError("state_file", f"{path}: {error.strerror or error}") from None


backend = SimulatedBackend()
