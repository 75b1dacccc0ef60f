"""Who may speak for a GPU: real datagrams of real processes, places in a made-up `/proc`."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulecut import Reporter
from joulecut_agent.counters import Counters
from joulecut_agent.jobs.binding import Binding, Sender
from joulecut_agent.jobs.owner import KUBERNETES, REPORT, SLURM, Owner, Owners
from joulecut_agent.jobs.processes import Belonging, Processes
from joulecut_agent.jobs.report_queue import ReportQueue
from joulecut_agent.jobs.report_socket import ReportSocket
from joulecut_wire.messages import IterationReport
from joulecut_wire.metrics import REPORTS, REPORTS_REFUSED

UID = "12345678-1234-1234-1234-1234567890ab"
ME = os.getuid()
OWN_PLACE = "/user.slice/user-1000.slice/job_4711"
OTHER_POD = f"/kubepods/pod{'8' * 8 + UID[8:]}/0123"


class Desk:
    """The agent's receiving end, with a world in which this process is put somewhere."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.proc = home / "proc"
        self.owners: dict[str, Owners] = {}
        self.users: dict[str, tuple[int, ...]] = {}
        self.leased: set[str] = set()
        self.doubts = 0
        self.counters = Counters()
        self.binding = Binding(
            Processes(self.proc),
            lambda uuid: self.owners.get(uuid, ()),
            lambda uuid: self.users.get(uuid, ()),
            self._doubt,
            lambda uuid: uuid in self.leased,
        )
        self.ended: list[tuple[str, str]] = []
        self.jobs = ReportSocket(
            home / "jobs.sock", lambda: ["GPU-a", "GPU-b"], ReportQueue(), self.counters,
            lambda *pair: self.ended.append(pair), binding=self.binding,
        )  # fmt: skip

    def _doubt(self) -> None:
        self.doubts += 1

    def place(self, cgroup: str, pid: int = 0) -> None:
        folder = self.proc / str(pid or os.getpid())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(f"0::{cgroup}\n")

    def claim(self, pid: int, uid: int, job: str = "demo") -> str:
        """As `speak`, of GPU-a, by a process of another user."""
        before = dict(self.counters.counts(REPORTS_REFUSED.name))
        self.jobs._check(IterationReport(job, "GPU-a", 0, 1, 0.5), Sender(pid, uid))
        after = dict(self.counters.counts(REPORTS_REFUSED.name))
        return next((k[0] for k, count in after.items() if count != before.get(k, 0)), "")

    def speak(self, uuid: str = "GPU-a", job: str = "demo") -> str:
        """The reason for which a report of this very process was refused, or ""."""
        before = dict(self.counters.counts(REPORTS_REFUSED.name))
        reporter = Reporter(job, uuid, 0, str(self.home / "jobs.sock"))
        assert reporter.iteration(1, 0.5, {})
        reporter.close()
        self.jobs.turn()
        after = dict(self.counters.counts(REPORTS_REFUSED.name))
        return next((k[0] for k, count in after.items() if count != before.get(k, 0)), "")


@pytest.fixture
def desk() -> Iterator[Desk]:
    home = Path(tempfile.mkdtemp(prefix="jc"))
    desk = Desk(home)
    yield desk
    desk.jobs.close()
    shutil.rmtree(home)


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
    assert desk.claim(stranger.pid, ME + 1) == "unverified"
    assert desk.claim(0, ME + 1) == "unverified", "in a container that the agent does not see"
    _end(desk, stranger)
    assert not desk.ended
    desk.place("/", pid=7)
    desk.users = {"GPU-a": (7,)}
    assert desk.claim(0, ME) == "", "but the user of the processes on it"


def test_who_reports_before_its_first_kernel_goes_on_under_a_lease(
    desk: Desk, stranger: "subprocess.Popen[bytes]"
) -> None:
    assert desk.claim(stranger.pid, ME + 1) == ""
    desk.leased = {"GPU-a"}
    assert desk.claim(stranger.pid, ME + 1) == ""
    _end(desk, stranger)
    assert desk.ended == [("demo", "GPU-a")]


def test_an_invisible_process_goes_on_under_a_lease_and_keeps_others_out(desk: Desk) -> None:
    assert desk.claim(0, ME + 1) == ""
    desk.leased = {"GPU-a"}
    assert desk.claim(0, ME + 1) == ""
    assert desk.claim(0, ME + 2) == "taken"


def test_a_claim_that_the_processes_contradict_ends_no_lease(
    desk: Desk, stranger: "subprocess.Popen[bytes]"
) -> None:
    assert desk.claim(stranger.pid, ME + 1) == ""  # before the owner's first process is seen
    desk.place("/", pid=7)
    desk.users, desk.leased = {"GPU-a": (7,)}, {"GPU-a"}
    _end(desk, stranger)
    assert not desk.ended
    assert not any(desk.jobs.live.holding().values())


def test_the_owner_displaces_a_claim_without_proof(
    desk: Desk, stranger: "subprocess.Popen[bytes]"
) -> None:
    assert desk.claim(stranger.pid, ME + 1, "other") == ""
    desk.place("/", pid=7)
    desk.users = {"GPU-a": (7,)}
    assert desk.claim(os.getpid(), ME) == ""
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
    assert desk.claim(stranger.pid, ME + 1) == ""
    desk.users = {"GPU-a": (7,)}
    _end(desk, stranger)
    assert desk.ended == [("demo", "GPU-a")]


def _end(desk: Desk, process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    desk.jobs.turn(0.5)


def test_a_gpu_of_another_node_is_refused_by_name(desk: Desk) -> None:
    assert desk.speak("GPU-z") == "unknown_gpu"
    assert dict(desk.counters.counts(REPORTS.name)) == {("refused",): 1}


def test_a_stranger_leaves_no_handle_behind(desk: Desk) -> None:
    desk.owners = {"GPU-a": (_pod(),)}
    desk.place("/")
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM):
        for _ in range(200):
            assert desk.speak() == "not_owner"
    assert len(os.listdir("/proc/self/fd")) == before
