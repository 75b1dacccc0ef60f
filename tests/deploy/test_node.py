"""The node that the install script makes, as processes of its users on simulated GPUs.

Same files, users, groups and modes, no capabilities. Only paths, ports, the device and the name of
the group are exchanged.
"""

import grp
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
import yaml
from manifests import ROOT
from other_users import Home, become, python_for_others
from running_agent import PATIENCE_S, eventually

AGENT, KEEPERS, STRANGER = 64001, 64002, 64003  # user and group ids that nothing else has
COMMANDERS = grp.getgrgid(1).gr_name  # any group that this machine knows, for `joulecut`
DIRECTORIES = (
    ("/var/lib/joulecut-agent", "agent-state", 0o755, AGENT, AGENT),
    ("/var/lib/joulecut", "state", 0o750, 0, KEEPERS),
    ("/run/joulecut-keeper", "journal", 0o700, 0, KEEPERS),
    ("/run/joulecut", "run", 0o1775, 0, AGENT),
)
CLIENT = """
import sys
import grpc
from joulecut_wire.v1 import agent_pb2 as pb, agent_pb2_grpc
stub = agent_pb2_grpc.AgentServiceStub(grpc.insecure_channel(sys.argv[1]))
settings = [pb.Setting(uuid=sys.argv[2], clock_max_mhz=210)]
try:
    print("roles", *stub.Describe(pb.DescribeRequest(), timeout=60).roles)
    request = pb.ApplyRequest(epoch=9, job="demo", generation=1, ttl_s=60.0, settings=settings)
    print([r.accepted for r in stub.Apply(request, timeout=60).results])
except grpc.RpcError as error:
    print(error.code().name)
"""


class Node(Home):
    def __init__(self, python: str) -> None:
        super().__init__(python, cards=1)
        self.python = python
        for _, name, mode, uid, gid in DIRECTORIES:
            (self.home / name).mkdir()
            os.chown(self.home / name, uid, gid)
            (self.home / name).chmod(mode)
        install = ROOT / "deploy" / "systemd" / "install"
        argv = [str(install), "--root", str(self.home), "--role", "agent"]
        subprocess.run(argv, check=True, capture_output=True)
        for name in ("agent.yaml", "keeper.yaml"):
            path = self.home / "etc/joulecut" / name
            text = path.read_text()
            for theirs, ours, *_ in DIRECTORIES:
                text = text.replace(theirs, str(self.home / ours))
            data = self.here(yaml.safe_load(text))
            if "listen" in data:
                data["listen"]["grpc_socket_group"] = COMMANDERS
            path.write_text(yaml.safe_dump(data))

    def keeper(self, *words: str) -> list[str]:
        config = self.home / "etc/joulecut/keeper.yaml"
        return become(0, KEEPERS, (), self.command, *words, "--config", config)

    def start(self, argv: list[str]) -> subprocess.Popen[str]:
        return self.spawn(argv, umask=0o077)

    def start_agent(self) -> dict[str, str]:
        config = self.home / "etc/joulecut/agent.yaml"
        groups = (KEEPERS, grp.getgrnam(COMMANDERS).gr_gid)
        agent = become(AGENT, AGENT, groups, self.command, "run", "--config", config)
        return self.ready(self.start(agent))

    def run(self, argv: list[str]) -> str:
        done = subprocess.run(
            argv, env=self.env, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        return done.stdout + done.stderr

    def asked(self, groups: tuple[int, ...], address: str) -> list[str]:
        """What Describe and Apply answer to a user with these groups."""
        argv = [self.python, "-c", CLIENT, address, self.gpus.uuid(0)]
        return self.run(become(STRANGER, STRANGER, groups, *argv)).splitlines()


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node(python_for_others())
    yield made
    made.close()


def test_of_the_users_of_an_installed_node_only_the_group_commands(node: Node) -> None:
    keeper = node.start(node.keeper("keeper"))
    eventually("the keeper's socket", (node.home / "state" / "keeper.sock").exists)
    ready = node.start_agent()
    local, commanders = f"unix:{ready['grpc_socket']}", grp.getgrnam(COMMANDERS).gr_gid

    assert node.asked((), ready["grpc"]) == ["roles observe", "PERMISSION_DENIED"]
    assert node.asked((), local) == ["UNAVAILABLE"]
    assert node.gpus.asked_mhz(0)[1] == 0
    assert node.asked((commanders,), ready["grpc"]) == ["roles observe", "PERMISSION_DENIED"]
    assert node.asked((commanders,), local) == ["roles observe clear release apply", "[True]"]
    assert node.gpus.asked_mhz(0)[1] == 210

    # Neither the agent's user nor the group may touch what the keeper trusts.
    for path in ("journal/journal", "state/journal", "state/stop", "state/mine"):
        for uid, groups in ((AGENT, (KEEPERS, commanders)), (STRANGER, (commanders,))):
            attempt = become(uid, uid, groups, "sh", "-c", f": >>{node.home / path}")
            assert subprocess.run(attempt, capture_output=True, check=False).returncode != 0
    assert not (node.home / "state" / "audit.jsonl").exists()
    assert (node.home / "agent-state" / "audit.jsonl").stat().st_uid == AGENT

    keeper.send_signal(signal.SIGKILL)
    keeper.wait(timeout=PATIENCE_S)
    assert node.gpus.asked_mhz(0)[1] == 210
    assert "restored" in node.run(node.keeper("restore"))
    assert node.gpus.asked_mhz(0)[1] == 0
