"""S1, S8 and S12 on a real agent: a GPU that changes hands is given back, a shared one is not
taken, and nobody speaks for what is another's.
"""

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven_agent import agent_on, fake_driver
from fake_kubelet import FakeApi, FakeKubelet
from running_agent import PATIENCE_S, RunningAgent, accepted, eventually

from fixture import FakeNvml
from joulecut_agent.config import HOST_VARIABLE, PORT_VARIABLE
from joulecut_wire.messages import Allocation

ROOT = Path(__file__).resolve().parents[2]
SLURM = ROOT / "deploy" / "slurm"
EPILOG, PROLOG = SLURM / "epilog.d" / "50-joulecut.sh", SLURM / "prolog.d" / "50-joulecut.sh"
UID = "12345678-1234-1234-1234-1234567890ab"


def _slurm_node(cards: int = 2) -> RunningAgent:
    node = RunningAgent(cards=cards, attribution={"slurm": {"mapping_dir": "map"}})
    (node.home / "map").mkdir()
    return node


def _script(node: RunningAgent, script: Path, job: str, gpus: str, wait_s: int = 90) -> str:
    words = {
        "JOULECUT_SLURM_DIR": str(node.home / "map"),
        "JOULECUT_STATE_DIR": str(node.state_dir),
        "JOULECUT_WAIT_S": str(wait_s),
        "JOULECUT_ASK_S": "0",
        "SLURM_JOB_ID": job,
        "SLURM_JOB_GPUS": gpus,
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run(
        [script], env=words, capture_output=True, text=True, check=True, timeout=2 * PATIENCE_S
    )
    assert done.stdout == ""
    return done.stderr


def _owners(node: RunningAgent) -> dict[int, str]:
    """Job by GPU index, as the one allocation series of each GPU tells it."""
    found = {}
    lines = [
        line for line in node.metrics().splitlines() if line.startswith("joulecut_gpu_allocation_i")
    ]
    for index in range(node.gpus.cards):
        (mine,) = [line for line in lines if f'uuid="{node.gpus.uuid(index)}"' in line]
        found[index] = mine.partition('workload="')[2].partition('"')[0]
    assert len(lines) == node.gpus.cards
    return found


def _restores(node: RunningAgent, index: int) -> int:
    wanted = f'joulecut_control_restores_total{{cause="job_ended",uuid="{node.gpus.uuid(index)}"}}'
    for line in node.metrics().splitlines():
        if line.startswith(wanted):
            return int(float(line.rpartition(" ")[2]))
    return 0


def test_the_end_of_a_slurm_job_gives_its_gpus_back_whatever_the_lease_is_called() -> None:
    with _slurm_node() as node:
        _script(node, PROLOG, "4711", "0")
        node.start()
        assert node.apply({0: 1005, 1: 1005}, job="gpt3-by-policy")[0].accepted
        eventually("its owner", lambda: _owners(node) == {0: "4711", 1: ""})
        eventually("it is held", lambda: " held 4711" in (node.state_dir / "owners").read_text())
        began_s = time.monotonic()
        (node.home / "map" / "0").unlink()
        eventually("it is given back", lambda: 0 not in node.locked())
        print(f"given back {time.monotonic() - began_s:.2f} s after the job's end")
        assert 1 in node.locked()  # nobody's before and nobody's now
        eventually("the restore is counted", lambda: _restores(node, 0) == 1)
        eventually("and said", lambda: "has another owner" in node.log)
        assert _owners(node) == {0: "", 1: ""}


def test_the_next_job_does_not_inherit_a_clock() -> None:
    with _slurm_node() as node:
        _script(node, PROLOG, "4711", "0,1")
        node.start()
        assert node.apply({0: 1005, 1: 1005})[0].accepted
        (node.home / "map" / "0").write_text("4712\n")
        eventually("it is given back", lambda: set(node.locked()) == {1})
        eventually("the next owner", lambda: _owners(node) == {0: "4712", 1: "4711"})
        assert node.apply({0: 1005}, generation=2, job="next")[0].accepted


def test_an_epilog_returns_when_the_gpus_are_restored() -> None:
    with _slurm_node() as node:
        node.start()
        assert _script(node, PROLOG, "4711", "0,1") == ""
        assert _script(node, PROLOG, "4712", "1") == ""
        assert (node.home / "map" / "1").read_text() == "4711\n4712\n"
        assert _script(node, EPILOG, "4712", "1") == ""
        eventually("one owner each", lambda: _owners(node) == {0: "4711", 1: "4711"})
        generations = itertools.count(1)

        def both_held() -> bool:
            """What is asked in the moment of a hand-over is given back: as a controller, again."""
            if len(node.locked()) < 2:
                assert node.apply({0: 1005, 1: 1005}, generation=next(generations))[0].accepted
            return (node.state_dir / "owners").read_text().count("held") == 2

        eventually("both are held", both_held)
        assert _script(node, EPILOG, "4711", "0,1") == ""
        assert node.locked() == {}
        assert list((node.home / "map").iterdir()) == []


def test_an_epilog_does_not_wait_for_an_agent_that_is_gone_nor_for_ever() -> None:
    with _slurm_node() as node:
        _script(node, PROLOG, "4711", "0")
        node.start()
        eventually("its owner", lambda: _owners(node)[0] == "4711")
        board = (node.state_dir / "owners").read_text()
        node.kill()
        assert (node.state_dir / "owners").read_text() == board
        assert _script(node, EPILOG, "4711", "0") == ""
        (node.state_dir / "owners").write_text(f"agent {os.getpid()}\n0 GPU-a held 4711\n")
        (node.home / "map" / "0").write_text("4711\n")
        assert "not restored after 1 s" in _script(node, EPILOG, "4711", "0", wait_s=1)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApi]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here (Debian package openssl)")
    with FakeApi(tmp_path) as api:
        yield api


@pytest.fixture
def kubernetes_node(api: FakeApi) -> RunningAgent:
    credentials = str(api.credentials)
    kubelet = {"pod_resources": "kubelet.sock", "pods": "api", "credentials": credentials}
    where = {HOST_VARIABLE: "127.0.0.1", PORT_VARIABLE: str(api.port)}
    return RunningAgent(
        cards=2,
        env=os.environ | where,
        attribution={
            "kubernetes": kubelet,
            "proc": "proc",
            "cgroups": "cgroup",
        },
    )


def test_a_pod_s_end_gives_its_gpu_back_and_a_shared_gpu_is_not_taken(
    kubernetes_node: RunningAgent,
) -> None:
    with kubernetes_node as node, FakeKubelet(node.home / "kubelet.sock") as kubelet:
        first, second = node.gpus.uuid(0), node.gpus.uuid(1)
        kubelet.give("train", "gpt-0", [first])
        kubelet.give("web", "a", [f"{second}::0"])
        kubelet.give("web", "b", [f"{second}::1"])
        node.start()
        owners = (
            Allocation(first, "gpt-0", "train", "gpt-0", "kubernetes"),
            Allocation(second, "shared", source="kubernetes", labels={"joulecut/owners": "2"}),
        )
        eventually("both owners", lambda: node.watch().allocations == owners)
        shared = f'joulecut_gpu_owners{{uuid="{second}"}} 2.0'
        eventually("counted", lambda: shared in node.metrics())
        described = {gpu.uuid: gpu for gpu in node.describe().gpus}
        assert described[first].controllable
        assert not described[second].controllable
        assert described[second].reason.startswith("shared by 2 owners")
        refused = node.apply({1: 1005})[0]
        assert not refused.accepted
        assert "observed, not controlled" in refused.reason
        assert node.apply({0: 1005}, generation=2)[0].accepted
        kubelet.take("train", "gpt-0")
        eventually("it is given back", lambda: not node.locked())
        # A lease that is older than the sharing ends with it.
        assert node.apply({0: 1005}, generation=3)[0].accepted
        kubelet.give("train", "gpt-1", [f"{first}::0"])
        eventually("it is given back", lambda: not node.locked())


SPEAK = """
import sys
from joulecut import Reporter
print(sys.argv[1], flush=True)
sys.stdin.readline()
Reporter("mine", sys.argv[1], 0, sys.argv[2]).iteration(1, 0.5, {})
print("done", flush=True)
sys.stdin.readline()
"""


def test_only_a_pod_s_own_processes_speak_for_its_gpu(
    kubernetes_node: RunningAgent, api: FakeApi
) -> None:
    with kubernetes_node as node, FakeKubelet(node.home / "kubelet.sock") as kubelet:
        uuid = node.gpus.uuid(0)
        kubelet.give("train", "gpt-0", [uuid])
        api.run("train", "gpt-0", UID, {"app": "gpt"})
        node.start()
        eventually("its uid", lambda: node.watch().allocations[0].labels == {"app": "gpt"})
        for place, result in ((f"/kubepods/pod{UID}/0", "accepted"), ("/", "refused")):
            process = subprocess.Popen(
                [sys.executable, "-c", SPEAK, uuid, node.ready["socket"]],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            )  # fmt: skip
            with process:
                assert process.stdin is not None
                folder = node.home / "proc" / str(process.pid)
                folder.mkdir(parents=True)
                (folder / "cgroup").write_text(f"0::{place}\n")
                process.stdin.write("\n")
                counted = f'joulecut_job_reports_total{{result="{result}"}} 1.0'
                eventually("counted", lambda counted=counted: counted in node.metrics())
                process.stdin.write("\n")
        assert 'job_reports_refused_total{reason="not_owner"} 1.0' in node.metrics()
        assert _owners(node)[0] == "gpt-0"  # what a job says of itself names no owner of a pod


def test_whoever_is_bound_to_nothing_may_speak_where_the_site_wants_it() -> None:
    with RunningAgent(
        cards=1,
        attribution={"slurm": {"mapping_dir": "map"}},
        reports={"bind": "any"},
    ) as node:
        (node.home / "map").mkdir()
        (node.home / "map" / "0").write_text("4711\n")
        node.start()
        subprocess.run(
            [sys.executable, "-c", SPEAK, node.gpus.uuid(0), node.ready["socket"]],
            input="\n\n", text=True, check=True, capture_output=True,
        )  # fmt: skip
        eventually("taken", lambda: 'result="accepted"} 1.0' in node.metrics())


@pytest.fixture
def driver() -> Iterator[FakeNvml]:
    with fake_driver(2) as fake:
        yield fake


def test_the_end_of_a_plain_process_gives_its_gpu_back(driver: FakeNvml) -> None:
    with agent_on(driver) as node:
        worker = subprocess.Popen(["/bin/sleep", "600"])
        try:
            driver.set_processes(0, {worker.pid: 1 << 30})
            node.start()
            uuid = driver.uuids[0]
            (owner,) = eventually("its owner", lambda: node.watch().allocations)
            assert (owner.uuid, owner.source) == (uuid, "process")
            assert owner.job
            clock_mhz = node.describe().gpus[0].clocks_mhz[3]
            assert accepted(node.order(uuid, clock_mhz=clock_mhz))
            assert driver.locks()[0] is not None
        finally:
            worker.kill()
            worker.wait()
        eventually("it is given back", lambda: driver.locks()[0] is None)
        eventually("nobody's", lambda: not node.watch().allocations)
