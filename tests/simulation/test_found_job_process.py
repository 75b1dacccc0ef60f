"""A job without a line for it: its spans, and its place in Slurm, are all that is known."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from held_port import held_port
from running_cluster import BIN, MICROBATCHES, SCALE, Cluster, get, job_of, until

from joulecut_sim.card import StateFile

STAGES = 4
RANKS = Path(__file__).parents[1] / "agents" / "megatron_ranks.py"
CGROUP = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.down()


def in_slurm_job(proc: Path, pid: int) -> None:
    """The process as slurmd places it; all else about it is the kernel's own word."""
    place = proc / str(pid)
    place.mkdir()
    (place / "cgroup").write_text(CGROUP)
    for name in ("environ", "comm", "fd", "stat"):
        (place / name).symlink_to(f"/proc/{pid}/{name}")


def predicted(url: str) -> bool:
    """At no slowdown, stages that are taken for alike may leave nothing to save."""
    jobs = json.loads(get(f"{url}/api/v1/board"))["jobs"]
    planned = [job["sentence"].startswith("predicted from other jobs") for job in jobs]
    return planned == [True] and jobs[0]["state"] in {"recommended", "steady"}


@pytest.mark.long
def test_it_is_found_with_its_shape_and_recommended(cluster: Cluster, tmp_path: Path) -> None:
    proc, prolog, state = tmp_path / "proc", tmp_path / "slurm", tmp_path / "gpus.state"
    for folder in (proc, prolog):
        folder.mkdir()
    (proc / "net").symlink_to("/proc/net")
    for index in range(STAGES):  # as the prolog writes them
        (prolog / str(index)).write_text("4711\n")
    gpus = [{"state": str(state), "index": index} for index in range(STAGES)]  # no socket
    shape = {"schedule": "1f1b", "microbatches": MICROBATCHES}
    job = {"job": "-", "pipeline": shape, "time_scale": SCALE, "gpus": gpus}
    with held_port() as port:
        agent = {
            "node": "n1", "device": "simulated", "state_dir": "state",
            "simulated": {"state": str(state), "cards": STAGES, "sku": "a100-sxm"},
            "listen": {
                "metrics": "127.0.0.1:0", "grpc": "127.0.0.1:0", "socket": "jobs.sock",
                "otlp_http": f"127.0.0.1:{port}",
            },
            "attribution": {"proc": str(proc), "slurm": {"mapping_dir": str(prolog)}},
        }  # fmt: skip
        ready = cluster.start(
            str(BIN / "joulecut-agent"), "run", "--config", cluster.put("agent.yaml", agent)
        ).line(r"^joulecut-agent ready .*metrics=(\S+) .*grpc_socket=(\S+)")
        cluster.metrics.append(ready[1])
        cluster.agents.append(f"unix:{ready[2]}")
        cluster.put("policy.yaml", {"apiVersion": "joulecut/v1", "kind": "Policy", "jobs": []})
        config = cluster.put("job.yaml", job | {"results": "results.jsonl"})
        cluster.start(sys.executable, "-m", "joulecut_sim.job", "--config", config).line("ready")
        visible = ",".join(map(str, range(STAGES)))
        ranks = cluster.start(
            "env", f"CUDA_VISIBLE_DEVICES={visible}", f"PYTHONPATH={os.pathsep.join(sys.path)}",
            sys.executable, str(RANKS), str(tmp_path / "results.jsonl"), str(port), str(STAGES),
            str(MICROBATCHES),
        )  # fmt: skip
        in_slurm_job(proc, ranks.child.pid)
        _, url, _ = cluster.controller()
        until(lambda: predicted(url), "nothing predicted")
    found = job_of(url)
    assert (found["name"], found["found"], found["mode"]) == ("slurm:4711", True, "recommend")
    assert found["rate_source"] == "otlp"
    told = {key: found["pipeline"][key] for key in ("schedule", "stages", "microbatches")}
    assert told == {**shape, "stages": STAGES}
    assert [(row["index"], row["stage"]) for row in found["gpus"]] == [
        (i, i) for i in range(STAGES)
    ]
    assert cluster.commands().get("apply", 0.0) == 0.0
    opened = StateFile.open(state)
    assert all(opened.lock_mhz(index) == (0, 0) for index in range(STAGES))
    opened.close()
