"""The pod that the chart describes, as processes of its users on simulated GPUs.

Same files, same users and groups, no capabilities, the container's own shell lines. Only paths,
ports and the device are exchanged.
"""

import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from certificates import Authority, Leaf
from manifests import chart, containers, one
from other_users import Home, become, python_for_others
from running_agent import PATIENCE_S, eventually

from joulecut_wire import codec
from joulecut_wire.messages import Command, Setting
from joulecut_wire.v1 import agent_pb2_grpc

NAME = "agent.joulecut.joulecut"


def as_container(container: dict[str, Any], *argv: str | Path) -> list[str]:
    """`argv` with user, group and capabilities of a container, but for SYS_ADMIN: the simulated
    driver does not ask for it, and whoever runs the tests may not have it.
    """
    context = container["securityContext"]
    assert context["capabilities"]["drop"] == ["ALL"]
    return become(context["runAsUser"], context["runAsGroup"], (), *argv)


class Pod(Home):
    """Folders, certificates and processes of one pod."""

    def __init__(self, python: str) -> None:
        super().__init__(python, cards=2)
        self.objects = chart("pod")
        spec = one(self.objects, "DaemonSet")["spec"]["template"]["spec"]
        self.containers = {c["name"]: c for c in containers(spec)}
        # As the kubelet makes them: root's, for others to look at.
        for name in ("state", "agent-state", "run", "journal", "etc", "tls", "controller"):
            (self.home / name).mkdir(mode=0o755)
        ca = Authority(self.home / "tls", "ca")
        self.agent = ca.leaf("agent", f"DNS:{NAME}")
        self.controller = ca.leaf("controller", "DNS:controller.joulecut.joulecut")
        self.stranger = ca.leaf("stranger", "DNS:stranger")
        for path in (self.home / "tls").iterdir():
            path.chmod(0o644)

    def moved(self, text: str, leaf: Leaf | None = None) -> str:
        """`text` with the container's paths exchanged for ours."""
        if leaf:
            for name, path in (("tls.crt", leaf.cert), ("tls.key", leaf.key), ("ca.crt", leaf.ca)):
                text = text.replace(f"/etc/joulecut-tls/{name}", str(path))
        for theirs, ours in (
            ("/var/lib/joulecut-agent", "agent-state"),
            ("/var/lib/joulecut", "state"),
            ("/run/joulecut-keeper", "journal"),
            ("/run/joulecut", "run"),
            ("/etc/joulecut", "etc"),
        ):
            text = text.replace(theirs, str(self.home / ours))
        return text

    def write_configs(self) -> None:
        for name, text in one(self.objects, "ConfigMap", "-agent")["data"].items():
            data = self.here(yaml.safe_load(self.moved(text, self.agent)))
            (self.home / "etc" / name).write_text(yaml.safe_dump(data))

    def shell(self, name: str) -> subprocess.CompletedProcess[str]:
        """Runs an init container's own command to its end."""
        container = self.containers[name]
        argv = [self.moved(part) for part in container["command"]]
        return subprocess.run(
            as_container(container, *argv),
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE_S,
        )

    def start(self, name: str) -> subprocess.Popen[str]:
        container = self.containers[name]
        argv = [self.moved(part) for part in container["args"]]
        return self.spawn(as_container(container, self.command, *argv))

    def start_agent(self) -> dict[str, str]:
        return self.ready(self.start("agent"))

    def locked(self) -> list[int]:
        return [index for index in range(2) if self.gpus.asked_mhz(index)[1]]


@pytest.fixture
def pod() -> Iterator[Pod]:
    made = Pod(python_for_others())
    yield made
    made.close()


def _apply(pod: Pod, leaf: Leaf, address: str, mhz: int) -> bool:
    import grpc  # noqa: PLC0415

    credentials = grpc.ssl_channel_credentials(
        leaf.ca.read_bytes(), leaf.key.read_bytes(), leaf.cert.read_bytes()
    )
    options = (("grpc.ssl_target_name_override", NAME), ("grpc.enable_http_proxy", 0))
    with grpc.secure_channel(address, credentials, options=options) as channel:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        settings = tuple(Setting(pod.gpus.uuid(i), mhz) for i in range(2))
        command = codec.encode_command(Command(10**6, "demo", 1, 60.0, settings, "test"))
        try:
            results = codec.decode_results(stub.Apply(command, timeout=PATIENCE_S))
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED, error
            return False
        return all(result.accepted for result in results)


def test_two_users_hold_a_lease_and_a_killed_keeper_is_made_good(pod: Pod) -> None:
    pod.write_configs()
    assert pod.shell("prepare").returncode == 0
    keeper = pod.start("keeper")
    eventually("the keeper's socket", (pod.home / "state" / "keeper.sock").exists)
    ready = pod.start_agent()
    mhz = pod.gpus.sku.clocks_mhz[len(pod.gpus.sku.clocks_mhz) // 2]

    assert not _apply(pod, pod.stranger, ready["grpc"], mhz)
    assert _apply(pod, pod.controller, ready["grpc"], mhz)
    assert pod.locked() == [0, 1]

    def keeper_shows() -> bool:
        url = f"http://{ready['metrics']}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return "joulecut_keeper_up 1.0" in answer.read().decode()

    eventually("the keeper shows", keeper_shows)

    # What the agent's user may not do to the keeper, and what others may see.
    for path in ("journal/journal", "state/journal", "state/mine"):
        attempt = as_container(pod.containers["agent"], "sh", "-c", f": >>{pod.home / path}")
        assert subprocess.run(attempt, capture_output=True, check=False).returncode != 0
    assert (pod.home / "run" / "jobs.sock").stat().st_mode & 0o777 == 0o666
    assert (pod.home / "agent-state" / "audit.jsonl").exists()

    keeper.send_signal(signal.SIGKILL)
    keeper.wait(timeout=PATIENCE_S)
    assert pod.locked() == [0, 1]
    done = pod.shell("restore")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("restored") == 2
    assert pod.locked() == []


def test_the_end_of_the_pod_gives_everything_back(pod: Pod) -> None:
    pod.write_configs()
    pod.shell("prepare")
    keeper = pod.start("keeper")
    eventually("the keeper's socket", (pod.home / "state" / "keeper.sock").exists)
    ready = pod.start_agent()
    assert _apply(pod, pod.controller, ready["grpc"], pod.gpus.sku.clocks_mhz[1])
    hook = pod.containers["keeper"]["lifecycle"]["preStop"]["exec"]["command"]
    done = subprocess.run(
        as_container(pod.containers["keeper"], pod.command, *map(pod.moved, hook[1:])),
        env=pod.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert pod.locked() == []
    keeper.terminate()
    assert keeper.wait(timeout=PATIENCE_S) == 0


def test_the_controller_of_the_chart_meets_the_agent_of_the_chart(pod: Pod) -> None:
    pod.write_configs()
    pod.shell("prepare")
    pod.start("keeper")
    eventually("the keeper's socket", (pod.home / "state" / "keeper.sock").exists)
    address = pod.start_agent()["grpc"]
    folder = pod.home / "controller"
    for name, text in one(pod.objects, "ConfigMap", "-controller")["data"].items():
        text = pod.moved(text, pod.controller).replace("127.0.0.1:9431", address)  # noqa: PLW2901
        (folder / name).write_text(text.replace("0.0.0.0:9440", "127.0.0.1:0"))
    controller = subprocess.Popen(
        [
            Path(sys.executable).with_name("joulecut-controller"),
            "--config",
            folder / "controller.yaml",
        ],
        stdout=subprocess.PIPE,
        stderr=pod.log,
        text=True,
    )
    pod.processes.append(controller)
    assert controller.stdout
    line = controller.stdout.readline()
    assert "https=" in line, (pod.home / "log").read_text()
    url = "https://" + line.split("https=")[1].split()[0]
    context = ssl.create_default_context(cafile=str(pod.controller.ca))
    context.check_hostname = False  # by address, as a kubelet does

    def connected() -> bool:
        with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S, context=context) as found:
            return 'joulecut_reconcile_agents{state="connected"} 1.0' in found.read().decode()

    def well() -> bool:
        try:
            urllib.request.urlopen(f"{url}/healthz", timeout=PATIENCE_S, context=context).close()
        except urllib.error.HTTPError as error:
            error.close()
            return False
        return True

    eventually("the agent is connected", connected)
    eventually("the controller is well", well)
