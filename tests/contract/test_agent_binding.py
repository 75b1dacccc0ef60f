"""Who may speak for a GPU: real datagrams of real processes, places in a made-up `/proc`."""

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from report_desk import Desk

from joulecut_agent.jobs.binding import Sender
from joulecut_agent.jobs.owner import KUBERNETES, REPORT, SLURM, Owner
from joulecut_agent.jobs.processes import Belonging
from joulecut_wire.messages import IterationReport

UID = "12345678-1234-1234-1234-1234567890ab"
ME = os.getuid()
OWN_PLACE = "/user.slice/user-1000.slice/job_4711"
OTHER_POD = f"/kubepods/pod{'8' * 8 + UID[8:]}/0123"


def claim(desk: Desk, pid: int, uid: int, job: str = "demo") -> str:
    """As `speak`, of GPU-a, by a process of another user."""
    before = desk.refusals()
    desk.jobs._check(IterationReport(job, "GPU-a", 0, 1, 0.5), Sender(pid, uid))
    return desk.refused(before)


@pytest.fixture
def desk() -> Iterator[Desk]:
    with tempfile.TemporaryDirectory(prefix="jc") as home:
        made = Desk(Path(home))
        yield made
        made.jobs.close()


def _pod(uid: str = UID) -> Owner:
    return Owner(KUBERNETES, "gpt3", "train", "gpt3-0", uid)


def _group(uid: str = UID) -> str:
    return f"/kubepods/pod{uid}/0123"


def test_a_pod_speaks_for_its_own_gpu_alone(desk: Desk) -> None:
    desk.owners = {"GPU-a": (_pod(),), "GPU-b": (_pod("9" + UID[1:]),)}
    desk.place(_group())
    assert desk.speak("GPU-a") == ""
    assert desk.speak("GPU-b") == "not_owner"
    assert desk.jobs.live.holding() == {"GPU-a": ("demo",)}
    assert desk.doubts == 1


def test_a_slurm_job_speaks_for_its_own_gpu_alone(desk: Desk) -> None:
    desk.owners = {"GPU-a": (Owner(SLURM, "4711"),), "GPU-b": (Owner(SLURM, "4712"),)}
    desk.place("/system.slice/slurmstepd.scope/job_4711/step_0")
    assert desk.speak("GPU-a") == ""
    assert desk.speak("GPU-b") == "not_owner"


@pytest.mark.parametrize("owner", [_pod(), Owner(SLURM, "4711")])
@pytest.mark.parametrize("group", ["/", OWN_PLACE, OTHER_POD])
def test_no_other_process_reports_for_a_gpu_that_is_allocated(
    desk: Desk, owner: Owner, group: str
) -> None:
    desk.owners = {"GPU-a": (owner,)}
    desk.place(group)
    assert desk.speak() == "not_owner"
    assert not any(desk.jobs.live.holding().values())


def test_who_cannot_be_seen_is_not_believed_where_it_matters(desk: Desk) -> None:
    desk.owners = {"GPU-a": (_pod(),)}
    assert desk.speak("GPU-a") == "unverified"
    assert desk.speak("GPU-b") == ""
    desk.owners = {"GPU-a": (_pod(uid=""),)}
    desk.place(_group())
    # Its place was looked up when it was first heard, and a process does not move.
    refusal = desk.binding.refusal("GPU-a", Sender(5, ME), Belonging(ME, UID), ())
    assert refusal.code == "unverified"


def test_a_pod_does_not_speak_for_a_gpu_that_no_pod_holds(desk: Desk) -> None:
    desk.place(_group())
    desk.binding.pods_known = lambda: True
    assert desk.speak() == "not_owner"
    desk.binding.pods_known = lambda: False
    assert desk.speak() == ""


def test_a_report_itself_binds_no_process(desk: Desk) -> None:
    desk.owners = {"GPU-a": (Owner(REPORT, "demo"),)}
    desk.place("/")
    assert desk.speak() == ""


def test_plain_processes_speak_for_what_their_user_has_open(desk: Desk) -> None:
    desk.place("/")
    desk.place("/", pid=7)
    desk.users = {"GPU-a": (7, 8)}  # 8 is gone already
    assert desk.speak() == ""  # the same user owns both folders
    stranger, insider = Sender(9, ME + 1), Sender(10, ME + 1)
    refusal = desk.binding.refusal("GPU-a", stranger, Belonging(ME + 1, cgroup="/"), ())
    assert refusal.code == "not_owner"
    desk.place("/system.slice/train.service", pid=7)
    at_home = Belonging(ME + 1, cgroup="/system.slice/train.service")
    assert desk.binding.refusal("GPU-a", insider, at_home, ()) is None


def test_the_first_user_to_speak_keeps_a_gpu_without_an_owner(desk: Desk) -> None:
    desk.place("/")
    belongs = Belonging(ME + 1, cgroup="/elsewhere")
    refusal = desk.binding.refusal("GPU-a", Sender(9, ME + 1), belongs, {ME})
    assert refusal.code == "taken"
    assert desk.binding.refusal("GPU-a", Sender(9, ME), None, {ME}) is None


@pytest.fixture
def stranger() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process
        process.kill()


def test_no_user_comes_new_to_a_gpu_under_a_lease(
    desk: Desk, stranger: "subprocess.Popen[bytes]"
) -> None:
    desk.leased = {"GPU-a"}
    assert claim(desk, stranger.pid, ME + 1) == "unverified"
    assert claim(desk, 0, ME + 1) == "unverified", "in a container that the agent does not see"
    _end(desk, stranger)
    assert not desk.ended
    desk.place("/", pid=7)
    desk.users = {"GPU-a": (7,)}
    assert claim(desk, 0, ME) == "", "but the user of the processes on it"


def test_who_reports_before_its_first_kernel_goes_on_under_a_lease(
    desk: Desk, stranger: "subprocess.Popen[bytes]"
) -> None:
    assert claim(desk, stranger.pid, ME + 1) == ""
    desk.leased = {"GPU-a"}
    assert claim(desk, stranger.pid, ME + 1) == ""
    _end(desk, stranger)
    assert desk.ended == [("demo", "GPU-a")]


def test_an_invisible_process_goes_on_under_a_lease_and_keeps_others_out(desk: Desk) -> None:
    assert claim(desk, 0, ME + 1) == ""
    desk.leased = {"GPU-a"}
    assert claim(desk, 0, ME + 1) == ""
    assert claim(desk, 0, ME + 2) == "taken"


def test_a_claim_that_the_processes_contradict_ends_no_lease(
    desk: Desk, stranger: "subprocess.Popen[bytes]"
) -> None:
    assert claim(desk, stranger.pid, ME + 1) == ""  # before the owner's first process is seen
    desk.place("/", pid=7)
    desk.users, desk.leased = {"GPU-a": (7,)}, {"GPU-a"}
    _end(desk, stranger)
    assert not desk.ended
    assert not any(desk.jobs.live.holding().values())


def test_the_owner_displaces_a_claim_without_proof(
    desk: Desk, stranger: "subprocess.Popen[bytes]"
) -> None:
    assert claim(desk, stranger.pid, ME + 1, "other") == ""
    desk.place("/", pid=7)
    desk.users = {"GPU-a": (7,)}
    assert claim(desk, os.getpid(), ME) == ""
    assert desk.jobs.live.holding() == {"GPU-a": ("demo",)}, "it is not shared"
    _end(desk, stranger)
    assert not desk.ended


def test_the_end_of_a_proven_job_ends_its_lease_whoever_computes_beside_it(
    desk: Desk, stranger: "subprocess.Popen[bytes]"
) -> None:
    desk.place("/", pid=7)
    desk.place("/train.service", pid=8)
    desk.place("/train.service", pid=stranger.pid)
    desk.users = {"GPU-a": (7, 8)}
    assert claim(desk, stranger.pid, ME + 1) == ""
    desk.users = {"GPU-a": (7,)}
    _end(desk, stranger)
    assert desk.ended == [("demo", "GPU-a")]


def _end(desk: Desk, process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    desk.jobs.turn(0.5)


def test_a_stranger_leaves_no_handle_behind(desk: Desk) -> None:
    desk.owners = {"GPU-a": (_pod(),)}
    desk.place("/")
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM):
        for _ in range(200):
            assert desk.speak() == "not_owner"
    assert len(os.listdir("/proc/self/fd")) == before
