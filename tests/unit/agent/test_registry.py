"""When the bell rings that a GPU changed hands, and when it must not."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from running_agent import eventually

from joulecut_agent.jobs.binding import Sender
from joulecut_agent.jobs.rate_source import REPORT, Fault
from joulecut_agent.jobs.registry import TURN_S, AttributionSettings, Registry
from joulecut_agent.jobs.report_faults import ReportFaults
from joulecut_wire.messages import GpuDescription, GpuSnapshot

UUID = "GPU-a"


class Node:
    """A registry over reports and leases that a test sets."""

    def __init__(self, held: dict[str, str], mapping_dir: Path | None = None) -> None:
        self.jobs: dict[str, tuple[str, ...]] = {}
        self.rang: list[str] = []
        self.noted: list[tuple[str, ...]] = []
        self.registry = Registry(
            AttributionSettings(proc=Path("/nonexistent"), mapping_dir=mapping_dir),
            gpus=lambda: (GpuDescription(uuid=UUID, index=0, model="A100", clocks_mhz=(1410,)),),
            seen=dict,
            reports=lambda: self.jobs,
            held=lambda: held,
            changed=self.rang.append,
            noted=lambda uuid, jobs, since_s: self.noted.append(jobs),
        )

    def turns(self, until: Callable[[], bool]) -> None:
        self.registry.start()
        try:
            self.jobs = {UUID: ("demo",)}
            eventually("a turn that sees the job", until)
            time.sleep(2 * TURN_S)  # and more turns, which have no news
        finally:
            self.registry.stop()


def test_a_job_that_took_its_lease_before_it_was_seen_keeps_it() -> None:
    """It reports, is commanded, and only then does the registry look: within half a second."""
    node = Node(held={UUID: "demo"})
    node.turns(lambda: ("demo",) in node.noted)
    assert node.rang == []


@pytest.mark.parametrize("lease", ["another", ""])
def test_a_lease_of_another_job_ends_when_a_job_appears(lease: str) -> None:
    node = Node(held={UUID: lease} if lease else {})
    node.turns(lambda: node.rang == [UUID])
    assert node.rang == [UUID]


def test_refused_reports_of_a_silent_job_are_shown_at_it(tmp_path: Path) -> None:
    """Processes outside the control group of their Slurm job: without this line the job would only
    be silent. One that reports keeps its own faults, whatever others send.
    """
    (tmp_path / "0").write_text("4711\n")
    node = Node(held={}, mapping_dir=tmp_path)
    node.turns(lambda: node.registry.scheduled_job(UUID) == "4711")
    faults = ReportFaults(node.registry.fault_owner)
    faults.note(Fault(Sender(1, 1000), REPORT, "of another", UUID))
    assert [fault.job for fault in faults.current()] == [""]
    faults.note(
        Fault(Sender(1, 1001), REPORT, "an odd word of a report that counts", UUID, accepted=True)
    )
    assert ("4711", (UUID,)) in [(fault.job, fault.uuids) for fault in faults.current()]
    faults.note(Fault(Sender(1, 1000), REPORT, "not in its cgroup", UUID, foreign=True))
    assert ("4711", (UUID,), "not in its cgroup") in [
        (fault.job, fault.uuids, fault.text) for fault in faults.current()
    ]


@pytest.mark.parametrize("minors", [(0, 1), (1, 0), ()])
def test_slurms_files_that_contradict_the_processes_leave_a_gpu_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], minors: tuple[int, ...]
) -> None:
    """Job 4711 computes on NVML's GPU 1, job 4712 on GPU 0; the files are named by minors."""
    proc, folder, gpus = tmp_path / "proc", tmp_path / "map", ("GPU-a", "GPU-b")
    folder.mkdir()
    for name, job in (("0", "4711"), ("1", "4712")):
        (folder / name).write_text(job)
    for pid, job in (("10", "4712"), ("11", "4711")):
        (proc / pid).mkdir(parents=True)
        (proc / pid / "cgroup").write_text(f"0::/system.slice/slurmstepd.scope/job_{job}/step_0")
    for uuid, minor in zip(gpus, minors, strict=False):
        card = proc / "driver" / "nvidia" / "gpus" / f"0000:{minor}"
        card.mkdir(parents=True)
        (card / "information").write_text(f"GPU UUID: {uuid}\nDevice Minor: {minor}\n")
    registry = Registry(
        AttributionSettings(proc=proc, mapping_dir=folder),
        gpus=lambda: tuple(
            GpuDescription(uuid=uuid, index=i, model="A100", clocks_mhz=(1410,))
            for i, uuid in enumerate(gpus)
        ),
        seen=lambda: {u: GpuSnapshot(u, process_ids=(10 + i,)) for i, u in enumerate(gpus)},
        reports=dict, held=dict, changed=lambda _: None, noted=lambda *_: None,
    )  # fmt: skip
    registry.start()
    registry.stop()
    said = capfd.readouterr().err
    if minors == (1, 0):
        assert [registry.scheduled_job(uuid) for uuid in gpus] == ["4712", "4711"]
        assert not said
        return
    assert [registry.scheduled_job(uuid) for uuid in gpus] == ["", ""]
    reason = "Slurm gave it to job 4711, and a process of job 4712 is on it"
    assert registry.not_controlled("GPU-a") == reason
    assert f"GPU GPU-a: {reason}: observed, not controlled" in said
