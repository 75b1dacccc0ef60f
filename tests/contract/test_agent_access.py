"""Who may do what at the agent's gRPC door: real certificates, a real agent, every call."""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import commands
import grpc
import pytest
from certificates import Authority, Leaf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from running_agent import COMMAND, PATIENCE_S, RunningAgent, eventually

from joulecut_agent.main import main
from joulecut_wire import codec
from joulecut_wire.v1 import agent_pb2 as pb
from joulecut_wire.v1 import agent_pb2_grpc

ROLES = ("observe", "clear", "release", "apply")
ROLE_OF = {
    "Describe": "observe",
    "Watch": "observe",
    "ReadSamples": "observe",
    "Health": "observe",
    "Clear": "clear",
    "Release": "release",
    "Resume": "release",
    "Apply": "apply",
    "Renew": "apply",
}
ACCESS = {
    "observe": ["observe.test", "spiffe://site/ns/*/looker", "all.test"],
    "clear": ["clear.test", "all.test"],
    "release": ["release.test", "all.test"],
    "apply": ["apply.test", "all.test"],
}
TLS = {"cert": "agent.pem", "key": "agent.key", "client_ca": "clients.pem"}


class Site:
    """An agent behind TLS, its authority, and clients by role."""

    def __init__(self, **config: Any) -> None:
        self.node = RunningAgent(cards=2, tls=TLS, **config)
        self.folder = self.node.home
        self.ca = Authority(self.folder, "ca")
        self.install(self.ca.leaf("server", "IP:127.0.0.1"), self.ca.cert)

    def install(self, leaf: Leaf, client_ca: Path) -> None:
        for source, name in ((leaf.cert, "cert"), (leaf.key, "key"), (client_ca, "client_ca")):
            fresh = self.folder / f"{TLS[name]}.new"
            shutil.copy(source, fresh)
            fresh.replace(self.folder / TLS[name])

    @contextlib.contextmanager
    def client(
        self, leaf: Leaf, ca: Path | None = None
    ) -> Iterator[agent_pb2_grpc.AgentServiceStub]:
        with leaf.channel(self.node.ready["grpc"], ca) as channel:
            yield agent_pb2_grpc.AgentServiceStub(channel)

    def trail(self) -> list[dict[str, Any]]:
        path = self.node.state_dir / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    made = Site(access=ACCESS)
    with made.node as node:
        node.start()
        yield made


@pytest.fixture(scope="module")
def leaves(site: Site) -> dict[str, Leaf]:
    names = (*ROLES, "all", "nobody")
    return {name: site.ca.leaf(name, f"DNS:{name}.test") for name in names}


def _call(stub: Any, channel: grpc.Channel, rpc: str, uuid: str) -> Any:
    requests: dict[str, Any] = {
        "Describe": pb.DescribeRequest(),
        "Watch": pb.WatchRequest(interval_s=0.1),
        "ReadSamples": pb.ReadSamplesRequest(),
        "Clear": pb.ClearRequest(job="demo", reason="test"),
        "Release": pb.ReleaseRequest(duration_s=1e9),  # above the bound: nothing is released
        "Resume": pb.ResumeRequest(),
        "Apply": pb.ApplyRequest(
            epoch=1, job="demo", generation=1, ttl_s=30.0,
            settings=[pb.Setting(uuid=uuid, clock_max_mhz=1005)],
        ),
        "Renew": pb.RenewRequest(epoch=1, job="demo", generation=1, ttl_s=30.0),
    }  # fmt: skip
    if rpc == "Health":
        health = health_pb2_grpc.HealthStub(channel)
        return health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    answer = getattr(stub, rpc)(requests[rpc], timeout=PATIENCE_S)
    if rpc not in {"Watch", "ReadSamples"}:
        return answer
    try:
        return next(answer, None)
    finally:
        answer.cancel()


def _code(stub: Any, channel: grpc.Channel, rpc: str, uuid: str) -> str:
    try:
        _call(stub, channel, rpc, uuid)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def test_the_table_names_every_call() -> None:
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["AgentService"].methods}
    assert methods | {"Health"} == set(ROLE_OF)


@pytest.mark.parametrize("role", [*ROLES, "all", "nobody"])
def test_every_call_asks_for_its_role(site: Site, leaves: dict[str, Leaf], role: str) -> None:
    uuid = site.node.gpus.uuid(0)
    with leaves[role].channel(site.node.ready["grpc"]) as channel:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        for rpc, needed in ROLE_OF.items():
            code = _code(stub, channel, rpc, uuid)
            if role in {needed, "all"}:
                assert code not in {"PERMISSION_DENIED", "UNAUTHENTICATED", "UNAVAILABLE"}, rpc
            else:
                assert code == "PERMISSION_DENIED", (rpc, role)
        if role not in {"apply", "all"}:
            assert site.node.locked() == {}
    with site.client(leaves["all"]) as stub:
        stub.Clear(pb.ClearRequest(epoch=1), timeout=PATIENCE_S)
    assert site.node.locked() == {}


def test_describe_returns_the_callers_roles(site: Site, leaves: dict[str, Leaf]) -> None:
    looker = site.ca.leaf("uri", "URI:spiffe://site/ns/monitoring/looker", "DNS:nobody.test")
    for leaf, roles in ((leaves["observe"], ["observe"]), (leaves["all"], list(ROLES)),
                        (looker, ["observe"])):  # fmt: skip
        with site.client(leaf) as stub:
            assert list(stub.Describe(pb.DescribeRequest(), timeout=PATIENCE_S).roles) == roles


def test_a_denied_command_says_who_lacks_what_and_is_counted(
    site: Site, leaves: dict[str, Leaf]
) -> None:
    stranger = site.ca.leaf("stranger", "DNS:stranger.test")
    with stranger.channel(site.node.ready["grpc"]) as channel:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as caught:
                _call(stub, channel, "Apply", site.node.gpus.uuid(0))
            words = "apply needs the role apply; stranger.test has none"
            assert caught.value.details() == words
    lines = [entry for entry in site.trail() if entry["who"] == "stranger.test"]
    assert [(e["op"], e["result"], e["refused"]) for e in lines] == [("apply", "denied", words)], (
        "three in a row are one line"
    )
    assert 'joulecut_access_denied_total{role="apply"}' in site.node.metrics()


def test_who_may_only_clear_cannot_shut_the_controller_out(
    site: Site, leaves: dict[str, Leaf]
) -> None:
    """An epoch is kept for ever, and every older one refused."""
    with site.client(leaves["all"]) as stub:
        stub.Clear(pb.ClearRequest(epoch=7, job="demo"), timeout=PATIENCE_S)
    with site.client(leaves["clear"]) as stub:
        with pytest.raises(grpc.RpcError) as caught:
            stub.Clear(pb.ClearRequest(epoch=2**64 - 1, job="demo"), timeout=PATIENCE_S)
        stub.Clear(pb.ClearRequest(epoch=7, job="demo"), timeout=PATIENCE_S)
    words = "clear with a new epoch needs the role apply; clear.test has clear"
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert caught.value.details() == words
    assert site.trail()[-2]["refused"] == words
    with site.client(leaves["observe"]) as stub:
        assert stub.Describe(pb.DescribeRequest(), timeout=PATIENCE_S).epoch_seen == 7


@pytest.mark.parametrize("fault", ["another authority", "expired", "none", "plain text"])
def test_without_a_good_certificate_there_is_no_connection(
    site: Site, tmp_path: Path, fault: str
) -> None:
    address = site.node.ready["grpc"]
    if fault == "another authority":
        leaf = Authority(tmp_path, "other").leaf("all", "DNS:all.test")
        channel = leaf.channel(address, site.ca.cert)
    elif fault == "expired":
        channel = site.ca.leaf("old", "DNS:all.test", expired=True).channel(address)
    elif fault == "none":
        trust = grpc.ssl_channel_credentials(site.ca.cert.read_bytes())
        channel = grpc.secure_channel(address, trust)
    else:
        channel = grpc.insecure_channel(address)
    with channel:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        for rpc in ("Describe", "Apply", "Clear"):
            assert _code(stub, channel, rpc, site.node.gpus.uuid(0)) == "UNAVAILABLE"
    assert site.node.locked() == {}


def test_a_certificate_that_has_no_name_has_no_role() -> None:
    with (made := Site()).node as node:  # no section access: every name may observe
        node.start()
        nameless = made.ca.leaf("nameless", subject="/O=Acme")
        named = made.ca.leaf("named", subject="/CN=alice")
        uuid = node.gpus.uuid(0)
        with nameless.channel(node.ready["grpc"]) as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)
            assert _code(stub, channel, "Describe", uuid) == "UNAUTHENTICATED"
        with named.channel(node.ready["grpc"]) as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)
            assert _code(stub, channel, "Describe", uuid) == "OK"
            for rpc in ("Apply", "Clear", "Release"):
                assert _code(stub, channel, rpc, uuid) == "PERMISSION_DENIED"


def _ends_unix_s(node: RunningAgent) -> float:
    gauge = 'joulecut_certificate_expires_timestamp_seconds{use="grpc"} '
    (line,) = (line for line in node.metrics().splitlines() if line.startswith(gauge))
    return float(line.split()[1])


def test_certificates_rotate_while_a_watch_runs(tmp_path: Path) -> None:
    with (made := Site(access=ACCESS)).node as node:
        node.start()
        old = made.ca.leaf("all", "DNS:all.test")
        with made.client(old) as stub:
            watch = stub.Watch(pb.WatchRequest(interval_s=0.1), timeout=4 * PATIENCE_S)
            before = codec.decode_tick(next(watch)).sequence

            # Half of a new certificate: what was read before stays, and one line says so.
            whole = (made.folder / "agent.pem").read_bytes()
            (made.folder / "agent.pem").write_bytes(whole[: len(whole) // 2])

            def said() -> bool:
                with made.client(old) as another:
                    assert another.Describe(pb.DescribeRequest(), timeout=PATIENCE_S).node == "n1"
                return "the previous files stay in force" in node.log

            eventually("the complaint", said)
            with made.client(old) as another:
                another.Describe(pb.DescribeRequest(), timeout=PATIENCE_S)
            assert node.log.count("the previous files stay in force") == 1
            assert _ends_unix_s(node) == datetime(2049, 12, 31, tzinfo=UTC).timestamp()

            fresh = Authority(tmp_path, "fresh")
            renewed = fresh.leaf("server2", "IP:127.0.0.1", end="20480229120000Z")
            made.install(renewed, fresh.cert)
            new = fresh.leaf("all", "DNS:all.test")

            def taken() -> bool:
                with new.channel(node.ready["grpc"]) as channel:
                    fresh_stub = agent_pb2_grpc.AgentServiceStub(channel)
                    return _code(fresh_stub, channel, "Describe", "") == "OK"

            eventually("the new certificates", taken)
            ends = datetime(2048, 2, 29, 12, tzinfo=UTC)
            assert _ends_unix_s(node) == ends.timestamp()
            with old.channel(node.ready["grpc"], fresh.cert) as channel:
                old_stub = agent_pb2_grpc.AgentServiceStub(channel)
                assert _code(old_stub, channel, "Describe", "") == "UNAVAILABLE"
            eventually(
                "the stream goes on", lambda: codec.decode_tick(next(watch)).sequence > before
            )
            watch.cancel()


def test_the_local_socket_is_for_its_group() -> None:
    listen = {"metrics": "127.0.0.1:0", "grpc": "127.0.0.1:0", "socket": "jobs.sock",
              "grpc_socket": "agent.sock"}  # fmt: skip
    with (made := Site(listen=listen, access={})).node as node:
        node.start()
        path = node.home / "agent.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with grpc.insecure_channel(f"unix:{path}") as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)
            assert list(stub.Describe(pb.DescribeRequest(), timeout=PATIENCE_S).roles) == list(
                ROLES
            )
            assert _code(stub, channel, "Apply", node.gpus.uuid(0)) == "OK"
        assert node.locked() == {0: 1005}
        (line,) = made.trail()
        assert (line["op"], line["who"], line["via"]) == ("apply", "local socket", "socket")

        with RunningAgent(cards=1, listen={**listen, "grpc_socket": str(path)}) as second:
            second.process = second._spawn("run")
            assert second.process.wait(timeout=PATIENCE_S) == 1
            assert "another agent does" in second.log
        node.kill(signal.SIGTERM)
        assert not path.exists()


@pytest.mark.parametrize("access", [None, {"loopback": list(ROLES)}, {"loopback": []}])
def test_over_tcp_without_a_certificate_nobody_commands(access: dict[str, Any] | None) -> None:
    """Whatever the configuration says; the unix socket beside it takes the same commands."""
    with RunningAgent(cards=1, **({} if access is None else {"access": access})) as node:
        node.start()
        uuid, observes = node.gpus.uuid(0), access is None or "observe" in access["loopback"]
        with grpc.insecure_channel(node.ready["grpc"]) as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)
            for rpc, role in ROLE_OF.items():
                wanted = "OK" if role == "observe" and observes else "PERMISSION_DENIED"
                assert _code(stub, channel, rpc, uuid) == wanted, rpc
            if observes:
                about = stub.Describe(pb.DescribeRequest(), timeout=PATIENCE_S)
                assert list(about.roles) == ["observe"]
            for epoch in (1, 2**20):
                with pytest.raises(grpc.RpcError, match=r"or the socket listen\.grpc_socket"):
                    stub.Clear(pb.ClearRequest(epoch=epoch), timeout=PATIENCE_S)
        assert (node.locked(), node.describe().epoch_seen) == ({}, 0)
        assert ("without a certificate: ignored" in node.log) == (access == {"loopback": [*ROLES]})
        assert node.describe().roles == ROLES
        assert node.apply({0: 1005})[0].accepted
        assert node.locked() == {0: 1005}


def test_the_socket_that_nobody_named_is_for_the_agents_own_group() -> None:
    with RunningAgent(cards=1) as node:
        node.start()
        path = node.state_dir / "grpc.sock"
        assert node.ready["grpc_socket"] == str(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert path.stat().st_gid == os.getegid()
    with RunningAgent(cards=1) as blocked:
        (blocked.state_dir / "grpc.sock").write_text("no socket")
        blocked.start()  # it measures all the same
        assert blocked.ready["grpc_socket"] == "-"
        assert "no command is taken on this node: " in blocked.log


AS_ANOTHER_USER = """
import os, sys
import grpc  # its files may be unreadable for that user
from joulecut_wire.v1 import agent_pb2 as pb, agent_pb2_grpc
groups, uid, address, uuid = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3], sys.argv[4]
os.setgroups([int(group) for group in groups if group])
os.setgid(65534)
os.setuid(uid)
stub = agent_pb2_grpc.AgentServiceStub(grpc.insecure_channel(address))
settings = [pb.Setting(uuid=uuid, clock_max_mhz=210)]
calls = (
    lambda: stub.Apply(pb.ApplyRequest(
        epoch=1, job="demo", generation=1, ttl_s=30.0, settings=settings), timeout=60),
    lambda: stub.Clear(pb.ClearRequest(epoch=7), timeout=60),
)
for call in calls:
    try:
        print("OK" if all(r.accepted for r in call().results) else "refused")
    except grpc.RpcError as error:
        print(error.code().name)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_of_the_users_of_a_node_only_the_group_commands() -> None:
    group, nobody = 4242, 65534
    with RunningAgent(cards=1) as node:
        node.start()
        node.home.chmod(0o755)
        os.chown(node.state_dir / "grpc.sock", -1, group)

        def said(address: str, groups: str) -> list[str]:
            words = [groups, str(nobody), address, node.gpus.uuid(0)]
            done = subprocess.run(
                [sys.executable, "-c", AS_ANOTHER_USER, *words],
                capture_output=True, text=True, timeout=PATIENCE_S, check=True,
            )  # fmt: skip
            return done.stdout.split()

        for door in (node.ready["grpc"], node.address):
            assert "OK" not in said(door, "")
            assert (node.locked(), node.describe().epoch_seen) == ({}, 0)
        assert said(node.ready["grpc"], str(group)) == 2 * ["PERMISSION_DENIED"]
        assert said(node.address, str(group)) == ["OK", "OK"]
        assert node.describe().epoch_seen == 7


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"listen": {"grpc": "0.0.0.0:0"}}, "0.0.0.0 without encryption"),
        ({"tls": {"cert": "agent.pem", "key": "agent.key"}}, "tls.client_ca: key missing"),
        ({"tls": TLS}, "agent.pem: No such file"),
        ({"tls": {**TLS, "ca": "x"}}, "tls.ca: unknown key"),
        ({"access": {"aply": ["a"]}}, "access.aply: unknown key"),
        ({"access": {"apply": "a"}}, "access.apply: not a list"),
        ({"access": {"apply": [1]}}, "access.apply: 1 is not text"),
        ({"access": {"loopback": ["write"]}}, "access.loopback"),
        ({"audit": {"bytes_max": 1}}, "audit.bytes_max: 1"),
        ({"web_config": "missing.yaml"}, "missing.yaml: No such file"),
        ({"listen": {"grpc_socket_group": 3}}, "listen.grpc_socket_group: 3"),
        ({"listen": {"socket": "a", "grpc_socket": "a"}}, "is listen.socket too"),
    ],
)  # fmt: skip
def test_what_would_open_a_door_by_mistake_is_refused_at_start(
    config: dict[str, Any], sentence: str
) -> None:
    with RunningAgent(cards=1, **config) as node:
        argv = ("run", "--config", str(node.write_config()))
        if "No such file" in sentence:  # found once the keeper has begun: a process of its own
            done = subprocess.run([COMMAND, *argv], capture_output=True, text=True, check=False)
        else:
            done = commands.run(*argv, main=main)
    line = [text for text in done.stderr.splitlines() if sentence in text]
    assert (done.returncode, len(line)) == (2, 1), done.stderr


def test_a_stranger_on_the_port_blocks_no_client(site: Site, leaves: dict[str, Leaf]) -> None:
    host, _, port = site.node.ready["grpc"].rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            line = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
            line.sendall(b"\x16\x03\x01")
        with site.client(leaves["observe"]) as stub:
            assert stub.Describe(pb.DescribeRequest(), timeout=PATIENCE_S).node == "n1"
