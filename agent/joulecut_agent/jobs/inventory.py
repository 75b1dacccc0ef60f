"""GPUs by the names that schedulers use: UUID, slice, index, minor or MIG instance.

A name that fits no GPU of this node is unknown; there is no guess.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from joulecut_wire.messages import GpuDescription

MIG_OLD = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/\d+/\d+")  # drivers before 470
DRA_DEVICE = re.compile(r"gpu-(\d+)(-mig-.*)?")  # NVIDIA's driver names devices by minor
INFORMATION_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs of this node by each kind of name; `mig` maps an instance to its board."""

    by_index: Mapping[int, str]
    mig: Mapping[str, str] = field(default_factory=dict)
    by_minor: Mapping[int, str] = field(default_factory=dict)

    def device(self, name: str) -> tuple[str, bool] | None:
        """(UUID, whether it is a slice) of a device plugin's id; None if unknown."""
        plain, sliced, _ = name.partition("::")
        if plain.startswith("MIG-"):
            old = MIG_OLD.fullmatch(plain)
            uuid = old[1] if old else self.mig.get(plain, "")
            return (uuid, True) if uuid in self.uuids else None
        if plain.isascii() and plain.isdigit() and len(plain) < 6:
            plain = self.by_index.get(int(plain), "")
        return (plain, bool(sliced)) if plain in self.uuids else None

    def claimed(self, driver: str, device: str, cdi: Iterable[str]) -> tuple[str, bool] | None:
        """As `device`, of one result of a resource claim: its CDI names first, then its own."""
        for name in cdi:
            kind, _, value = name.partition("=")
            if kind in {"nvidia.com/gpu", "nvidia.com/mig"} and (found := self.device(value)):
                return found
        match = DRA_DEVICE.fullmatch(device)
        if driver == "gpu.nvidia.com" and match is not None and len(match[1]) < 6:
            uuid = self.by_minor.get(int(match[1]), "")
            return (uuid, bool(match[2])) if uuid in self.uuids else None
        return None

    def ordinal(self, name: str) -> tuple[str, bool] | None:
        """As `device`, of a mapping file's name: a minor, since Slurm counts device files, an index
        where minors are not known, a UUID, and for a slice `N.INSTANCE` or `N-INSTANCE`.
        """
        match = re.fullmatch(r"(\d{1,5})(?:[.-](\d{1,5}))?", name, re.ASCII)
        if match is None:
            return None if "." in name else self.device(name)
        uuid = self.by_number.get(int(match[1]), "")
        return (uuid, match[2] is not None) if uuid in self.uuids else None

    @property
    def by_number(self) -> Mapping[int, str]:
        """The GPUs as Slurm counts them."""
        minors_known = self.uuids <= set(self.by_minor.values())
        return self.by_minor if minors_known else self.by_index

    @property
    def uuids(self) -> frozenset[str]:
        return frozenset(self.by_index.values())


def of(gpus: Iterable[GpuDescription], mig: Mapping[str, str], proc: Path) -> Inventory:
    return Inventory({gpu.index: gpu.uuid for gpu in gpus}, mig, minors(proc))


def minors(proc: Path) -> dict[int, str]:
    """UUID by device minor, as the driver lists them in `/proc/driver/nvidia/gpus`."""
    found: dict[int, str] = {}
    for card in proc.glob("driver/nvidia/gpus/*/information"):
        with contextlib.suppress(OSError), card.open("rb") as file:
            lines = file.read(INFORMATION_BYTES_MAX).decode(errors="replace").splitlines()
            pairs = (line.partition(":") for line in lines)
            words = {key.strip(): value.strip() for key, _, value in pairs}
            minor = words.get("Device Minor", "")
            if minor.isascii() and minor.isdigit() and len(minor) < 6:
                found[int(minor)] = words.get("GPU UUID", "")
    return found
