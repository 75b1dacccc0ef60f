"""Controllers that share the jobs of one PostgreSQL store, as real processes with real agents."""

import json
import signal
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import postgres_server
import pytest
from postgres_server import Postgres
from running_cluster import CARDS, LIMIT_S, NODES, Cluster, Process, get, until

HOLD_S = 9.0  # a loaded machine stands still for seconds
LOCK_MHZ = 1200
JOBS = {f"job-{node}-{card}": f"{node}/{card}" for node in NODES for card in range(CARDS)}


@dataclass
class Group:
    """Agents with four jobs of one GPU each, which the policy gives a fixed clock."""

    cluster: Cluster
    server: Postgres
    url: str
    running: dict[str, Process] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)

    def policy(self) -> None:
        jobs = "".join(
            f"  - name: {name}\n    mode: enforce\n    match: {{gpus: [{gpu}]}}\n"
            f"    clocks: {{lock_mhz: {LOCK_MHZ}, min_dwell: 1s}}\n"
            for name, gpu in JOBS.items()
        )
        text = f"apiVersion: joulecut/v1\nkind: Policy\njobs:\n{jobs}"
        (self.cluster.folder / "policy.yaml").write_text(text)

    def start(self, name: str) -> None:
        store = {"url": self.url, "password_file": str(self.server.secret)}
        leader = {"check_s": 0.5, "hold_s": HOLD_S}
        process = self.cluster.controller_process(name, store=store, leader=leader)
        process.line(r"(?:ready|standby) http=(\S+)")
        self.running[name] = process

    def http(self, name: str) -> str:
        return "http://" + self.running[name].line(r"(?:ready|standby) http=(\S+)")[1]

    def leads(self, name: str) -> bool:
        return "joulecut_controller_leader 1.0" in get(f"{self.http(name)}/metrics")

    def jobs(self, name: str) -> set[str]:
        """Those that a controller says it commands."""
        try:
            board = json.loads(get(f"{self.http(name)}/api/v1/board"))
        except urllib.error.HTTPError:  # before its first pass
            return set()
        return {job["name"] for job in board["jobs"]}

    def elsewhere(self, name: str) -> Any:
        """What a controller shows of the jobs of others."""
        return json.loads(get(f"{self.http(name)}/api/v1/board"))["elsewhere"]

    def settled(self) -> bool:
        """Whether every job is held by a plan of the controller that has it."""
        held, counts = set[str](), []
        for name in self.running.keys() - self.frozen:
            try:
                board = json.loads(get(f"{self.http(name)}/api/v1/board"))
            except (urllib.error.URLError, TimeoutError):  # it was killed, or has no board yet
                continue
            mine = {job["name"] for job in board["jobs"] if job["applied"]}
            held, counts = held | mine, [*counts, len(mine)]
        shares = [count for count in sorted(counts, reverse=True) if count]
        return (
            shares == self.shares()
            and held == set(JOBS)
            and set(self.cluster.locks_mhz()) == {LOCK_MHZ}
        )

    def shares(self) -> list[int]:
        """Jobs by controller in the database, most first."""
        rows = self.server.sql("SELECT count(*) FROM claim GROUP BY holder", "joulecut")
        return sorted(map(int, rows.split()), reverse=True)

    def order(self, name: str, path: str, **body: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.http(name)}/api/v1/{path}",
            json.dumps(body).encode(),
            {"content-type": "application/json", "x-joulecut-command": "1"},
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return dict(json.load(answer))

    def audit(self) -> list[dict[str, Any]]:
        """Every command that reached a node, in the order of time."""
        lines: list[dict[str, Any]] = []
        for node in NODES:
            trail = self.cluster.folder / node / "audit.jsonl"
            whole, _, _ = trail.read_text().rpartition("\n")  # one may be half written
            lines += map(json.loads, whole.splitlines())
        return sorted(lines, key=lambda line: line["t"])

    def applied(self, epoch: int) -> set[str]:
        """Jobs whose clocks were set in an epoch or a later one."""
        accepted = (line for line in self.audit() if line["result"] == "accepted")
        return {one["job"] for one in accepted if one["op"] == "apply" and one["epoch"] >= epoch}

    def start_two(self) -> None:
        """One controller with all jobs, and a second that takes its share."""
        self.start("a")
        self.whole(4)
        self.start("b")
        self.whole(2, 2)

    def whole(self, *shares: int) -> None:
        until(lambda: self.shares() == list(shares), f"not {shares}: {self.shares()}")
        until(self.settled, f"{self.cluster.locks_mhz()}")


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server.running() as server:
        yield server


@pytest.fixture
def group(server: Postgres) -> Iterator[Group]:
    with tempfile.TemporaryDirectory(prefix="jc") as folder:
        cluster = Cluster(Path(folder))
        server.sql('DROP DATABASE IF EXISTS "joulecut" WITH (FORCE)')
        made = Group(cluster, server, server.make("joulecut"))
        try:
            for process in [cluster._agent(node) for node in NODES]:
                ready = process.line(r"^joulecut-agent ready .*grpc_socket=(\S+)")
                cluster.agents.append(f"unix:{ready[1]}")
            made.policy()
            yield made
        finally:
            cluster.down()


@pytest.mark.long
@pytest.mark.smoke
def test_jobs_are_shared_taken_over_in_part_and_handed_over(group: Group) -> None:
    group.start_two()
    until(lambda: len(group.jobs("a")) == len(group.jobs("b")) == 2, "not two each")
    assert group.jobs("a") | group.jobs("b") == set(JOBS)
    assert (group.leads("a"), group.leads("b")) == (True, False)

    kept = group.jobs("b")
    until(lambda: group.applied(2) >= kept, "the second does not command its jobs")

    # The leader is killed: the other leads, and takes its jobs alone.
    killed_unix_s = time.time()
    group.running["a"].child.kill()
    group.running["a"].child.wait(LIMIT_S)
    group.whole(4)
    until(lambda: group.leads("b"), "it does not lead")
    until(lambda: group.jobs("b") == set(JOBS), "it has not all jobs")
    ended = {
        line["job"]
        for line in group.audit()
        if line["op"] == "clear" and line["t"] >= killed_unix_s
    }
    assert not ended & kept, "the jobs of the living controller go on"
    group.start("c")
    group.whole(2, 2)


@pytest.mark.long
@pytest.mark.smoke
def test_an_order_reaches_the_controller_that_has_the_job(group: Group) -> None:
    group.start_two()
    until(lambda: len(group.jobs("a")) == len(group.jobs("b")) == 2, "not two each")
    name = min(group.jobs("b"))
    until(lambda: name in str(group.elsewhere("a")), "its part is not shown")
    shown = json.loads(get(f"{group.http('a')}/api/v1/jobs/{name}"))
    assert (shown["name"], shown["applied"]["actions"][0]["clock_mhz"]) == (name, LOCK_MHZ)
    assert shown["controller"].endswith(group.http("b").rpartition(":")[2])
    assert shown["age_s"] < LIMIT_S
    done = group.order("a", f"jobs/{name}/pause", reason="a test")
    assert done["jobs"] == [name]
    until(lambda: group.cluster.locks_mhz().count(0) == 1, "it was not released")
    locks = dict(zip(JOBS, group.cluster.locks_mhz(), strict=True))
    assert locks[name] == 0
    group.order("a", f"jobs/{name}/resume")
    until(group.settled, "it was not resumed")
    group.order("b", "restore", all=True)
    until(lambda: set(group.cluster.locks_mhz()) == {0}, "not all are restored")
    group.order("a", "resume", all=True)
    until(group.settled, "not all are resumed")


@pytest.mark.long
def test_a_controller_that_was_frozen_commands_nothing_and_joins_again(group: Group) -> None:
    group.start_two()
    until(lambda: len(group.jobs("b")) == 2, "it has no jobs")
    frozen = group.running["b"].child
    frozen.send_signal(signal.SIGSTOP)
    until(group.running["b"].is_stopped, "it does not stop")
    group.frozen = {"b"}
    group.whole(4)
    epoch = int(group.server.sql("SELECT value FROM counter WHERE name = 'epoch'", "joulecut"))
    frozen.send_signal(signal.SIGCONT)
    group.frozen = set()
    woken_unix_s = time.time()
    group.whole(2, 2)
    late = [line for line in group.audit() if line["t"] > woken_unix_s and "epoch" in line]
    assert all(line["epoch"] >= epoch for line in late if line["result"] == "accepted")
    assert frozen.poll() is None
    assert "Traceback" not in group.running["b"].log.read_text()
