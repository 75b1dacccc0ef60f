"""Where everything of a demo lies: one folder under /tmp, gone when it ends.

Short, because a unix socket's path must fit 108 bytes.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml

from joulecut_engine.money import GPU_HOUR, KWH, PUE
from joulecut_sim.demo.settings import CARDS_PER_NODE, JOB, MICROBATCHES, NODES, STAGES, Settings
from joulecut_sim.profile import rows, write

INTERVAL_S = 0.5  # the demo's pace: a pass twice a second instead of every five
SAMPLE_S = 0.25
TTL_S = 6.0  # the GPUs of a killed controller are reset within this
MIN_DWELL, CURRENCY = "1s", "USD"
# Three hold-outs in five to ten minutes. What a simulated operation costs depends on no
# temperature, so the warm-up waits for clocks alone.
HOLDOUTS = "{holdout: 33%, window: 25s, warm_up: 5s}"
SET_LATENCY_S, SET_LATENCY_SPREAD_S = 0.02, 0.02  # assumed: an A100 with a recent driver


class Folder:
    """The files of one demo."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.controller, self.policy = root / "controller.yaml", root / "policy.yaml"
        self.job, self.profile = root / "job.yaml", root / f"{JOB}-simulated.csv"
        self.control, self.results = root / "control.json", root / "results.jsonl"

    @classmethod
    def make(cls) -> "Folder":
        root = Path(tempfile.mkdtemp(prefix="jcdemo", dir="/tmp"))
        for node in NODES:
            (root / node).mkdir()
        return cls(root)

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def state(self, node: str) -> Path:
        return self.root / node / "gpus.state"

    def socket(self, node: str) -> Path:
        return self.root / node / "job.sock"

    def agent(self, node: str) -> Path:
        return self.root / node / "agent.yaml"


def put(path: Path, text: str) -> None:
    """Replaces a file atomically."""
    spare = path.with_name(path.name + ".new")
    spare.write_text(text)
    os.replace(spare, path)


def _put_yaml(path: Path, data: Any) -> None:
    put(path, yaml.safe_dump(data, sort_keys=False))


def write_agent(folder: Folder, node: str, settings: Settings, metrics: str, grpc: str) -> None:
    """The configuration of one node's agent; addresses as host:port, port 0 for a free one."""
    _put_yaml(
        folder.agent(node),
        {
            "node": node,
            "device": "simulated",
            "simulated": {
                "state": str(folder.state(node)),
                "cards": CARDS_PER_NODE,
                "sku": settings.sku.name,
                "node": node,
                "set_latency_s": SET_LATENCY_S,
                "set_latency_spread_s": SET_LATENCY_SPREAD_S,
            },
            "listen": {"metrics": metrics, "grpc": grpc, "socket": str(folder.socket(node))},
            "state_dir": str(folder.root / node),
            "sample_interval_s": SAMPLE_S,
            "lease": {"ttl_s_max": TTL_S},
            "power": {"keep_hours": 1},  # so that a power budget can be tried
            "keeper": "child",
        },
    )


def write_controller(folder: Folder, agents: list[str], http: str) -> None:
    _put_yaml(
        folder.controller,
        {
            "agents": agents,
            "policy": str(folder.policy),
            "store": f"sqlite:///{folder.root / 'controller.db'}",
            "listen": {"http": http},
            "interval_s": INTERVAL_S,
            "lease": {"ttl_s": TTL_S},
        },
    )


def write_job(folder: Folder, settings: Settings) -> None:
    plant = settings.plant()
    _put_yaml(
        folder.job,
        {
            "job": JOB,
            "pipeline": {"schedule": "1f1b", "microbatches": MICROBATCHES},
            "time_scale": plant.time_scale,
            "seed": settings.seed,
            "gpus": [
                {"state": f"{folder.state(node)}", "index": n, "socket": f"{folder.socket(node)}"}
                for node in NODES
                for n in range(CARDS_PER_NODE)
            ],
            "control": str(folder.control),
            "results": str(folder.results),
        },
    )
    made = rows(settings.sku, STAGES, scale=plant.time_scale, noise=1.0, seed=settings.seed)
    with folder.profile.open("w", newline="") as file:
        write(made, file)


def write_policy(
    folder: Folder, settings: Settings, mode: str, slowdown: float, *, holdouts: bool = False
) -> None:
    """The policy as an operator would write it."""
    verify = f"    verify: {HOLDOUTS}\n" if holdouts else ""
    gpus = ", ".join(f"{node}/0-{CARDS_PER_NODE - 1}" for node in NODES)
    text = f"""\
apiVersion: joulecut/v1
kind: Policy
mode: {mode}
cluster: {{cost: {{gpu_hour: {GPU_HOUR:g}, kwh: {KWH:g}, pue: {PUE:g}, currency: {CURRENCY}}}}}
jobs:
  - name: {JOB}
    match: {{gpus: [{gpus}]}}
    slo:
      max_slowdown: {100.0 * slowdown:g}%
      rate: hook
    clocks: {{min_dwell: {MIN_DWELL}}}
{verify}\
    pipeline:
      schedule: 1f1b
      stages: {STAGES}
      microbatches: {MICROBATCHES}
      sync: iteration
      profile: {folder.profile.name}
      blocking_power_w: {settings.sku.blocking_power_w}
"""
    put(folder.policy, text)


def write_control(folder: Folder, peer_iteration_time_s: float | None) -> None:
    """Sets the iteration time of a straggling sibling; None ends it."""
    value = "null" if peer_iteration_time_s is None else f"{peer_iteration_time_s:.6f}"
    put(folder.control, f'{{"peer_iteration_time_s": {value}}}\n')
