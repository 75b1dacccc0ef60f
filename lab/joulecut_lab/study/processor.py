"""A processor on the bench: torch runs the layers on all cores, and Linux shows its sensors.

Energy is that of RAPL (powercap) over all packages: root may read it, and most virtual machines
have none. The clock is set by others (`cpupower frequency-set`); a row names the highest one that
was allowed while it was measured.
"""

from pathlib import Path

from joulecut_agent.ports.failure import DeviceError
from joulecut_lab.study.bench import Clocks, Machine, NoClocks
from joulecut_lab.study.torch_bench import TorchWorker, WorkedBench, torch_module
from joulecut_wire.errors import Unavailable
from joulecut_wire.messages import GpuSnapshot

ROOT = Path("/")
MHZ_PER_KHZ = 1e-3


class Sensors:
    """Joules since the start, and the mean clock of all cores. Raises DeviceError."""

    def __init__(self, root: Path) -> None:
        self._cores = root / "sys/devices/system/cpu"
        self._info = root / "proc/cpuinfo"
        domains = (root / "sys/class/powercap").glob("intel-rapl:*")  # of AMD as well
        self._packages = [one for one in domains if _text(one / "name").startswith("package")]
        if not self._packages:
            raise DeviceError("unsupported", "no energy counter (RAPL) in /sys/class/powercap")
        self._last_uj = {one: _number(one / "energy_uj") for one in self._packages}
        self._energy_j = 0.0

    def __call__(self) -> GpuSnapshot:
        for package, last_uj in self._last_uj.items():
            now_uj = _number(package / "energy_uj")
            wrapped = now_uj < last_uj
            over_uj = _number(package / "max_energy_range_uj") if wrapped else 0.0
            self._energy_j += (now_uj - last_uj + over_uj) * 1e-6
            self._last_uj[package] = now_uj
        shown = self._khz("scaling_cur_freq")
        clocks_mhz = [MHZ_PER_KHZ * one for one in shown] or list(map(float, self._said("cpu MHz")))
        mean_mhz = round(sum(clocks_mhz) / len(clocks_mhz)) if clocks_mhz else None
        return GpuSnapshot("", energy_j=self._energy_j, clock_sm_mhz=mean_mhz)

    @property
    def name(self) -> str:
        return next(iter(self._said("model name")), "processor")

    def allowed_mhz(self) -> int:
        """The highest clock of all cores that is allowed; 0 where the kernel does not say."""
        return round(MHZ_PER_KHZ * max(self._khz("scaling_max_freq"), default=0.0))

    def _khz(self, file: str) -> list[float]:
        return [_number(one) for one in self._cores.glob(f"cpu[0-9]*/cpufreq/{file}")]

    def _said(self, key: str) -> list[str]:
        pairs = (line.partition(":") for line in _text(self._info).splitlines())
        return [value.strip() for name, _, value in pairs if name.strip() == key]


class AllowedClock:
    """The clock that others allow: the only choice, and it must stay."""

    def __init__(self, sensors: Sensors) -> None:
        self._sensors, self._mhz = sensors, sensors.allowed_mhz()

    def choices_mhz(self) -> tuple[int, ...]:
        return (self._mhz,)

    def ask(self, clock_mhz: int) -> None:
        assert clock_mhz == self._mhz

    def check(self) -> None:
        if (now_mhz := self._sensors.allowed_mhz()) != self._mhz:
            raise Unavailable(f"the highest clock went from {self._mhz} to {now_mhz} MHz")

    def close(self) -> None: ...


def open_processor() -> tuple[WorkedBench, Clocks]:
    """Raises Unavailable where torch or an energy counter is missing."""
    torch = torch_module()
    try:
        sensors = Sensors(ROOT)
    except DeviceError as error:
        raise Unavailable(f"this processor cannot be measured: {error}") from None
    worker, allowed_mhz = TorchWorker(torch, "cpu"), sensors.allowed_mhz()
    clocks_mhz = (allowed_mhz,) if allowed_mhz else ()
    machine = Machine("measured", sensors.name, "", "", clocks_mhz, worker.dtypes)
    return WorkedBench(machine, worker, sensors), AllowedClock(
        sensors
    ) if allowed_mhz else NoClocks()


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise DeviceError("unreadable", f"{path}: {error.strerror}") from None


def _number(path: Path) -> float:
    return float(_text(path))
