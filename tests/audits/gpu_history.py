"""A day of GPU series with known truth, for a real Prometheus: dcgm-exporter's, or our agents'.

    from gpu_history import Gpu, State, openmetrics, serving

Written as OpenMetrics and turned into blocks by promtool, so that a day is there at once. Two
of its habits are kept: labels of a pod come and go with it, and the energy counter is in mJ.
"""

import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from held_port import held_port

PATIENCE_S = 120.0  # for a machine that stands still now and then; met early on every other


@dataclass(frozen=True)
class State:
    """What a GPU shows for a while; None: its exporter is silent."""

    power_w: float
    clock_mhz: float = 210.0
    busy_percent: float = 0.0
    labels: tuple[tuple[str, str], ...] = ()
    tensor_ratio: float | None = None


@dataclass
class Gpu:
    """`at` tells its state by seconds since the beginning; at `resets_s` its driver is loaded."""

    host: str
    index: int
    at: Callable[[float], State]
    silent: tuple[float, float] = (0.0, 0.0)
    resets_s: float | None = None
    limit_w: float = 400.0
    joules: dict[str, float] = field(default_factory=dict)  # the truth, by owner

    @property
    def uuid(self) -> str:
        return f"GPU-{self.host}-{self.index}"


def owner(labels: Mapping[str, str]) -> str:
    if "hpc_job" in labels:
        return labels["hpc_job"]
    return labels.get("pod", "")


Row = tuple[str, dict[str, str], float]


def dcgm(gpu: Gpu, state: State, counter_j: float) -> Iterator[Row]:
    """What dcgm-exporter shows of one GPU."""
    labels = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "modelName": "NVIDIA A100-SXM4-80GB",
        "Hostname": gpu.host,
        **dict(state.labels),
    }
    yield "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", labels, counter_j * 1000.0
    yield "DCGM_FI_DEV_POWER_USAGE", labels, state.power_w
    yield "DCGM_FI_DEV_SM_CLOCK", labels, state.clock_mhz
    yield "DCGM_FI_DEV_GPU_UTIL", labels, state.busy_percent
    yield "DCGM_FI_DEV_POWER_MGMT_LIMIT", labels, gpu.limit_w
    if state.tensor_ratio is not None:
        yield "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", labels, state.tensor_ratio


def ours(gpu: Gpu, state: State, counter_j: float) -> Iterator[Row]:
    """What our agents show of one GPU."""
    scrape = {"instance": f"{gpu.host}:9430", "job": "joulecut-agent"}
    one = {"uuid": gpu.uuid, **scrape}
    told = dict(state.labels)
    yield "joulecut_gpu_energy_joules_total", one, counter_j
    yield "joulecut_gpu_power_watts", {**one, "kind": "average"}, state.power_w
    yield "joulecut_gpu_clock_hertz", {**one, "domain": "sm"}, state.clock_mhz * 1e6
    yield "joulecut_gpu_utilization_ratio", {**one, "engine": "gpu"}, state.busy_percent / 100.0
    yield "joulecut_gpu_power_limit_watts", {**one, "kind": "enforced"}, gpu.limit_w
    yield "joulecut_gpu_info", {**one, "index": str(gpu.index), "model": "A100"}, 1.0
    owner = {"source": "none"}
    if "hpc_job" in told:
        owner = {"source": "slurm", "workload": told["hpc_job"]}
    elif "pod" in told:
        owner = {"source": "kubernetes", "workload": told["pod"], "pod": told["pod"]}
        owner["namespace"] = told["namespace"]
    yield "joulecut_gpu_allocation_info", {**one, **owner}, 1.0


def openmetrics(
    gpus: list[Gpu],
    begin_s: float,
    seconds: float,
    *,
    scrape_s: float = 60.0,
    tells: Callable[[Gpu, State, float], Iterator[Row]] = dcgm,
) -> str:
    """The text; fills in each GPU's truth as it goes."""
    families: dict[str, list[str]] = {}  # must not be interleaved

    def put(row: Row, at_s: float) -> None:
        name, labels, value = row
        shown = ",".join(f'{key}="{word}"' for key, word in labels.items())
        line = f"{name}{{{shown}}} {value!r} {at_s:.3f}"
        families.setdefault(name.removesuffix("_total"), []).append(line)

    ticks = int(seconds / scrape_s) + 1
    for gpu in gpus:
        counter_j = 1e6
        for tick in range(ticks):
            since_s = tick * scrape_s
            state = gpu.at(since_s)
            if tick:
                used_j = state.power_w * scrape_s
                who = owner(dict(state.labels))
                gpu.joules[who] = gpu.joules.get(who, 0.0) + used_j
                counter_j += used_j
            if gpu.resets_s is not None and since_s - scrape_s < gpu.resets_s <= since_s:
                counter_j = state.power_w * (since_s - gpu.resets_s)
            if gpu.silent[0] < since_s < gpu.silent[1]:
                continue
            for row in tells(gpu, state, counter_j):
                put(row, begin_s + since_s)
    lines = []
    for name, rows in families.items():
        lines += [f"# TYPE {name} {'counter' if '_total' in rows[0] else 'gauge'}", *rows]
    return "\n".join([*lines, "# EOF", ""])


@contextmanager
def serving(text: str, home: Path, *, web: str = "") -> Iterator[str]:
    """A real Prometheus that holds these series and scrapes nothing; its URL."""
    prometheus, promtool = shutil.which("prometheus"), shutil.which("promtool")
    assert prometheus is not None
    assert promtool is not None
    (home / "history.txt").write_text(text)
    made = subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", "-q", "history.txt", "data"],
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    (home / "prometheus.yml").write_text("scrape_configs: []\n")
    command = [
        prometheus,
        f"--config.file={home}/prometheus.yml",
        f"--storage.tsdb.path={home}/data",
        "--storage.tsdb.retention.time=30d",
    ]
    if web:
        (home / "web.yml").write_text(web)
        command.append(f"--web.config.file={home}/web.yml")
    quiet = subprocess.DEVNULL
    with held_port() as port:
        command.append(f"--web.listen-address=127.0.0.1:{port}")
        with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
            try:
                url = f"http://127.0.0.1:{port}"
                _await(url)
                yield url
            finally:
                process.terminate()
                process.wait(timeout=PATIENCE_S)


def _await(url: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/-/ready", timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 401:
                return
        except OSError:
            pass
        else:
            return
        time.sleep(0.1)
    raise AssertionError("Prometheus did not become ready")
