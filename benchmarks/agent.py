"""What an agent and its keeper cost a node of 8 GPUs at one sample a second: memory and CPU.

    python benchmarks/agent.py [--seconds 20] [--device nvml|simulated]

`nvml` is the unmodified nvidia-ml-py over tests/fake_nvml (gcc builds it); the fake's own
physics is inside the figure. One watcher and one scrape each 5 s run along.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "agents"), str(ROOT / "tests" / "fake_nvml")]

from running_agent import RunningAgent  # noqa: E402

from fixture import CompilerMissing, FakeNvml  # noqa: E402
from joulecut_wire.v1 import agent_pb2 as pb  # noqa: E402

PSS_MIB_MAX = 80
CPU_RATIO_MAX = 0.01
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> dict[str, float]:
    """Pss, Private_Dirty and the like, as the kernel names them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.partition(":")[0]: int(line.split()[1]) / 1024 for line in lines}


def alone_mib(processes: list[dict[str, float]]) -> float:
    """What they would weigh if nothing else on the machine used the same files: an upper bound,
    for this benchmark's own Python shares some of them.
    """
    private = sum(each["Private_Clean"] + each["Private_Dirty"] for each in processes)
    return private + max(each["Shared_Clean"] + each["Shared_Dirty"] for each in processes)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def hardware() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return platform.machine()


def commit() -> str:
    asked = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def measure(node: RunningAgent, seconds: float) -> None:
    node.start()
    watching = node.stub.Watch(pb.WatchRequest(interval_s=1.0))
    assert node.process is not None
    pids = {"agent": node.process.pid, "keeper": node.keeper_pid}
    uuid_clocks = {
        gpu.index: gpu.clocks_mhz[len(gpu.clocks_mhz) // 2] for gpu in node.describe().gpus
    }
    print(f"{len(uuid_clocks)} GPUs, device {node.config['device']}, {seconds:g} s")
    end_s = time.monotonic() + 3.0  # the first seconds are imports and first answers
    while time.monotonic() < end_s:
        next(watching)
    before, began_s = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    ticks = 0
    while time.monotonic() - began_s < seconds:
        next(watching)
        ticks += 1
        if ticks % 5 == 0:
            node.metrics()
    elapsed_s = time.monotonic() - began_s
    shares = {name: (cpu_s(pid) - before[name]) / elapsed_s for name, pid in pids.items()}
    weights = {name: memory_mib(pid) for name, pid in pids.items()}
    sizes = {name: weight["Pss"] for name, weight in weights.items()}
    watching.cancel()
    for name in pids:
        print(f"{name:8} {sizes[name]:6.1f} MiB PSS   {100 * shares[name]:5.2f} % of a core")
    memory, share = sum(sizes.values()), sum(shares.values())
    print(
        f"alone    {alone_mib(list(weights.values())):6.1f} MiB at most, with nothing to share with"
    )
    print(f"{'sum':8} {memory:6.1f} MiB PSS   {100 * share:5.2f} % of a core")
    print(
        f"target below {PSS_MIB_MAX} MiB and {100 * CPU_RATIO_MAX:g} %: "
        f"{'met' if memory < PSS_MIB_MAX and share < CPU_RATIO_MAX else 'MISSED'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--device", choices=("nvml", "simulated"), default="nvml")
    args = parser.parse_args()
    print(f"{hardware()}; Python {platform.python_version()}; commit {commit()}")
    if args.device == "nvml":
        import tempfile  # noqa: PLC0415

        with tempfile.TemporaryDirectory(prefix="jc") as folder:
            try:
                fake = FakeNvml(Path(folder) / "gpus", gpus=8)
            except CompilerMissing as missing:
                print(f"{missing}; try --device simulated")
                return 1
            fake.set_permission(True)
            with RunningAgent(
                env=fake.environment(),
                device="nvml",
                nvml={"permission": "driver"},
                sample_interval_s=1.0,
            ) as node:
                measure(node, args.seconds)
    else:
        with RunningAgent(cards=8, sample_interval_s=1.0) as node:
            measure(node, args.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
