"""A real card on the bench: torch runs the layers, the agent's back end reads the card, and
nothing sets its clock.

The one place of the study that looks for torch, and only when asked: it is loaded by name,
so that everything else works without it.
"""

import importlib
from pathlib import Path
from typing import Any

from joulecut_agent.devices import load
from joulecut_agent.ports.failure import DeviceError
from joulecut_lab.study.bench import Machine
from joulecut_lab.study.torch_worker import TorchWorker
from joulecut_lab.study.worked_bench import WorkedBench
from joulecut_wire.errors import Unavailable
from joulecut_wire.messages import GpuDescription, GpuSnapshot

_VERSION = Path("/proc/driver/nvidia/version")


def torch_module() -> Any:
    """Raises Unavailable where torch is not installed."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError:
        raise Unavailable("torch is not installed: pip install 'joulecut[study]'") from None


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
    """The card of a CUDA device; where torch does not tell its UUID, the only one there is."""
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
