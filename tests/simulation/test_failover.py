"""Two real controllers, real agents with keepers, and a real PostgreSQL: who leads when one of
them dies, freezes, or the database goes away.
"""

import json
import re
import signal
import tempfile
import time
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import commands
import grpc
import postgres_server
import pytest
from postgres_server import Postgres
from running_cluster import LIMIT_S, NODES, TTL_S, Cluster, Process, get, until

from joulecut_controller.main import main
from joulecut_wire import codec
from joulecut_wire.messages import Command, Setting
from joulecut_wire.v1 import agent_pb2 as pb
from joulecut_wire.v1 import agent_pb2_grpc

HOLD_S = 9.0  # a loaded machine stands still for seconds


@dataclass
class Pair:
    """Controllers `a` and `b` of one cluster and one store."""

    cluster: Cluster
    store: dict[str, Any]
    leader: dict[str, float]

    def start(self, name: str) -> "Controller":
        process = self.cluster.controller_process(name, store=self.store, leader=self.leader)
        return Controller(process)

    def audit(self) -> list[dict[str, Any]]:
        """Every command that reached a node, with its answer."""
        lines: list[dict[str, Any]] = []
        for node in NODES:
            trail = self.cluster.folder / node / "audit.jsonl"
            if trail.exists():
                whole, _, _ = trail.read_text().rpartition("\n")  # one may be half written
                lines += map(json.loads, whole.splitlines())
        return lines

    def accepted(self, op: str, epoch: int, since_unix_s: float = 0.0) -> list[dict[str, Any]]:
        return [
            line
            for line in self.audit()
            if line["op"] == op and line.get("epoch") == epoch and line["t"] >= since_unix_s
            if line["result"] == "accepted"
        ]

    def enforced(self, epoch: int) -> bool:
        """Clocks of this term are in force on both nodes."""
        return len(self.accepted("apply", epoch)) >= len(NODES) and any(self.cluster.locks_mhz())


@dataclass
class Controller:
    process: Process

    @property
    def url(self) -> str:
        line = self.process.line(r"(?:ready|standby) http=(\S+)")
        return f"http://{line[1]}"

    @property
    def epoch(self) -> int:
        """Of its newest term; 0 before the first."""
        found = re.findall(r"^joulecut-controller ready .*epoch=(\d+)", self.log, re.MULTILINE)
        return int(found[-1]) if found else 0

    @property
    def log(self) -> str:
        return self.process.log.read_text()

    def leads(self) -> bool:
        return "joulecut_controller_leader 1.0" in get(f"{self.url}/metrics")

    def role(self) -> str:
        """Empty where its last pass is old: just after a freeze, or on a machine without time."""
        try:
            return str(json.loads(get(f"{self.url}/healthz"))["role"])
        except urllib.error.HTTPError:
            return ""

    def wait_for_role(self, role: str) -> None:
        until(lambda: self.role() == role, f"it is no {role}: {self.log}")

    def sentence(self) -> str:
        return str(json.loads(get(f"{self.url}/api/v1/board"))["sentence"])

    def jobs(self) -> list[dict[str, Any]]:
        return list(json.loads(get(f"{self.url}/api/v1/board"))["jobs"])

    def applied(self) -> set[int]:
        """Generations that its events say were applied; a standby shows no events."""
        events = json.loads(get(f"{self.url}/api/v1/events?limit=1000"))["events"]
        return {event["generation"] for event in events if event["text"].startswith("applied")}

    def wait_until_leading(self, above: int = 0) -> int:
        until(lambda: self.epoch > above, f"it does not lead: {self.log}")
        return self.epoch


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="jc") as folder:
        made = Cluster(Path(folder))
        try:
            made.up()
            made.policy("enforce")
            yield made
        finally:
            made.down()


@pytest.fixture
def server() -> Iterator[Postgres]:
    with postgres_server.running() as server:
        yield server


@pytest.fixture
def pair(cluster: Cluster, server: Postgres) -> Pair:
    store = {"url": server.make("joulecut"), "password_file": str(server.secret)}
    return Pair(cluster, store, {"check_s": 0.5, "hold_s": HOLD_S})


def refused_everywhere(cluster: Cluster, epoch: int) -> None:
    """Every command of that term, put to every agent by hand, changes nothing."""
    for number, (address, node) in enumerate(zip(cluster.agents, NODES, strict=True)):
        command = Command(
            epoch=epoch,
            job="demo",
            generation=10**6 + number,
            ttl_s=TTL_S,
            settings=(Setting(uuid=f"GPU-sim-{node}-0", clock_max_mhz=900),),
            reason="sent by a leader of the past",
        )
        with grpc.insecure_channel(address) as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)
            uuid = command.settings[0].uuid
            asked = (
                stub.Apply(codec.encode_command(command), timeout=LIMIT_S),
                stub.Renew(pb.RenewRequest(epoch=epoch, job="demo", ttl_s=TTL_S), timeout=LIMIT_S),
                stub.Clear(pb.ClearRequest(epoch=epoch, job="demo", uuids=[uuid]), timeout=LIMIT_S),
            )
        for answer in asked:
            results = codec.decode_results(answer)
            assert not any(result.accepted for result in results)
            assert "is older than" in results[0].reason


@pytest.mark.long
@pytest.mark.smoke
def test_the_leader_is_killed_while_it_enforces(pair: Pair, capsys: Any) -> None:
    a = pair.start("a")
    first = a.wait_until_leading()
    b = pair.start("b")
    b.wait_for_role("standby")
    assert not b.leads()
    until(lambda: "joulecut-controller" in b.sentence(), "it does not say who leads")
    until(lambda: pair.enforced(first), "nothing was enforced")
    until(a.applied, "it does not say what it applied")
    applied = a.applied()
    a.wait_for_role("leader")
    assert (a.leads(), b.leads()) == (True, False)
    assert not any(line.get("epoch", first) != first for line in pair.audit())

    a.process.child.kill()
    a.process.child.wait(LIMIT_S)
    killed_s, killed_unix_s = time.monotonic(), time.time()
    second = b.wait_until_leading()
    leads_s = time.monotonic() - killed_s
    assert second > first
    until(lambda: pair.enforced(second), f"the other did not enforce: {b.log}")
    enforces_s = time.monotonic() - killed_s
    with capsys.disabled():
        print(f"\nafter kill -9: led after {leads_s:.1f} s, enforced after {enforces_s:.1f} s")
    assert b.leads()
    assert not pair.accepted("apply", first, killed_unix_s)
    refused_everywhere(pair.cluster, first)

    # A new leader ends the leases of the term before, and plans with the stored measurements; a
    # third controller is a standby. Events are listed once the first pass has ended, which is after
    # that pass's commands.
    until(lambda: b.applied() > applied, f"no plan was applied after the takeover: {applied}")
    cleared, set_again = pair.accepted("clear", second), pair.accepted("apply", second)
    assert max(one["t"] for one in cleared) < min(one["t"] for one in set_again)
    assert "measuring the baseline" not in b.log
    again = pair.start("a")
    again.wait_for_role("standby")
    b.process.child.send_signal(signal.SIGTERM)
    assert b.process.child.wait(LIMIT_S) == 0
    third = again.wait_until_leading()
    assert third > second
    until(lambda: pair.enforced(third), "the third term does not enforce")
    for one in (a, b, again):
        assert "Traceback" not in one.log


@pytest.mark.long
def test_the_database_is_away_for_a_while(pair: Pair, server: Postgres) -> None:
    a = pair.start("a")
    first = a.wait_until_leading()
    b = pair.start("b")
    b.wait_for_role("standby")
    until(lambda: pair.enforced(first), "nothing was enforced")
    before = int(server.sql("SELECT max(id) FROM event", "joulecut"))

    server.stop()
    until(lambda: not a.leads(), "it claims to lead without a proof")
    assert not b.leads()
    until(lambda: not any(pair.cluster.locks_mhz()), "the leases did not end")
    for one in (a, b):
        assert one.process.child.poll() is None
        one.wait_for_role("standby")
        until(lambda one=one: "it does not answer" in one.sentence(), "it does not say why")

    server.start()
    until(lambda: a.epoch > first or b.epoch > first, f"nobody leads again: {a.log}{b.log}")
    until(lambda: pair.enforced(max(a.epoch, b.epoch)), "nothing is enforced again")
    until(lambda: sorted((a.leads(), b.leads())) == [False, True], "none leads, or both")
    kept = int(server.sql(f"SELECT count(*) FROM event WHERE id <= {before}", "joulecut"))
    assert kept == before
    epoch = "SELECT value FROM counter WHERE name = 'epoch'"
    until(
        lambda: int(server.sql(epoch, "joulecut")) == max(a.epoch, b.epoch),
        "a term was given that nobody has",
    )
    for one in (a, b):
        assert "Traceback" not in one.log


def test_what_is_wrong_with_the_database_is_one_line(server: Postgres, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.agents = ["127.0.0.1:1"]
    (tmp_path / "policy.yaml").write_text("apiVersion: joulecut/v1\nkind: Policy\njobs: []\n")
    good = server.make("joulecut")
    wrong = tmp_path / "wrong"
    wrong.write_text("guess\n")
    cases = [
        ({"url": good, "password_file": str(wrong)}, "password is wrong", 1),
        ({"url": good, "timeout_s": 21}, "store.timeout_s: 21 s is longer than a heartbeat", 2),
    ]
    # A server that answers late would be one that does not answer.
    patient = {"lease": {"ttl_s": 60.0}, "leader": {"hold_s": 60.0}}
    for store, said, status in cases:
        config = cluster.controller_config("c", store={"timeout_s": 20, **store}, **patient)
        ended = commands.run("--config", config, main=main)
        assert ended.returncode == status
        lines = ended.stderr.splitlines()
        assert (ended.stdout, len(lines)) == ("", 1), lines
        assert said in lines[0]
        assert postgres_server.PASSWORD not in lines[0]
