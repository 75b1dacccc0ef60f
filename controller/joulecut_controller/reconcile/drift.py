"""Compares the clocks and leases that a job's GPUs show with the commands sent. Pure."""

from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.reconcile.leases import Holding
from joulecut_controller.view import GpuView, JobState, View

CLOCK_TOLERANCE_RATIO = 0.02  # one step of the table (15 MHz) above the command is not drift


def as_asked(holding: Holding, job: JobState) -> bool:
    """Whether every GPU of the job shows exactly the lock that was asked for it."""
    locks, asked = job.measured.locks, holding.locks
    return {uuid: asked.get(uuid, 0) for uuid in locks} == dict(locks)


def used_again(holding: Holding, job: JobState) -> set[str]:
    """Unused GPUs that work again: their agent has ended the lease, or they left the entry."""
    unused = (action.uuid for action in holding.plan.actions if action.unused_mhz)
    return {uuid for uuid in unused if not job.measured.locks.get(uuid)}


def drift(holding: Holding, observation: JobObservation, view: View) -> str:
    """Difference between devices and commands; empty without one.

    A lease that is gone, another lock, or a clock above its lock: an external writer, or an agent
    that restarted. The caller releases the job and never fights over a clock.
    """
    measured, asked = observation.job.measured, holding.locks
    for uuid, asked_mhz in asked.items():
        gpu = view.gpus.get(uuid)
        where = f"GPU {gpu.place}" if gpu else f"GPU {uuid}"
        if uuid not in measured.locks:
            return f"{where} no longer works for the job"
        shown_mhz = measured.locks[uuid]
        if shown_mhz < min(1, asked_mhz) or _unlimited(gpu, holding.limits_w.get(uuid)):
            return f"{where} lost its lease"
        if shown_mhz != asked_mhz:
            return f"{where} is held at {shown_mhz} MHz, not at {asked_mhz} MHz"
    if not measured.settled:
        return ""
    for load in measured.loads:
        asked_mhz = asked.get(load.uuid, 0)
        if asked_mhz and load.clock_mhz > asked_mhz * (1.0 + CLOCK_TOLERANCE_RATIO):
            return f"GPU {load.uuid} runs at {load.clock_mhz} MHz, above the {asked_mhz} MHz asked"
    return ""


def _unlimited(gpu: GpuView | None, limit_w: float | None) -> bool:
    """Whether a GPU shows no lease of the power limit that it should have."""
    if limit_w is None or gpu is None or gpu.snapshot is None or gpu.behind:
        return False
    lease = gpu.snapshot.lease
    return lease is None or lease.power_limit_w != limit_w
