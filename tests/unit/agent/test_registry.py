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
from joulecut_wire.messages import GpuDescription

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
    faults.note(Fault(Sender(1, 1000), REPORT, "not in its cgroup", UUID, foreign=True))
    assert ("4711", (UUID,), "not in its cgroup") in [
        (fault.job, fault.uuids, fault.text) for fault in faults.current()
    ]
