"""Real processes: agents with keepers, a simulated job, and a controller that is killed."""

import re
import signal
import socket
from pathlib import Path

import commands
import pytest
from running_cluster import LIMIT_S, Cluster, get, job_of, until

from joulecut_controller.main import main


def nothing_held_by_itself(cluster: Cluster) -> None:
    """No lease outlives its controller: each ends on its node, which grants none above TTL_S."""
    until(lambda: not any(cluster.locks_mhz()), "the leases did not end")
    until(lambda: cluster.restores().get("lease_expired"), "given back for another cause")


def test_recommend_enforce_kill_restart_stop(cluster: Cluster) -> None:
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

    first.child.kill()
    first.child.wait(LIMIT_S)
    nothing_held_by_itself(cluster)

    second, _, later = cluster.controller()
    assert later > epoch
    until(lambda: any(cluster.locks_mhz()), "the second controller did not enforce")
    second.child.send_signal(signal.SIGTERM)
    assert second.child.wait(LIMIT_S) == 0
    assert not any(cluster.locks_mhz()), "it gives back before it goes"
    assert "Traceback" not in second.log.read_text()


def test_two_controllers_that_watch_are_named_to_both_operators(cluster: Cluster) -> None:
    cluster.policy("recommend")
    process, url, _ = cluster.controller()
    cluster.put("nothing.yaml", {"apiVersion": "joulecut/v1", "kind": "Policy", "jobs": []})
    second = cluster.controller_process("other", policy="nothing.yaml", store="sqlite:///other.db")
    second_url = "http://" + second.line(r"^joulecut-controller ready http=(\S+)")[1]
    shared = "joulecut_controller_others_agents {}"
    for one, at in ((process, url), (second, second_url)):
        until(lambda at=at: shared.format(2.0) in get(f"{at}/metrics"), "the other is not seen")
        said = r"another controller, with a store of its own, watches \d of the agents"
        one.line(said)
        # The log may name it before it has come to the second agent.
        until(
            lambda at=at, said=said: re.search(said, get(f"{at}/api/v1/board")), "not on the page"
        )
        examined = commands.run("doctor", "--controller", at).stdout
        assert "controllers" in examined
        assert "n1 has another one" in examined
    second.child.terminate()
    until(
        lambda: shared.format(0.0) in get(f"{url}/metrics"), "a controller that has gone is named"
    )
    assert commands.run("doctor", "--controller", url).stdout.count("has another one") == 0


def test_a_stopped_controller_is_a_dead_one(cluster: Cluster) -> None:
    """Frozen, not killed: its sockets stay open, and still the GPUs come back."""
    cluster.policy("enforce")
    process, _, _ = cluster.controller()
    until(lambda: any(cluster.locks_mhz()), "nothing was enforced")
    process.child.send_signal(signal.SIGSTOP)
    nothing_held_by_itself(cluster)
    process.child.send_signal(signal.SIGCONT)
    until(lambda: any(cluster.locks_mhz()), "it did not take up its work again")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("agents: [127.0.0.1:1]\npolicy: none.yaml\nstore: sqlite:///c.db\n", "none.yaml"),
        ("agents: [127.0.0.1:1]\nstore: sqlite:///c.db\n", "policy: key missing"),
        ("agents: [8.8.8.8:1]\npolicy: p\nstore: sqlite:///c.db\n", "8.8.8.8 without encryption"),
        ("agents: ['127.0.0.1:1']\npolicy: wrong.yaml\nstore: sqlite:///c.db\n", "apiVersion"),
        ("what", "not a mapping"),
    ],
)
def test_bad_input_is_one_line_and_status_two(tmp_path: Path, text: str, expected: str) -> None:
    config = tmp_path / "controller.yaml"
    config.write_text(text)
    (tmp_path / "wrong.yaml").write_text("jobs: [{name: a}]\n")
    before = sorted(tmp_path.iterdir())
    ended = commands.run("--config", str(config), main=main)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert expected in ended.stderr
    assert sorted(tmp_path.iterdir()) == before


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
