"""Files of `joulecut model trace`: Chakra, ASTRA-sim, Perfetto, and the calibrated system.

ASTRA-sim reads a system and a network configuration beside one Chakra trace per rank; its source
has no word of energy, so power by component lies beside them in a file of its own.
"""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecut_cli.model.systemfile import write as write_system
from joulecut_cli.outfile import checked, replacing
from joulecut_cli.trace import chakra
from joulecut_cli.trace.chakra_wire import Value
from joulecut_cli.trace.energy import between_w, limited_w
from joulecut_cli.trace.kernels import NETWORK, Recording
from joulecut_cli.trace.rates import Measured, calibrated
from joulecut_cli.trace.shown import AtClock
from joulecut_engine.model.system import System
from joulecut_wire.errors import BadInput

MICRO = 1e6
NS = 1e9


@dataclass(frozen=True, slots=True)
class Targets:
    """Paths of the flags that were given."""

    chakra: Path | None
    astra_sim: Path | None
    perfetto: Path | None
    calibrated: Path | None


def targets(options: Namespace) -> Targets:
    """Checked before anything is read. Raises BadInput."""
    for flag in ("chakra", "astra_sim"):
        folder = getattr(options, flag)
        if folder is not None:
            _folder(f"--{flag.replace('_', '-')}", Path(folder))
    files = {}
    for flag, suffix in (("perfetto", ".json"), ("calibrated", ".yaml")):
        word = getattr(options, flag)
        if word is not None and Path(word).suffix != suffix:
            raise BadInput(f"--{flag}", f'"{word}" is no {suffix} file', f"a name in {suffix}")
        files[flag] = None if word is None else checked(f"--{flag}", Path(word))
    return Targets(
        None if options.chakra is None else Path(options.chakra),
        None if options.astra_sim is None else Path(options.astra_sim),
        files["perfetto"],
        files["calibrated"],
    )


def _folder(flag: str, path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(flag, f"{path}: {error.strerror}", "a folder that can be made") from None


def write(
    where: Targets,
    recordings: Sequence[Recording],
    found: Sequence[AtClock],
    system: System | None,
    card: Measured | None,
) -> None:
    """The newest clock of `found` is what is written. Raises BadInput."""
    last = found[-1]
    try:
        if where.chakra is not None:
            _chakra(where.chakra, recordings, last, system)
        if where.astra_sim is not None:
            _chakra(where.astra_sim, recordings, last, system)
            _astra_sim(where.astra_sim, len(recordings), system, last.clock_mhz)
        if where.perfetto is not None:
            with replacing(where.perfetto) as spare:
                spare.write_text(json.dumps(perfetto(recordings, last, system)) + "\n")
    except OSError as error:
        what = f"{error.filename}: {error.strerror}"
        raise BadInput("output", what, "a writable place") from None
    if where.calibrated is not None and system is not None and card is not None:
        notes = [f"{key}: measured by {n} kernels of a trace" for key, n in card.kernels.items()]
        write_system("--calibrated", where.calibrated, calibrated(system, card), notes)


def _chakra(
    folder: Path, recordings: Sequence[Recording], one: AtClock, system: System | None
) -> None:
    """`trace.RANK.et`, as ASTRA-sim and the Chakra tools expect."""
    for recording, played in zip(recordings, one.played, strict=True):
        extra: list[Mapping[str, Value]] = []
        for kernel, duration_s in zip(recording.kernels, played.duration_s, strict=True):
            more: dict[str, Value] = {}
            if one.clock_mhz is not None:
                more["clock_mhz"] = one.clock_mhz
                if system is not None:
                    watts = limited_w(system, kernel.kind, one.clock_mhz)
                    more |= {"power_w": watts, "energy_j": watts * duration_s}
            extra.append(more)
        raw = chakra.written(recording, played.start_s, played.duration_s, extra)
        with replacing(folder / f"trace.{recording.rank}.et") as spare:
            spare.write_bytes(raw)


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
    (folder / "network.yml").write_text(text + "\n")
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
    (folder / "system.json").write_text(json.dumps(described, indent=1) + "\n")
    (folder / "remote_memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}\n')
    if system is not None and clock_mhz is not None:
        power = component_power(system, clock_mhz)
        (folder / "power.json").write_text(json.dumps(power, indent=1) + "\n")


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
) -> dict[str, Any]:
    """Trace events: a process per rank, a track per stream."""
    events: list[dict[str, Any]] = []
    for recording, played in zip(recordings, one.played, strict=True):
        rank = {"ph": "M", "pid": recording.rank}
        events.append({**rank, "name": "process_name", "args": {"name": f"rank {recording.rank}"}})
        streams = sorted({(k.device, k.stream) for k in recording.kernels})
        tracks = {lane: i for i, lane in enumerate(streams)}
        for (device, stream), track in tracks.items():
            name = f"GPU {device} stream {stream}"
            events.append({**rank, "name": "thread_name", "tid": track, "args": {"name": name}})
        for kernel, start_s, duration_s in zip(
            recording.kernels, played.start_s, played.duration_s, strict=True
        ):
            args: dict[str, Any] = {"clock_mhz": one.clock_mhz}
            if system is not None and one.clock_mhz is not None:
                watts = limited_w(system, kernel.kind, one.clock_mhz)
                args |= {"power_w": watts, "energy_j": watts * duration_s}
            if kernel.collective is not None and kernel.kind in NETWORK:
                args["bytes"] = kernel.collective.size_bytes
            events.append({
                "name": kernel.name, "cat": kernel.kind, "ph": "X", "pid": recording.rank,
                "tid": tracks[kernel.device, kernel.stream], "ts": start_s * MICRO,
                "dur": duration_s * MICRO, "args": args,
            })  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}
