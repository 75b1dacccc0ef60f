"""Files of `joulecut model trace`: Chakra, ASTRA-sim, Perfetto, and the calibrated system.

ASTRA-sim reads a system and a network configuration beside one Chakra trace per rank; its source
has no word of energy, so power by component lies beside them in a file of its own.
"""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joulecut_cli import outfile, timeline
from joulecut_lab.model.system import System
from joulecut_lab.model_command.calibrating import system_yaml
from joulecut_lab.trace import chakra
from joulecut_lab.trace.chakra import Value
from joulecut_lab.trace.energy import between_w, limited_w
from joulecut_lab.trace.kernels import NETWORK, Kernel, Recording
from joulecut_lab.trace.rates import Measured, calibrated
from joulecut_lab.trace.shown import AtClock
from joulecut_wire.errors import BadInput

NS = 1e9

Costs = dict[str, Value]


def check(options: Namespace) -> None:
    """Every output, before anything is read. Raises BadInput."""
    for flag, folder in (("--chakra", options.chakra), ("--astra-sim", options.astra_sim)):
        try:
            if folder is not None:
                Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"{folder}: {error.strerror}"
            raise BadInput(flag, what, "a folder that can be made") from None
    timeline.target(options.perfetto, "--perfetto")
    if options.calibrated is not None:
        if Path(options.calibrated).suffix != ".yaml":
            what = f'"{options.calibrated}" is no .yaml file'
            raise BadInput("--calibrated", what, "a name in .yaml")
        outfile.checked("--calibrated", Path(options.calibrated))


def write(
    options: Namespace,
    recordings: Sequence[Recording],
    last: AtClock,
    system: System | None,
    card: Measured | None,
) -> None:
    """What the flags ask for, at one clock. Raises BadInput."""
    if options.chakra is not None:
        _chakra("--chakra", Path(options.chakra), recordings, last, system)
    if options.astra_sim is not None:
        _chakra("--astra-sim", Path(options.astra_sim), recordings, last, system)
        _astra_sim(Path(options.astra_sim), len(recordings), system, last.clock_mhz)
    if options.perfetto is not None:
        events = perfetto(recordings, last, system)
        timeline.write(Path(options.perfetto), events, {}, "--perfetto")
    if options.calibrated is not None and system is not None and card is not None:
        notes = [f"{key}: measured by {n} kernels of a trace" for key, n in card.kernels.items()]
        text = system_yaml(calibrated(system, card), notes)
        outfile.write("--calibrated", Path(options.calibrated), text)


def _costs(kernel: Kernel, seconds: float, clock_mhz: int | None, system: System | None) -> Costs:
    """Clock, power and energy of a kernel, as far as they are known."""
    if clock_mhz is None:
        return {}
    if system is None:
        return {"clock_mhz": clock_mhz}
    watts = limited_w(system, kernel.kind, clock_mhz)
    return {"clock_mhz": clock_mhz, "power_w": watts, "energy_j": watts * seconds}


def _chakra(
    flag: str, folder: Path, recordings: Sequence[Recording], one: AtClock, system: System | None
) -> None:
    """`trace.RANK.et`, as ASTRA-sim and the Chakra tools expect."""
    for recording, played in zip(recordings, one.played, strict=True):
        extra = [
            _costs(kernel, duration_s, one.clock_mhz, system)
            for kernel, duration_s in zip(recording.kernels, played.duration_s, strict=True)
        ]
        raw = chakra.written(recording, played.start_s, played.duration_s, extra)
        outfile.write(flag, folder / f"trace.{recording.rank}.et", raw)


def _astra_sim(folder: Path, ranks: int, system: System | None, clock_mhz: int | None) -> None:
    """`system.json`, `network.yml`, `remote_memory.json`, and power beside them."""
    inside = min(ranks, system.domain if system else ranks)
    outside = max(1, ranks // inside)
    dimensions = [("Switch", inside, system.scale_up_gb_s if system else 100.0,
                   system.scale_up_latency_s if system else 1e-6)]  # fmt: skip
    if outside > 1 and system is not None:
        dimensions.append(
            ("Ring", outside, system.scale_out_gb_s, system.scale_out_latency_s)
        )  # fmt: skip
    names, counts, rates, latencies = zip(*dimensions, strict=True)
    network = {
        "topology": list(names),
        "npus_count": list(counts),
        "bandwidth": [float(rate) for rate in rates],
        "latency": [latency * NS for latency in latencies],
    }
    text = "\n".join(f"{key}: {json.dumps(given)}" for key, given in network.items())
    files = {"network.yml": text}
    flops = system.bf16_tflops if system else 100.0
    described = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 4,
        "all-reduce-implementation": ["ring"] * len(dimensions),
        "all-gather-implementation": ["ring"] * len(dimensions),
        "reduce-scatter-implementation": ["ring"] * len(dimensions),
        "all-to-all-implementation": ["ring"] * len(dimensions),
        "collective-optimization": "localBWAware",
        "local-mem-bw": system.hbm_gb_s if system else 1600.0,
        "peak-perf": flops,
        "roofline-enabled": 0,  # kernels carry their durations
    }
    files["system.json"] = json.dumps(described, indent=1)
    files["remote_memory.json"] = '{"memory-type": "NO_MEMORY_EXPANSION"}'
    if system is not None and clock_mhz is not None:
        files["power.json"] = json.dumps(component_power(system, clock_mhz), indent=1)
    for name, content in files.items():
        outfile.write("--astra-sim", folder / name, content + "\n")


def component_power(system: System, clock_mhz: int) -> dict[str, Any]:
    """Watts and energies that a network simulator lacks."""
    return {
        "system": system.name,
        "clock_mhz": clock_mhz,
        "gpu_w": {
            "compute": limited_w(system, "matmul", clock_mhz),
            "memory": limited_w(system, "pointwise", clock_mhz),
            "network": limited_w(system, "all-reduce", clock_mhz),
            "waiting": between_w(system, clock_mhz),
            "idle": system.idle_w,
        },
        "scale_up_pj_per_bit": system.scale_up_pj_per_bit,
        "scale_out_pj_per_bit": system.scale_out_pj_per_bit,
        "host_w_per_node": system.host_w,
        "gpus_per_node": system.gpus_per_node,
    }


def perfetto(
    recordings: Sequence[Recording], one: AtClock, system: System | None
) -> list[timeline.Event]:
    """Trace events: a process per rank, a track per stream."""
    events: list[timeline.Event] = []
    for recording, played in zip(recordings, one.played, strict=True):
        rank = recording.rank
        events.append(timeline.process(rank, f"rank {rank}"))
        streams = sorted({(k.device, k.stream) for k in recording.kernels})
        tracks = {lane: i for i, lane in enumerate(streams)}
        for (device, stream), track in tracks.items():
            events += timeline.track(rank, track, f"GPU {device} stream {stream}")
        for kernel, start_s, duration_s in zip(
            recording.kernels, played.start_s, played.duration_s, strict=True
        ):
            args = {"clock_mhz": None, **_costs(kernel, duration_s, one.clock_mhz, system)}
            if kernel.collective is not None and kernel.kind in NETWORK:
                args["bytes"] = kernel.collective.size_bytes
            where = (rank, tracks[kernel.device, kernel.stream])
            what = (kernel.name, kernel.kind)
            events.append(timeline.stretch(where, what, start_s, duration_s, **args))
    return events
