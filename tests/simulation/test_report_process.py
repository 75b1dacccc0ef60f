"""A receipt of clocks that were really set, from a controller at work and after its death."""

import json
import subprocess
from typing import Any

from running_cluster import BIN, LIMIT_S, Cluster, until


def receipt(*source: str) -> dict[str, Any]:
    argv = [str(BIN / "joulecut"), "report", "--receipt", "demo", "--json", *source]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_receipt_outlives_the_controller(cluster: Cluster) -> None:
    cluster.policy("enforce")
    process, url, _ = cluster.controller()
    until(lambda: any(cluster.locks_mhz()), "nothing was enforced")
    live = receipt("--controller", url)
    applied = [change for change in live["changes"] if change["kind"] == "apply"]
    assert applied
    assert "less energy" in applied[0]["reason"]
    assert sum(told["gpus"] for told in applied[0]["clocks"]) == 4
    assert live["report"]["measured"]["saved_ratio"] is None
    assert "holdout: 5%" in live["report"]["reason"]

    process.child.kill()
    process.child.wait(LIMIT_S)
    left = receipt("--store", f"sqlite:///{cluster.folder}/controller.db")
    assert left["changes"][: len(applied)] == live["changes"][: len(applied)]
    assert left["report"] is None
