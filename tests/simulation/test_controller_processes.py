"""Real processes: agents with keepers, a simulated job, and a controller that is killed."""

import json
import signal
import socket
from pathlib import Path
from typing import Any

import commands
import pytest
from running_cluster import LIMIT_S, Cluster, get, job_of, until

from joulecut_controller.main import main


def nothing_held_by_itself(cluster: Cluster, before: float = 0.0) -> float:
    """No lease outlives its controller: each ends on its node, which grants none above TTL_S."""
    until(lambda: not any(cluster.locks_mhz()), "the leases did not end")
    ended = cluster.restores
    until(lambda: ended().get("lease_expired", 0.0) > before, "given back for another cause")
    return ended()["lease_expired"]


def reported(*source: str) -> dict[str, Any]:
    done = commands.run("report", "--job", "demo", "--json", *source)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.smoke
def test_recommend_enforce_stop_kill_restart_and_what_the_report_says(cluster: Cluster) -> None:
    cluster.policy("recommend")
    first, url, epoch = cluster.controller()
    until(lambda: (job_of(url).get("decision") or {}).get("actions"), "no plan was recommended")
    assert not any(cluster.commands().values()), "recommend commanded something"
    assert not any(cluster.locks_mhz())

    cluster.policy("enforce")
    until(lambda: any(cluster.locks_mhz()), "nothing was enforced")
    assert all(mhz == 0 or mhz >= 900 for mhz in cluster.locks_mhz())
    mode = 'joulecut_controller_mode{mode="enforce",workload="demo"} 1.0'
    until(lambda: mode in get(f"{url}/metrics"), "no board tells of it")
    text = get(f"{url}/metrics")
    assert f"joulecut_controller_epoch {float(epoch)}" in text
    assert "_created" not in text
    live = reported("--config", f"{cluster.folder}/controller.yaml")
    applied = [change for change in live["changes"] if change["kind"] == "apply"]
    assert applied
    assert "less energy" in applied[0]["reason"]
    assert sum(told["gpus"] for told in applied[0]["clocks"]) == 4
    [job] = live["jobs"]
    assert job["measured"]["saved_ratio"] is None
    assert "holdout: 5%" in job["reason"]

    first.child.send_signal(signal.SIGSTOP)  # its sockets stay open, and still the GPUs come back
    expired = nothing_held_by_itself(cluster)
    first.child.send_signal(signal.SIGCONT)
    until(lambda: any(cluster.locks_mhz()), "it did not take up its work again")

    first.child.kill()
    first.child.wait(LIMIT_S)
    nothing_held_by_itself(cluster, expired)
    left = reported("--store", f"sqlite:///{cluster.folder}/controller.db")
    assert left["changes"][: len(applied)] == live["changes"][: len(applied)]
    assert left["jobs"] == []

    second, _, later = cluster.controller()
    assert later > epoch
    until(lambda: any(cluster.locks_mhz()), "the second controller did not enforce")
    second.child.send_signal(signal.SIGTERM)
    assert second.child.wait(LIMIT_S) == 0
    assert not any(cluster.locks_mhz()), "it gives back before it goes"
    assert "Traceback" not in second.log.read_text()


def test_a_port_in_use_is_one_line_and_takes_no_term(tmp_path: Path) -> None:
    policy = "apiVersion: joulecut/v1\nkind: Policy\njobs: []\n"
    (tmp_path / "policy.yaml").write_text(policy)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = tmp_path / "controller.yaml"
        config.write_text(
            "agents: [127.0.0.1:1]\npolicy: policy.yaml\nstore: sqlite:///c.db\n"
            f"listen: {{http: 127.0.0.1:{port}}}\n"
        )
        ended = commands.run("--config", str(config), main=main)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
