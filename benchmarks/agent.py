"""What the agent's processes cost a node of 8 GPUs, and how fast they are; medians and tails.

    python benchmarks/agent.py [--samples 1000000] [--seconds 20] [--device nvml|simulated]
                               [--alone] [--memory]

`nvml` is the unmodified nvidia-ml-py over tests/fake_nvml (gcc builds it); the fake's own
physics is inside the figures. The million samples are taken as fast as the agent can, one
tick after the other: what grows with their number shows, what grows with hours does not.
One watcher runs along. Nothing is asserted: each bar is printed as met or missed.
"""

import argparse
import http.client
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "agents"), str(ROOT / "tests" / "fake_nvml")]

from running_agent import RunningAgent  # noqa: E402

from fixture import CompilerMissing, FakeNvml  # noqa: E402
from joulecut import Reporter  # noqa: E402
from joulecut_wire import codec  # noqa: E402
from joulecut_wire.messages import Command, ScheduleStep, Setting  # noqa: E402
from joulecut_wire.v1 import agent_pb2 as pb  # noqa: E402

GPUS = 8
WARM_SCRAPES = 20
GROWTH_MIB = 1.0  # a page here and there is the allocator's; 1e6 samples of 1 byte would be this
ACCEPT = "application/openmetrics-text;version=1.0.0"  # what Prometheus would rather have
POLL_S = 0.003  # for a write that was waited for; when it was is the driver's own record
FAST_INTERVAL_S = 0.002  # a tick of eight takes about one millisecond
MEMORY = Path("/dev/shm")  # a file system without a disk
# An agent whose configuration would be refused: the interval is below what makes sense on a node.
FAST_AGENT = f"""
import sys
from dataclasses import replace
from pathlib import Path
from joulecut_agent import config
from joulecut_agent.loop import Agent
settings = config.load(Path(sys.argv[1]))
sys.exit(Agent(replace(settings, sample_interval_s={FAST_INTERVAL_S})).run())
"""


def family(pid: int) -> dict[str, int]:
    """The agent and everything it started: name and pid."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    found, names = {"agent": pid}, {"eye_process": "eye", "keeper": "keeper"}
    for child, parent in sorted(parents.items()):
        if parent == pid:
            words = Path(f"/proc/{child}/cmdline").read_text()
            name = next((n for word, n in names.items() if word in words), f"child {child}")
            found[name] = child
            for grandchild in (one for one, above in parents.items() if above == child):
                found["hand"] = grandchild
    return found


def pss_mib(pid: int, kind: str = "Pss") -> float:
    """`Pss_Anon` is what a process has written itself: strangers that share a library and come
    or go change the rest.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} has no {kind}")


def cpu_s(pid: int) -> float:
    """Of all threads that live, to the nanosecond: ticks of 10 ms miss what runs for 0.2."""
    return sum(
        int(path.read_text().split()[0]) / 1e9
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )


def hardware() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return platform.machine()


def commit() -> str:
    asked = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def bar(what: str, value: float, most: float, unit: str, detail: str = "") -> None:
    verdict = "met" if value < most else "MISSED"
    print(f"{what:38} {value:9.2f} {unit:6} bar {most:g} {unit}: {verdict}   {detail}", flush=True)


def tail(values: list[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def speeds(what: str, seconds: list[float], most_ms: float) -> None:
    median_ms, worst_ms = (1e3 * f(seconds) for f in (statistics.median, max))
    detail = f"median {median_ms:.2f} ms, worst {worst_ms:.2f} ms of {len(seconds)}"
    bar(f"{what}, p99", 1e3 * tail(seconds, 0.99), most_ms, "ms", detail)


@contextmanager
def watched(node: RunningAgent) -> Iterator[None]:
    call = node.stub.Watch(pb.WatchRequest(interval_s=1.0))
    try:
        next(call)
        yield
    finally:
        call.cancel()


def start_times(make: Callable[..., RunningAgent], runs: int) -> None:
    found = []
    for _ in range(runs):
        with make(sample_interval_s=1.0) as node:
            began_s = time.monotonic()
            node.start()
            assert "joulecut_gpu_energy_joules_total" in node.metrics()
            found.append(time.monotonic() - began_s)
    detail = f"{min(found):.2f} to {max(found):.2f} s of {runs}"
    bar("start to the first metric, median", statistics.median(found), 1.0, "s", detail)


def cost_at_10_hz(node: RunningAgent, seconds: float) -> None:
    node.start()
    assert node.process is not None
    with watched(node):
        time.sleep(3.0)  # imports and first answers
        pids = family(node.process.pid)
        before, began_s = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
        time.sleep(seconds)
        elapsed_s = time.monotonic() - began_s
        shares = {name: 100 * (cpu_s(pid) - before[name]) / elapsed_s for name, pid in pids.items()}
        sizes = {name: pss_mib(pid) for name, pid in pids.items()}
    for name in pids:
        print(f"  {name:8} {sizes[name]:6.1f} MiB PSS   {shares[name]:5.2f} % of a core")
    bar("a core at 10 Hz", sum(shares.values()), 1.0, "%")
    bar("memory, sum of PSS", sum(sizes.values()), 80.0, "MiB")


def scrapes(node: RunningAgent, count: int) -> None:
    host, _, port = node.ready["metrics"].rpartition(":")
    found = []
    for _ in range(count):
        began_s = time.perf_counter()
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("GET", "/metrics", headers={"Accept": ACCEPT})
        size = len(connection.getresponse().read())
        connection.close()
        found.append(time.perf_counter() - began_s)
        time.sleep(0.01)
    speeds(f"a scrape of {size} bytes", found, 5.0)


def orders(node: RunningAgent, fake: FakeNvml, count: int) -> None:
    """From the moment a client calls Apply to the setter call that the driver records."""
    gpus = node.describe().gpus
    clocks_mhz = gpus[0].clocks_mhz[-20:]
    found = []
    fake.forget_writes()
    for number in range(count):
        gpu = gpus[number % GPUS]
        settings = (Setting(gpu.uuid, clocks_mhz[number // GPUS % 20]),)
        command = Command(1, f"bench{number % GPUS}", number + 1, 60.0, settings, "benchmark")
        request = codec.encode_command(command)
        writes = fake.writes_seen()
        began_s = time.monotonic()
        results = codec.decode_results(node.stub.Apply(request, timeout=10.0))
        assert results[0].accepted, results[0].reason
        found.append(fake.written_s(writes) - began_s)
        if writes > 900:
            fake.forget_writes()
        time.sleep(0.02)
    speeds("Apply to the NVML call", found, 3.0)


def marks(node: RunningAgent, fake: FakeNvml, count: int, pause_s: float = 0.11) -> None:
    """From a job's datagram to the setter call that the driver records, under a clock program."""
    gpus = node.describe().gpus
    high_mhz, low_mhz = gpus[0].clocks_mhz[-1], gpus[0].clocks_mhz[-20]
    program = (ScheduleStep("forward", low_mhz), ScheduleStep("backward", high_mhz))
    settings = tuple(Setting(gpu.uuid, high_mhz, 0, None, program, 1.0) for gpu in gpus)
    command = Command(1, "marked", 10_000, 60.0, settings, "benchmark")
    results = codec.decode_results(node.stub.Apply(codec.encode_command(command), timeout=10.0))
    assert all(result.accepted for result in results), results[0].reason
    reporters = [Reporter("marked", gpu.uuid, 0, str(node.home / "jobs.sock")) for gpu in gpus]
    found = []
    fake.forget_writes()
    for number in range(count):
        reporter = reporters[number % GPUS]
        kind = ("forward", "backward")[number // GPUS % 2]
        writes = fake.writes_seen()
        began_s = time.monotonic()
        assert reporter.mark("begin", kind, 0, number // GPUS)
        while fake.writes_seen() == writes:
            assert time.monotonic() - began_s < 5.0, (number, node.log[-500:])
            time.sleep(POLL_S)  # a look that took the driver's lock, or the core, would be measured
        found.append(fake.written_s(writes) - began_s)
        if writes > 900:
            fake.forget_writes()
        time.sleep(pause_s / GPUS)
        if number % 100 == 99:
            request = pb.RenewRequest(epoch=1, job="marked", generation=10_000, ttl_s=60.0)
            node.stub.Renew(request, timeout=10.0)
    for reporter in reporters:
        reporter.close()
    speeds("a job's mark to the NVML call", found, 1.0)


def disk(folder: Path, count: int) -> None:
    """What one durable record costs here: no order can be faster, see S2 of the contract."""
    fd = os.open(folder / "probe", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    found = []
    for _ in range(count):
        began_s = time.perf_counter()
        os.write(fd, b"x" * 120)
        os.fsync(fd)
        found.append(time.perf_counter() - began_s)
        time.sleep(0.02)
    os.close(fd)
    median_ms, tail_ms = 1e3 * statistics.median(found), 1e3 * tail(found, 0.99)
    print(f"  the disk alone: a record and fsync, median {median_ms:.2f} ms, p99 {tail_ms:.2f} ms")


def memory_after(node: RunningAgent, samples: int) -> None:
    command = [sys.executable, "-c", FAST_AGENT, str(node.write_config())]
    with (node.home / "log").open("a") as log:
        node.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=node.env
        )
    assert node.process.stdout is not None
    node.ready = dict(p.split("=", 1) for p in node.process.stdout.readline().split()[2:])
    node.connect()
    with watched(node):
        for _ in range(WARM_SCRAPES):  # what answering costs once is no growth
            node.metrics()
            node.describe()
        sizes, written, first = {}, dict[float, dict[str, float]](), node.watch().sequence
        for share in (0.02, 1.0):
            wanted = first + int(share * samples) // GPUS
            while node.watch().sequence < wanted:
                time.sleep(1.0)
            pids = family(node.process.pid)
            sizes[share] = {name: pss_mib(pid) for name, pid in pids.items()}
            written[share] = {name: pss_mib(pid, "Pss_Anon") for name, pid in pids.items()}
            node.metrics()
    taken = (node.watch().sequence - first) * GPUS
    each = ", ".join(f"{name} {size:.1f}" for name, size in sizes[1.0].items())
    print(f"  {each} MiB")
    bar(f"memory after {taken} samples", sum(sizes[1.0].values()), 80.0, "MiB")
    begun, ended = (sum(written[share].values()) for share in (0.02, 1.0))
    grown = ", ".join(f"{n} {written[1.0][n] - one:+.2f}" for n, one in written[0.02].items())
    detail = f"private pages, {begun:.1f} to {ended:.1f} MiB: {grown}"
    bar("growth from 2 % of them on", ended - begun, GROWTH_MIB, "MiB", detail)


def all_speeds(make: Callable[..., RunningAgent], fake: FakeNvml | None, seconds: float) -> None:
    start_times(make, 5)
    with make(sample_interval_s=0.1) as node:
        cost_at_10_hz(node, seconds)
        scrapes(node, 500)
        if fake is not None:
            disk(node.state_dir, 200)
            orders(node, fake, 500)
            marks(node, fake, 1000)
    if fake is None or not MEMORY.is_dir():
        return
    print("  the same with the journal in memory, as shipped")
    with (
        tempfile.TemporaryDirectory(prefix="jc", dir=MEMORY) as journal_dir,
        make(sample_interval_s=0.1, journal_dir=journal_dir) as node,
    ):
        node.start()
        disk(Path(journal_dir), 200)
        orders(node, fake, 500)
        marks(node, fake, 1000)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--device", choices=("nvml", "simulated"), default="nvml")
    parser.add_argument(
        "--alone",
        action="store_true",
        help="everything at real-time priority (needs root): what other load costs is left out",
    )
    parser.add_argument(
        "--memory", action="store_true", help="the samples alone, which need no calm machine"
    )
    args = parser.parse_args()
    if args.alone:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # children inherit it
    print(f"{hardware()}; Python {platform.python_version()}; commit {commit()}")
    began, how = os.getloadavg(), "; at real-time priority" if args.alone else ""
    print(f"{GPUS} GPUs, device {args.device}; load of the machine {began[0]:.1f}{how}")
    with tempfile.TemporaryDirectory(prefix="jc") as folder:
        fake = None
        if args.device == "nvml":
            try:
                fake = FakeNvml(Path(folder) / "gpus", gpus=GPUS)
            except CompilerMissing as missing:
                print(f"{missing}; try --device simulated")
                return 1
            fake.set_permission(True)
            for gpu in range(GPUS):
                fake.set_load(gpu, 1.0)

        def make(**config: Any) -> RunningAgent:
            if fake is None:
                return RunningAgent(cards=GPUS, **config)
            options = {"permission": "driver"}
            return RunningAgent(env=fake.environment(), device="nvml", nvml=options, **config)

        if not args.memory:
            all_speeds(make, fake, args.seconds)
        if args.samples:
            with make() as node:
                memory_after(node, args.samples)
    print(f"load of the machine at the end {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
