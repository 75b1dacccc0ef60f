"""A real card on the bench: torch runs the layers and the agent's back end reads the sensors.

torch is loaded by name and only on request, so everything else works without it; the same layers
run on a CPU. A worker keeps the card's queue filled while it is measured, since a card that waits
for this process would be measured idle. Nothing here sets a clock.
"""

import importlib
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from joulecut_agent.devices import load
from joulecut_agent.ports.failure import DeviceError
from joulecut_lab.study.bench import Done, Machine, Reading
from joulecut_lab.study.cell import Cell
from joulecut_sim.layer import Dtype
from joulecut_wire.errors import Unavailable, not_installed
from joulecut_wire.messages import GpuDescription, GpuSnapshot

POLL_S = 0.002  # how often finished work is looked for while waiting
QUEUED = 3  # batches of passes in the card's queue: it never waits for us
BATCH_S = 0.02  # how long one is meant to take: a fifth of a counter step
BATCH_PASSES_MAX = 1024
SETUP_PASSES = 3  # let libraries choose their kernels before anything counts
STUCK_S = 120.0  # a pass of the largest layer takes seconds even on a slow card
LIMITS = ("sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")


class Worker(Protocol):
    """What runs passes, one after another, in the background."""

    dtypes: tuple[Dtype, ...]

    def prepare(self, cell: Cell) -> str:
        """Builds the layer; why it cannot run here, or empty."""
        ...

    def start(self, passes: int) -> Callable[[], bool]:
        """Queues so many passes; the returned function tests whether they are done."""
        ...

    def close(self) -> None: ...


Sensors = Callable[[], GpuSnapshot]  # one reading of the card; raises DeviceError


class WorkedBench:
    """A Bench from a worker and a card's sensors, in real time."""

    def __init__(
        self,
        machine: Machine,
        worker: Worker,
        sensors: Sensors,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.machine = machine
        self._worker = worker
        self._sensors = sensors
        self._now_s = now_s
        self._sleep = sleep
        self._queue: deque[tuple[Callable[[], bool], int, float]] = deque()
        self._batch = 1
        self._done = Done(0, 0.0)

    def prepare(self, cell: Cell) -> str:
        self._drain()
        if reason := self._worker.prepare(cell):
            return reason
        self._await(self._worker.start(SETUP_PASSES))
        self._batch = self._size_batches()
        self._done = Done(0, self._now_s())
        return ""

    def work(self, seconds: float) -> Done:
        until_s = self._now_s() + seconds
        while True:
            while len(self._queue) < QUEUED:
                self._queue.append((self._worker.start(self._batch), self._batch, self._now_s()))
            while self._queue and self._queue[0][0]():
                _, passes, _ = self._queue.popleft()
                self._done = Done(self._done.passes + passes, self._now_s())
            if self._now_s() >= until_s:
                return self._done
            if self._queue and self._now_s() - self._queue[0][2] > STUCK_S:
                raise Unavailable(f"the card has not finished a pass within {STUCK_S:g} s")
            self._sleep(POLL_S)

    def now_s(self) -> float:
        return self._now_s()

    def read(self) -> Reading:
        try:
            seen = self._sensors()
        except DeviceError as error:
            raise Unavailable(f"the card cannot be read: {error}") from None
        if seen.energy_j is None or seen.clock_sm_mhz is None:
            raise Unavailable("this card has no energy counter or shows no clock (before Volta?)")
        return Reading(
            energy_j=seen.energy_j,
            clock_mhz=float(seen.clock_sm_mhz),
            temperature_celsius=seen.temperature_celsius,
            capped=any(reason in LIMITS for reason in seen.event_reasons),
        )

    def causes_j(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._drain()
        self._worker.close()

    def _drain(self) -> None:
        while self._queue:
            self._await(self._queue.popleft()[0])

    def _await(self, finished: Callable[[], bool]) -> None:
        since_s = self._now_s()
        while not finished():
            if self._now_s() - since_s > STUCK_S:
                raise Unavailable(f"the card has not finished a pass within {STUCK_S:g} s")
            self._sleep(POLL_S)

    def _size_batches(self) -> int:
        """Passes that take about `BATCH_S`: doubled until they do."""
        passes = 1
        while passes < BATCH_PASSES_MAX:
            began_s = self._now_s()
            self._await(self._worker.start(passes))
            took_s = self._now_s() - began_s
            if took_s >= BATCH_S:
                return max(1, int(passes * BATCH_S / took_s))
            passes *= 2
        return BATCH_PASSES_MAX


class TorchWorker:
    """Decoder layers in torch, on a CUDA device or (for trying things) on the CPU."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._device = torch.device(device)
        self._step: Callable[[], None] | None = None
        cuda = self._device.type == "cuda"
        major, _ = torch.cuda.get_device_capability(self._device) if cuda else (0, 0)
        self.dtypes = _dtypes(major) if cuda else ("fp32", "bf16")

    def prepare(self, cell: Cell) -> str:
        self._step = None
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()
        try:
            self._step = _layer(self._torch, self._device, cell)
            self._step()
            self._finish()
        except (self._torch.OutOfMemoryError, MemoryError):
            self._step = None
            return "does not fit the card's memory"
        return ""

    def start(self, passes: int) -> Callable[[], bool]:
        assert self._step is not None
        for _ in range(passes):
            self._step()
        if self._device.type != "cuda":
            return lambda: True
        event = self._torch.cuda.Event()
        event.record()
        finished: Callable[[], bool] = event.query
        return finished

    def _finish(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)

    def close(self) -> None:
        self._step = None


def _dtypes(major: int) -> tuple[Dtype, ...]:
    """By compute capability: tf32 and bf16 from Ampere (8.0)."""
    return ("fp32", "tf32", "fp16", "bf16") if major >= 8 else ("fp32", "fp16")


def _layer(torch: Any, device: Any, cell: Cell) -> Callable[[], None]:
    """A function that queues one pass of the layer."""
    shape, training = cell.layer, cell.which == "training"
    wide = {"fp16": torch.float16, "bf16": torch.bfloat16}
    kind = wide.get(cell.dtype, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = cell.dtype == "tf32"
    torch.manual_seed(0)

    def weight(rows: int, columns: int) -> Any:
        values = torch.randn(rows, columns, device=device, dtype=kind) * columns**-0.5
        return values.requires_grad_(training)

    d, inner, heads = shape.d_model, shape.d_ffn, shape.heads
    qkv, out, up, down = weight(3 * d, d), weight(d, d), weight(inner, d), weight(d, inner)
    x = torch.randn(shape.batch, shape.sequence, d, device=device, dtype=kind)
    x.requires_grad_(training)
    upstream = torch.ones_like(x)
    functional = torch.nn.functional
    product = functional.linear
    learnt = [qkv, out, up, down, x]

    def forward() -> Any:
        mixed = product(functional.layer_norm(x, (d,)), qkv)
        parts = mixed.view(shape.batch, shape.sequence, 3, heads, d // heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        flat = seen.transpose(1, 2).reshape(shape.batch, shape.sequence, d)
        middle = x + product(flat, out)
        grown = functional.gelu(product(functional.layer_norm(middle, (d,)), up))
        return middle + product(grown, down)

    def step() -> None:
        if not training:
            with torch.no_grad():
                forward()
            return
        for one in learnt:
            one.grad = None
        forward().backward(upstream)

    return step


_VERSION = Path("/proc/driver/nvidia/version")


def torch_module() -> Any:
    """Raises Unavailable where torch is not installed."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError:
        raise not_installed("torch is not installed", "study", lab=True) from None


def open_bench(gpu: int) -> WorkedBench:
    """The CUDA device of that number. Raises Unavailable where there is none to measure."""
    torch = torch_module()
    if not torch.cuda.is_available():
        raise Unavailable("torch finds no CUDA device here")
    if gpu >= torch.cuda.device_count():
        raise Unavailable(f"no CUDA device {gpu}; there are {torch.cuda.device_count()}")
    try:
        reader = load("nvml").open_reader({}, ".")
        cards = reader.describe()
    except DeviceError as error:
        raise Unavailable(f"the driver cannot be read: {error}") from None
    said = str(getattr(torch.cuda.get_device_properties(gpu), "uuid", ""))
    card = _same(cards, said)
    if card is None:
        raise Unavailable(f"NVML lists no card with the UUID of CUDA device {gpu}")

    def sensors() -> GpuSnapshot:
        for reading in reader.read():
            if reading.uuid == card.uuid and reading.snapshot is not None:
                return reading.snapshot
            if reading.uuid == card.uuid and reading.error is not None:
                raise reading.error
        raise DeviceError("not_found", f"{card.uuid} is gone")

    torch.cuda.set_device(gpu)
    worker = TorchWorker(torch, f"cuda:{gpu}")
    machine = Machine("measured", card.model, card.uuid, _driver(), card.clocks_mhz, worker.dtypes)
    return WorkedBench(machine, worker, sensors)


def _same(cards: tuple[GpuDescription, ...], said: str) -> GpuDescription | None:
    """The card of a CUDA device; where torch has no UUID, the only card."""
    if not said:
        return cards[0] if len(cards) == 1 else None
    return next((card for card in cards if card.uuid.removeprefix("GPU-") == said), None)


def _driver() -> str:
    """The kernel module's version, empty where it does not show ("NVRM version: ... 550.54")."""
    try:
        words = _VERSION.read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return ""
    return next((word for word in words if word[0].isdigit() and "." in word), "")
