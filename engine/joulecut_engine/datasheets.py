"""Facts of accelerators: what makers print and drivers list, each with its source.

They stand here once, for the catalogue, the estimators, the simulator and the fake NVML library.
How power follows the clock is no fact of a data sheet: each of these has its own physics. NVIDIA's
clocks, limits and MiB without another source are those of captures of `nvidia-smi -q` (2025, 2026).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataSheet:
    """One board. Clocks in MHz, limits (lowest, default, highest) in watts, memory in GB (1e9) as
    printed, in MiB as a driver lists it (0: as printed), and in GB/s, dense peaks in TFLOP/s or
    TOP/s (0: none). `model` is the driver's name. `sources` pairs fields with their source; what it
    says is assumed is no fact.
    """

    name: str
    model: str
    clocks: tuple[int, int, float]  # lowest, highest, step
    memory_mhz: int
    limits_w: tuple[float, float, float]
    memory_gb: float
    memory_gb_s: float
    processors: int
    bf16_tflops: float
    fp32_tflops: float
    tf32_tflops: float = 0.0
    fp8_tflops: float = 0.0
    fp4_tflops: float = 0.0
    int8_tops: float = 0.0
    memory_mib: int = 0
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """As a driver lists them, ascending: steps of half a megahertz are cut off."""
        low, high, step = self.clocks
        return tuple(int(low + step * n) for n in range(int((high + 0.5 - low) / step) + 1))

    @property
    def memory_bytes(self) -> float:
        """What a job can have at most."""
        return self.memory_mib * float(1 << 20) or self.memory_gb * 1e9

    @property
    def limit_w(self) -> float:
        return self.limits_w[1]


_LEAST = ("limits_w", "data sheet; the lowest is assumed")
_BLACKWELL_CLOCKS = ("clocks", "the highest as the driver lists it; lowest and step as on a B300")
_B300 = "a B300 under driver 610 (gpu-power-lab, 2026)"

SHEETS: dict[str, DataSheet] = {
    sheet.name: sheet
    for sheet in (
        DataSheet(
            "v100-pcie", "Tesla V100-PCIE-16GB", (135, 1380, 7.5), 877, (100.0, 250.0, 250.0),
            16.0, 900.0, 80, 112.0, 14.0,
            memory_mib=16384,
            sources=(("all", "NVIDIA V100 data sheet, 2020; bf16_tflops of 16-bit floats"),
                     ("clocks memory_mhz", "a driver's list: 167 clocks, shown as 7 or 8 apart"),
                     _LEAST),
        ),
        DataSheet(
            "a30", "NVIDIA A30", (210, 1440, 15.0), 1215, (100.0, 165.0, 165.0),
            24.0, 933.0, 56, 165.0, 10.3, 82.0,
            int8_tops=330.0,
            memory_mib=24576,
            sources=(("all", "NVIDIA A30 data sheet, 2022"), _LEAST),
        ),
        DataSheet(
            "a40", "NVIDIA A40", (210, 1740, 15.0), 7251, (100.0, 300.0, 300.0),
            48.0, 696.0, 84, 149.7, 37.4, 74.8,
            int8_tops=299.3,
            memory_mib=46068,
            sources=(("all", "NVIDIA A40 data sheet, 2022: 14.5 Gb/s GDDR6"),
                     ("limits_w", "nvidia-smi -q of an A40 (nvidia-docker issue 1447, 2021)")),
        ),
        DataSheet(
            "a100-sxm", "NVIDIA A100-SXM4-80GB", (210, 1410, 15.0), 1593, (100.0, 400.0, 400.0),
            80.0, 2039.0, 108, 312.0, 19.5, 156.0,
            int8_tops=624.0,
            memory_mib=81920,
            sources=(("all", "NVIDIA A100 data sheet, 2021, 80 GB part"), _LEAST),
        ),
        DataSheet(
            "h100-sxm", "NVIDIA H100 80GB HBM3", (345, 1980, 15.0), 2619, (200.0, 700.0, 700.0),
            80.0, 3350.0, 132, 989.4, 66.9, 494.7, 1978.9,
            int8_tops=1978.9,
            memory_mib=81559,
            sources=(("all", "NVIDIA H100 data sheet, 2023, SXM"),
                     ("clocks memory_mhz limits_w", "nvidia-smi -q, driver 590, 2026")),
        ),
        DataSheet(
            "h200", "NVIDIA H200", (345, 1980, 15.0), 3201, (200.0, 700.0, 700.0),
            141.0, 4800.0, 132, 989.4, 66.9, 494.7, 1978.9,
            int8_tops=1978.9,
            memory_mib=143771,
            sources=(("all", "NVIDIA H200 data sheet, 2024"),
                     ("clocks memory_mhz limits_w", "nvidia-smi -q, driver 590, 2026")),
        ),
        DataSheet(
            "gh200", "NVIDIA GH200 480GB", (345, 1980, 15.0), 2619, (100.0, 900.0, 900.0),
            96.0, 4000.0, 132, 989.4, 66.9, 494.7, 1978.9,
            int8_tops=1978.9,
            sources=(("all", "NVIDIA GH200 data sheet, 2024, HBM3 part; clocks as H100"), _LEAST),
        ),
        DataSheet(
            "b200", "NVIDIA B200", (120, 1965, 15.0), 3996, (200.0, 1000.0, 1000.0),
            180.0, 8000.0, 148, 2250.0, 80.0, 1100.0, 4500.0, 9000.0,
            int8_tops=4500.0,
            memory_mib=183359,
            sources=(("all", "NVIDIA Blackwell architecture brief, 2024; DGX B200 data sheet"),
                     ("memory_mhz", "nvidia-smi of a B200 (pytorch/ao pull request 4002, 2026)"),
                     _BLACKWELL_CLOCKS, _LEAST),
        ),
        DataSheet(
            "b300", "NVIDIA B300", (120, 2032, 7.5), 3996, (200.0, 1100.0, 1100.0),
            268.0, 8000.0, 148, 2250.0, 80.0, 1100.0, 4500.0, 13500.0,
            memory_mib=275040,
            sources=(("all", "NVIDIA HGX B300 data sheet, 2025; peaks below fp4 as B200"),
                     ("clocks memory_mhz", _B300), _LEAST),
        ),
        DataSheet(
            "gb200", "NVIDIA GB200", (120, 2062, 7.5), 3996, (200.0, 1200.0, 1200.0),
            186.0, 8000.0, 152, 2500.0, 80.0, 1250.0, 5000.0, 10000.0,
            int8_tops=5000.0,
            memory_mib=189471,
            sources=(("all", "NVIDIA GB200 NVL72 data sheet, 2024, divided by 72"),
                     ("clocks", "the highest of a tray (k8s-test-infra, 2026); step as on a B300"),
                     ("memory_mhz", "assumed: as B200"), _LEAST),
        ),
        DataSheet(
            "mi300x", "AMD Instinct MI300X", (132, 2100, 12.0), 1300, (200.0, 750.0, 750.0),
            192.0, 5300.0, 304, 1307.4, 163.4, 653.7, 2614.9,
            int8_tops=2614.9,
            memory_mib=196592,
            sources=(("all", "AMD Instinct MI300X data sheet, 2023; processors: compute units"),
                     ("clocks memory_mhz", "highest: data sheet; lowest, step, memory: assumed"),
                     _LEAST),
        ),
    )
}  # fmt: skip
