"""Registry of the owners of each GPU, with a callback when one changes.

Reading the sources takes time and may fail, so it has its own threads; queries are answered from
memory. Reports are the exception: the newest one counts at once.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from joulecut_agent.jobs import inventory, owner
from joulecut_agent.jobs.binding import Binding
from joulecut_agent.jobs.inventory import Inventory
from joulecut_agent.jobs.kubelet import Kubelet
from joulecut_agent.jobs.kubernetes import Kubernetes
from joulecut_agent.jobs.owner import (
    BOUND,
    JOB_CHARS_MAX,
    KUBERNETES,
    PROCESS,
    REPORT,
    SLURM,
    Claims,
    Owner,
    Owners,
)
from joulecut_agent.jobs.pods import ApiPods, Watched
from joulecut_agent.jobs.processes import Processes
from joulecut_agent.jobs.rate_source import LOG, Fault
from joulecut_agent.jobs.settings import AttributionSettings
from joulecut_agent.jobs.slurm import MappingDirectory
from joulecut_agent.log import Warnings, log
from joulecut_wire.messages import Allocation, GpuDescription, GpuSnapshot
from joulecut_wire.slurm import SlurmJob

TURN_S = 0.5  # a lease ends within a second of its owner
INVENTORY_TURNS = 20  # MIG instances and minors change at a reconfiguration
PROCESSES_MAX = 1024  # remembered: 64 on each of 16 GPUs


class OwnersFile:
    """Owners for prologs and epilogs of a scheduler: `NUMBER UUID held|free JOB`, a GPU a line,
    with the number that Slurm has for it. World-readable, replaced as a whole.

    The first line names the agent's process, to recognise a file left by a dead agent.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._written, self._warnings = path, "", Warnings()

    def write(
        self, numbers: Mapping[int, str], held: Mapping[str, str],
        allocations: Mapping[str, Allocation],
    ) -> None:  # fmt: skip
        """Writes if something has changed. Never raises."""
        lines = [f"agent {os.getpid()}"]
        for number, uuid in sorted(numbers.items()):
            job = allocations[uuid].job if uuid in allocations else "-"
            state = "held" if uuid in held else "free"
            lines.append(f"{number} {uuid} {state} {job}")
        text, fresh = "\n".join(lines) + "\n", self._path.with_suffix(".new")
        if text == self._written:
            return
        try:
            fresh.write_text(text)
            fresh.chmod(0o644)
            fresh.replace(self._path)
        except OSError as error:
            self._warnings.say(f"{self._path}: {error.strerror}")
        else:
            self._written = text
            self._warnings.say("")

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


@dataclass(eq=False)
class Registry:
    """`start` returns after each source was read once. Queries from any thread.

    `seen` returns the last snapshot of each GPU, `reports` its jobs by their reports, `held` the
    job of each lease. `changed(uuid)` is called when a GPU has lost its owner,
    `noted(uuid, jobs, since_s)` at each change of its jobs.
    """

    settings: AttributionSettings
    gpus: Callable[[], tuple[GpuDescription, ...]]
    seen: Callable[[], Mapping[str, GpuSnapshot]]
    reports: Callable[[], Mapping[str, tuple[str, ...]]]
    held: Callable[[], Mapping[str, str]]
    changed: Callable[[str], None]
    noted: Callable[[str, tuple[str, ...], float], None]
    owners_file: Path | None = None

    def __post_init__(self) -> None:
        self._file = OwnersFile(self.owners_file) if self.owners_file else None
        self._processes = Processes(self.settings.proc)
        folder = self.settings.mapping_dir
        self._slurm = MappingDirectory(folder) if folder else None
        self._claims: dict[str, Claims] = {}
        self._before: dict[str, Owners] = {}
        self._inventory = Inventory({})
        self._pids: dict[str, tuple[int, ...]] = {}
        self._known_pids: dict[int, tuple[tuple[int, int], Owner | None]] = {}
        self._contradictions: dict[str, str] = {}  # by GPU, between Slurm's files and processes
        self._turns = 0
        self._wake = threading.Event()
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="attribution", daemon=True)
        pods = self.settings.pod_resources
        kubernetes = self._kubernetes = self._with_kubernetes() if pods else None
        self.binding = Binding(
            self._processes,
            self.given,
            self._users,
            doubt=kubernetes.hurry if kubernetes else lambda: None,
            leased=lambda uuid: uuid in self.held(),
            pods_known=lambda: kubernetes is not None and kubernetes.answering,
        )

    def start(self) -> None:
        self._refresh_inventory()
        if self._kubernetes:
            self._kubernetes.start()
        self._turn()
        self._thread.start()

    def stop(self) -> None:
        self._leaving = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        if self._kubernetes:
            self._kubernetes.stop()
        if self._file:
            self._file.remove()

    def given(self, uuid: str) -> Owners:
        """The owners of a GPU, by the first source that knows any."""
        reports = tuple([Owner(REPORT, job) for job in self.reports().get(uuid, ())])
        return owner.settle(self.settings.order, {**self._claims, REPORT: {uuid: reports}}, uuid)

    def scheduled_job(self, uuid: str) -> str:
        """The job that a scheduler gave a GPU to, "" without one."""
        jobs = [one.job for one in self.given(uuid) if one.source in BOUND]
        return jobs[0] if len(jobs) == 1 else ""

    def gpus_of_job(self, job: str) -> tuple[str, ...]:
        """The GPUs that this job alone owns, by a scheduler or by its processes."""
        settled = self._settled()
        return tuple([uuid for uuid, owners in settled if {one.job for one in owners} == {job}])

    def users_of(self, uuid: str) -> set[int]:
        """User ids of the live processes on a GPU."""
        found = [self._processes.belonging(pid) for pid in self._users(uuid)]
        return {one.uid for one in found if one is not None}

    def fault_owner(self, fault: Fault) -> tuple[str, tuple[str, ...]]:
        """Job and GPUs of the sender of a report that could not be used; "" if not known."""
        if fault.source == LOG and fault.uuid:  # the configuration names the job
            jobs = {one.job for one in self.given(fault.uuid)}
            job = jobs.pop() if len(jobs) == 1 else ""
            return job, self.gpus_of_job(job) if job else (fault.uuid,)
        uuids = self.binding.gpus_of(fault.sender, self._inventory.uuids)
        if not uuids and fault.accepted:  # the driver shows no process of it
            uuids = (fault.uuid,)
        if fault.foreign and not uuids and (job := self.scheduled_job(fault.uuid)):
            return job, (fault.uuid,)  # most likely a process of it, in another control group
        jobs = {one.job for uuid in uuids for one in self.given(uuid)}
        return (jobs.pop() if len(jobs) == 1 else ""), uuids

    def allocations(self) -> dict[str, Allocation]:
        """The one allocation of each GPU that has an owner."""
        settled = self._settled()
        return {uuid: one for uuid, owners in settled if (one := owner.allocation(uuid, owners))}

    def jobs(self) -> dict[str, tuple[str, ...]]:
        """Every job of each GPU that has one, for the account of its energy."""
        return {uuid: _names(owners) for uuid, owners in self._settled() if owners}

    def reported(self, uuid: str, jobs: tuple[str, ...], since_s: float) -> None:
        """The reporting jobs of a GPU have changed; an earlier source has priority."""
        owners = self.given(uuid)
        if not owners or owners[0].source in {REPORT, PROCESS}:
            self.noted(uuid, jobs, since_s)

    def not_controlled(self, uuid: str) -> str:
        """Reason why a GPU is not controlled because of its owners, or ""."""
        reason = owner.shared(self.given(uuid))
        if reason and (said := self._contradictions.get(uuid)):
            return said
        return f"{reason}: shared GPUs are observed, not controlled" if reason else ""

    def _settled(self) -> list[tuple[str, Owners]]:
        return [(gpu.uuid, self.given(gpu.uuid)) for gpu in self.gpus()]

    def _run(self) -> None:
        warnings = Warnings()
        while not self._leaving:
            self._wake.wait(TURN_S)
            self._wake.clear()
            warnings.attempt(self._turn, "attribution failed")

    def _turn(self) -> None:
        self._turns += 1
        if self._turns % INVENTORY_TURNS == 0:
            self._refresh_inventory()
        used = self._used()
        slurm = self._slurm.poll(self._inventory) if self._slurm else {}
        self._claims = {
            KUBERNETES: self._kubernetes.claims if self._kubernetes else {},
            # By files of the prolog; without them by the processes on the GPU.
            SLURM: self._both(slurm, used[SLURM]),
            PROCESS: used[PROCESS],
        }
        held = self.held()
        for uuid, owners in self._settled():
            before, self._before[uuid] = self._before.get(uuid, owners), owners
            changed = owner.changed(before, owners)
            if changed:
                self.noted(uuid, _names(owners), time.monotonic())
            # A new owner that is the job of the lease: it was set between two turns.
            expected = not before and {one.job for one in owners} == {held.get(uuid)}
            # A lease on a shared GPU is from before the GPU was known to be shared.
            if (changed and not expected) or (owner.shared(owners) and uuid in held):
                self.changed(uuid)
        if self._file:
            self._file.write(self._inventory.by_number, self.held(), self.allocations())

    def _both(self, files: Claims, processes: Claims) -> Claims:
        """Owners by files; a GPU with a process of another job is owned by both."""
        claims, found = {**processes, **files}, {}
        for uuid in files.keys() & processes.keys():
            others = owner.others(files[uuid], processes[uuid])
            if others and files[uuid]:
                jobs, used = ", ".join(one.job for one in files[uuid]), others[0].job
                claims[uuid] = (*files[uuid], *others)
                found[uuid] = f"Slurm gave it to job {jobs}, and a process of job {used} is on it"
        for uuid in found.keys() - self._contradictions.keys():
            log("agent", f"GPU {uuid}: {found[uuid]}: observed, not controlled", "warning")
        self._contradictions = found
        return claims

    def _refresh_inventory(self) -> None:
        mig = {mig: uuid for uuid, gpu in self.seen().items() for mig in gpu.mig_uuids}
        self._inventory = inventory.of(self.gpus(), mig, self.settings.proc)

    def _known_owner(self, pid: int) -> Owner | None:
        """As `_owner`, read again only if the pid is another process's now."""
        stamp = self._processes.stamp(pid)
        known = self._known_pids.get(pid)
        if known is None or known[0] != stamp:
            if len(self._known_pids) >= PROCESSES_MAX:
                self._known_pids.clear()
            known = self._known_pids[pid] = (stamp, self._owner(pid))
        return known[1]

    def _used(self) -> dict[str, Claims]:
        """Owners by processes on each GPU: Slurm jobs by control group, the rest by name."""
        jobs: dict[str, Owners] = {}
        plain: dict[str, Owners] = {}
        for uuid in [gpu.uuid for gpu in self.gpus()]:
            found = [one for pid in self._users(uuid) if (one := self._known_owner(pid))]
            if by_slurm := tuple(one for one in found if one.source == SLURM):
                jobs[uuid] = by_slurm
            if by_name := tuple(one for one in found if one.source == PROCESS):
                plain[uuid] = by_name
        return {SLURM: jobs, PROCESS: plain}

    def _owner(self, pid: int) -> Owner | None:
        belongs = self._processes.belonging(pid)
        if belongs is None:
            return None
        job = belongs.slurm_job
        if job:
            name = self._processes.variable(pid, "SLURM_JOB_NAME")[:JOB_CHARS_MAX]
            return Owner(SLURM, job, labels=SlurmJob(job, name=name).labels())
        # Untrusted, and good enough for a name: it gives no rights.
        job_id = self._processes.variable(pid, "SLURM_JOB_ID")
        unit = belongs.unit or self._processes.command(pid)
        names = owner.printable([job_id, unit, f"uid-{belongs.uid}"])
        return Owner(PROCESS, names[0])

    def _users(self, uuid: str) -> tuple[int, ...]:
        """By the device's last reading; without a new one nothing has changed."""
        gpu = self.seen().get(uuid)
        if gpu is not None:
            self._pids[uuid] = gpu.process_ids
        return self._pids.get(uuid, ())

    def _with_kubernetes(self) -> Kubernetes:
        settings = self.settings
        assert settings.pod_resources is not None
        watched = Watched(settings.cgroups)
        return Kubernetes(
            Kubelet(settings.pod_resources),
            inventory=lambda: self._inventory,
            api=ApiPods(settings.api, watched) if settings.api else None,
            watched=watched,
            held=lambda: bool(self.held()),
            changed=self._wake.set,
        )


def _names(owners: Owners) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.job for one in owners))
