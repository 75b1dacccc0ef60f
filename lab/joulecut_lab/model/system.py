"""One kind of cluster: rates, links, efficiencies, power.

Rates and limits are data-sheet numbers. The numbers named in `FITTED` are what a calibration may
change. Their defaults are for a card without measurements.
"""

from dataclasses import dataclass
from typing import Literal

FITTED = (
    "matrix_efficiency",
    "attention_efficiency",
    "hbm_efficiency",
    "memory_clock_share",
    "launch_s",
    "scale_up_efficiency",
    "scale_up_latency_s",
    "scale_out_efficiency",
    "tensor_overlap",
    "kernel_s",
    "idle_w",
    "waiting_w",
    "compute_pj_per_flop",
    "hbm_pj_per_bit",
    "scale_up_pj_per_bit",
    "scale_out_pj_per_bit",
)
KNEE_SHARE = 0.78  # of the highest clock: three A100 sweeps give 0.76 to 0.79


@dataclass(frozen=True, slots=True)
class System:
    """GPUs in nodes. GB/s of links are per GPU and direction, 1 GB = 1e9 bytes.

    Peaks are dense, in TFLOP/s at `clock_peak_mhz`; zero if the card lacks the type. The voltage
    is constant up to `knee_mhz`, then rises by `voltage_slope_per_ghz` of that per GHz; energy per
    operation follows its square. pJ figures hold at the knee, for 16-bit operations.
    """

    name: str
    gpus_per_node: int
    bf16_tflops: float
    hbm_gb_s: float
    hbm_bytes: float
    scale_up_gb_s: float
    scale_out_gb_s: float
    clock_max_mhz: float
    power_cap_w: float
    idle_w: float
    clock_peak_mhz: float = 0.0  # 0: clock_max_mhz
    processors: int = 108  # streaming multiprocessors: matrices are cut into tiles for them
    scale_up_size: int = 0  # GPUs that the fast links join; 0: gpus_per_node
    clock_min_mhz: float = 210.0
    fp32_tflops: float = 0.0
    fp8_tflops: float = 0.0
    fp4_tflops: float = 0.0
    tf32_tflops: float = 0.0
    int8_tops: float = 0.0
    host_gb_s: float = 25.0  # to host memory, for offload; PCIe 4.0 x16 delivers that
    knee_mhz: float = 0.0  # 0: KNEE_SHARE of clock_max_mhz
    voltage_slope_per_ghz: float = 0.76
    host_w: float = 0.0  # of one node without its GPUs: processors, memory, NICs, fans, supplies
    scale_up_pj_per_bit: float = 2.0
    scale_out_pj_per_bit: float = 25.0
    # Efficiencies: shares of the peak that large operations reach.
    matrix_efficiency: float = 0.78
    # A tile begins and ends in the time of this many 16-bit numbers of its inner dimension.
    tile_ends: float = 0.0
    attention_efficiency: float = 0.45  # of fused attention
    attention_kernel: Literal["", "flash2", "flash3", "cudnn"] = (
        ""  # that this stands for; "": all reach it alike
    )
    attention_backward: float = 1.0  # rate of its gradients over that of the forward
    attention_ends: float = 0.0  # a sequence begins and ends in the time of this many tokens
    hbm_efficiency: float = 0.57  # fits of A100 and B200 give 0.58 and 0.55
    scale_up_efficiency: float = 0.75
    scale_out_efficiency: float = 0.75
    scale_up_latency_s: float = 10e-6  # of one collective
    scale_out_latency_s: float = 25e-6
    kernel_s: float = 3e-6  # a kernel's own start and end on the GPU
    # The host's time per kernel that `work` counts, with Python around it; the GPU waits where this
    # is longer. A fit of iterations on 8 B200 gives 26 us, vTrain's of small models on A100 43 us.
    launch_s: float = 26e-6
    step_s: float = 1e-3  # once per iteration: data, norms, host
    # Of the time of memory-bound kernels that follows the SM clock, as caches and crossbar do; the
    # A100 sweep of the Perseus artifact (SOSP'24) gives about this, long copies give none.
    memory_clock_share: float = 0.5
    tensor_overlap: float = 1.0  # of backward collectives that may run beside weight gradients
    waiting_w: float = 0.0  # of a GPU in a collective; 0: 0.22 of power_cap_w
    compute_pj_per_flop: float = 0.0  # at the knee; 0: see `power`
    hbm_pj_per_bit: float = 5.0

    @property
    def knee_clock_mhz(self) -> float:
        return self.knee_mhz or KNEE_SHARE * self.clock_max_mhz

    @property
    def domain(self) -> int:
        return self.scale_up_size or self.gpus_per_node

    @property
    def peak_clock_mhz(self) -> float:
        return self.clock_peak_mhz or self.clock_max_mhz

    def tflops(self, dtype: str) -> float:
        """Dense peak of a number type; that of 16 bits if the card lacks the type."""
        peaks = {"fp32": self.fp32_tflops, "fp8": self.fp8_tflops, "fp4": self.fp4_tflops}
        return peaks.get(dtype, 0.0) or self.bf16_tflops
