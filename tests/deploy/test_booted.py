"""The units as the install script places them, under a systemd that has booted."""

import time
from collections.abc import Iterator

import pytest
from booted_machine import PREFIX, SITE, BootedMachine
from driven_agent import fake_driver
from manifests import ROOT
from other_users import PACKAGES
from running_agent import eventually

from fixture import FakeNvml

pytestmark = pytest.mark.long
INSTALL = str(ROOT / "deploy" / "systemd" / "install")
KEEPER, AGENT, CONTROLLER = (
    f"joulecut-{name}.service" for name in ("keeper", "agent", "controller")
)
CLOCK_MHZ = 1005
ASK = """
import sys
import grpc
from joulecut_wire.v1 import agent_pb2 as pb, agent_pb2_grpc
stub = agent_pb2_grpc.AgentServiceStub(grpc.insecure_channel("unix:/run/joulecut/agent.sock"))
try:
    described = stub.Describe(pb.DescribeRequest(), timeout=20)
    setting = pb.Setting(uuid=described.gpus[0].uuid, clock_max_mhz=int(sys.argv[1]))
    request = pb.ApplyRequest(
        epoch=1, job="demo", generation=int(sys.argv[2]), ttl_s=60.0, settings=[setting])
    print([(r.accepted, r.reason) for r in stub.Apply(request, timeout=20).results])
except grpc.RpcError as error:
    print(error.code().name)
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[FakeNvml]:
    with fake_driver(2) as made:
        made.path.parent.chmod(0o755)
        made.path.chmod(0o666)
        yield made


@pytest.fixture(scope="module")
def machine(driver: FakeNvml) -> Iterator[BootedMachine]:
    words = {
        "LD_LIBRARY_PATH": f"{SITE}/fake", "JOULECUT_FAKE_NVML_STATE": str(driver.path),
    }  # fmt: skip
    with BootedMachine(words, driver.path.parent) as made:
        library = made.root / SITE[1:] / "fake"
        library.mkdir(parents=True)
        for path in driver.library_dir.iterdir():
            (library / path.name).write_bytes(path.read_bytes())
        said = made.run(INSTALL, "--role", "both", "--package", "none")
        assert "Next: look at /etc/joulecut" in said, said
        made.run("systemctl", "start", KEEPER, AGENT)
        eventually("both active", lambda: _active(made, KEEPER, AGENT))
        yield made


_generations = iter(range(1, 1_000))


def _ask(machine: BootedMachine, user: str = "nobody", groups: str = "joulecut") -> str:
    paths = ":".join(f"{SITE}/{package}" for package in (*PACKAGES, "purelib"))
    argv = ["env", f"PYTHONPATH={paths}", machine.python, "-c", ASK, str(CLOCK_MHZ)]
    return machine.run(*argv, str(next(_generations)), user=user, groups=groups).strip()


def _hold(machine: BootedMachine, driver: FakeNvml) -> None:
    """Takes a lease, and sees that the clock stays without another word."""
    eventually("accepted", lambda: _ask(machine).startswith("[(True"))
    time.sleep(1.0)
    assert driver.locks()[0] == (210, CLOCK_MHZ)


def _active(machine: BootedMachine, *units: str) -> bool:
    return all(machine.property(unit, "ActiveState") == "active" for unit in units)


def _freed(driver: FakeNvml, what: str, since_s: float) -> None:
    eventually(what, lambda: not any(driver.locks()))
    print(f"{what}: driver unlocked after {time.monotonic() - since_s:.1f} s")


def test_installed_units_survive_faults_and_an_upgrade_and_give_every_gpu_back(
    machine: BootedMachine, driver: FakeNvml
) -> None:
    assert _ask(machine, groups="") == "UNAVAILABLE", "only its group enters the socket"

    _hold(machine, driver)
    pid = machine.property(KEEPER, "MainPID")
    machine.run("kill", "-STOP", pid)
    _freed(driver, "SIGSTOP of the keeper", time.monotonic())
    eventually("another keeper", lambda: machine.property(KEEPER, "MainPID") not in {pid, "0"})
    assert "watchdog" in machine.run("journalctl", "-u", KEEPER, "--no-pager").lower()

    _hold(machine, driver)
    began_s = time.monotonic()
    machine.run("systemctl", "kill", "--signal=KILL", KEEPER)
    _freed(driver, "SIGKILL of the keeper's unit", began_s)

    _hold(machine, driver)  # an upgrade in place
    assert "kept /etc/joulecut/agent.yaml" in machine.run(INSTALL, "--package", "none")
    assert any(driver.locks())
    machine.run("systemctl", "restart", KEEPER, AGENT)
    assert not any(driver.locks())
    eventually("both active", lambda: _active(machine, KEEPER, AGENT))


def test_stopped_and_removed_units_leave_no_clock_and_the_controller_runs(
    machine: BootedMachine, driver: FakeNvml
) -> None:
    machine.run("systemctl", "start", CONTROLLER)
    _hold(machine, driver)
    machine.run("systemctl", "stop", KEEPER)
    assert not any(driver.locks())

    machine.run("systemctl", "start", KEEPER)
    page = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9440/healthz').status)"
    eventually("the controller", lambda: "200" in machine.run(machine.python, "-c", page))
    assert machine.property(CONTROLLER, "NRestarts") == "0"

    _hold(machine, driver)
    said = machine.run(INSTALL, "--remove")
    assert said.count("removed joulecut-") == 3, said
    assert not any(driver.locks())
    assert machine.property(KEEPER, "LoadState") == "not-found"
    assert PREFIX in said
