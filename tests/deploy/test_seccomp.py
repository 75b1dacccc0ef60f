"""The seccomp profiles of agent and keeper: real processes under them, and what they leave out."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from driven_agent import fake_driver
from manifests import ROOT, chart, containers, one
from running_agent import PATIENCE_S, RunningAgent, eventually

from joulecut_wire.v1 import agent_pb2 as pb

PROFILES = ROOT / "deploy" / "helm" / "joulecut" / "files" / "seccomp"
LAUNCHER = Path(__file__).with_name("under_seccomp.py")
LEFT_OUT = {
    "mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "bpf", "ptrace", "keyctl",
    "add_key", "request_key", "init_module", "finit_module", "delete_module", "kexec_load",
    "perf_event_open", "userfaultfd", "io_uring_setup", "process_vm_readv", "process_vm_writev",
    "open_by_handle_at", "mknod", "mknodat", "reboot", "swapon", "settimeofday", "clock_settime",
}  # fmt: skip


def profile(process: str) -> dict[str, Any]:
    return json.loads((PROFILES / f"{process}.json").read_text())


def launched(process: str, argv: list[str]) -> list[str]:
    """`argv` under the profile of a process."""
    try:
        ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("no libseccomp")
    return [sys.executable, str(LAUNCHER), str(PROFILES / f"{process}.json"), *argv]


class Confined(RunningAgent):
    """Its agent, and its keeper, each under its profile."""

    def _spawn(self, command: str) -> subprocess.Popen[str]:
        process = {"run": "agent"}.get(command, command)
        argv = [str(Path(sys.executable).with_name("joulecut-agent")), command]
        return subprocess.Popen(
            launched(process, [*argv, "--config", str(self.write_config())]),
            stdout=subprocess.PIPE, stderr=self._log, text=True, env=self.env,
        )  # fmt: skip


def test_agent_and_keeper_do_all_their_work_under_their_profiles() -> None:
    with fake_driver(2) as driver:
        options = {"device": "nvml", "nvml": {"permission": "driver"}}
        env = driver.environment()
        with Confined(env=env, keeper="state/keeper.sock", **options) as node:
            keeper = node.start_keeper()
            node.start()
            assert node.process is not None
            for process in (node.process, keeper):
                assert "Seccomp:\t2" in Path(f"/proc/{process.pid}/status").read_text()
            eventually("both are read", lambda: len(node.watch().gpus) == 2)
            assert all(gpu.controllable for gpu in node.describe().gpus)
            request = pb.ApplyRequest(
                epoch=1, job="demo", generation=1, ttl_s=30.0,
                settings=[pb.Setting(uuid=driver.uuids[0], clock_max_mhz=1005)],
            )  # fmt: skip
            (result,) = node.stub.Apply(request, timeout=PATIENCE_S).results
            assert result.accepted, result.reason
            assert driver.locks()[0] is not None
            assert "joulecut_gpu_power_watts" in node.metrics()
            assert node.clear(job="demo")[0].accepted
            eventually("restored", lambda: driver.locks() == (None, None))


@pytest.mark.parametrize("process", ["agent", "keeper"])
def test_profiles_allow_no_call_that_leaves_the_container(process: str) -> None:
    found = profile(process)
    assert (found["defaultAction"], found["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 1)
    allowed = {
        name: rule.get("args", [])
        for rule in found["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW"
        for name in rule["names"]
    }
    assert not allowed.keys() & LEFT_OUT
    assert allowed["clone"][0]["op"] == "SCMP_CMP_MASKED_EQ", "no new namespace"
    assert "clone3" not in allowed
    families = {rule["args"][0]["value"] for rule in found["syscalls"] if "socket" in rule["names"]}
    assert families == ({1} if process == "keeper" else {1, 2, 10})


def test_the_chart_uses_them_where_they_are_on_the_nodes() -> None:
    objects = chart("keeper", sets=("seccomp.localhostDirectory=joulecut",))
    pod = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    used = {
        c["name"]: c["securityContext"]["seccompProfile"]["localhostProfile"]
        for c in containers(pod)
        if "seccompProfile" in c["securityContext"]
    }
    keeper, agent = "joulecut/keeper.json", "joulecut/agent.json"
    assert used == {"agent": agent, "keeper": keeper, "restore": keeper}
    assert all((PROFILES / Path(path).name).exists() for path in used.values())
