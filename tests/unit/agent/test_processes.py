"""Where a process belongs, by its control group; nobody can make himself a place by a name."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.jobs.processes import Belonging, Processes, read_cgroup

UID = "12345678-1234-1234-1234-1234567890ab"
FLAT = UID.replace("-", "_")


@pytest.mark.parametrize(
    "place",
    [
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice/cri-containerd-00ff.scope",
        f"/kubepods.slice/kubepods-pod{FLAT}.slice/crio-00ff.scope/container",
        f"/kubepods/besteffort/pod{UID}/00ff",
        f"/kubepods/pod{UID}/00ff",
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{FLAT}.slice/x.scope",
        f"/kubelet/kubepods/burstable/pod{UID}/00ff",
        f"/../../kubepods-burstable-pod{FLAT}.slice/cri-containerd-00ff.scope",
        f"/../../../pod{UID}/00ff",
    ],
)
@pytest.mark.parametrize("version", ["0::{}", "12:memory:/\n1:name=systemd:{}\n0::/"])
def test_pods_are_found_with_every_driver_and_from_inside_a_container(
    place: str, version: str
) -> None:
    assert read_cgroup(version.format(place)).pod_uid == UID


@pytest.mark.parametrize(
    "place",
    [
        "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0",
        "/system.slice/node1_slurmstepd.scope/job_4711/step_batch",
        "/slurm/uid_1000/job_4711/step_0/task_0",
        "/slurm_node1/uid_1000/job_4711/step_0",
        "/../../slurmstepd.scope/job_4711/step_0",
    ],
)
def test_slurm_jobs_are_found_in_both_versions(place: str) -> None:
    assert read_cgroup(f"5:devices:{place}\n0::/").slurm_job == "4711"
    assert read_cgroup(f"0::{place}").slurm_job == "4711"


@pytest.mark.parametrize(
    "place",
    [
        # What a user can create below a group that is his own.
        "/user.slice/user-1000.slice/user@1000.service/job_4711",
        "/user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_4711",
        f"/user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-pod{FLAT}.slice",
        f"/user.slice/user-1000.slice/user@1000.service/pod{UID}",
        f"/system.slice/own.service/kubepods/pod{UID}",
        "/system.slice/own.service/slurmstepd.scope/job_4711",
        "/system.slice/own.service/slurm/uid_0/job_4711",
        f"/pod{UID}",
        f"/../../user.slice/user-1000.slice/kubepods-pod{FLAT}.slice",
        "/slurm/uid_1000",
        "/",
    ],
)
def test_a_name_in_a_place_of_ones_own_gives_nothing(place: str) -> None:
    found = read_cgroup(f"0::{place}")
    assert (found.pod_uid, found.slurm_job) == ("", "")


def test_the_outermost_pod_counts_and_not_one_named_inside() -> None:
    other = "f" * 8 + FLAT[8:]
    inside = f"/kubepods.slice/kubepods-pod{FLAT}.slice/x.scope/kubepods-pod{other}.slice"
    assert read_cgroup(f"0::{inside}").pod_uid == UID


def test_a_service_gives_its_name() -> None:
    assert read_cgroup("0::/system.slice/train.service/worker").unit == "train"
    assert read_cgroup("0::/user.slice/user-1000.slice/session-3.scope").unit == ""


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    assert isinstance(read_cgroup(text), Belonging)


def test_this_process_and_one_that_is_not_there(tmp_path: Path) -> None:
    here = Processes(Path("/proc"))
    mine = here.belonging(os.getpid())
    assert mine.uid == os.getuid()
    assert here.command(os.getpid())
    assert here.variable(os.getpid(), "PATH") == os.environ["PATH"]
    assert here.variable(os.getpid(), "NO_SUCH_VARIABLE") == ""
    assert here.belonging(0) is None
    assert here.belonging(2**22 + 5) is None
    assert Processes(tmp_path).command(1) == ""
