"""Where devices show something else than what was asked of them.

A lease that is gone, a lock that is another, a clock that runs above its lock: somebody
else had a hand in it, or the agent was started again. Pure; whoever asks decides what
follows, and never fights.
"""

from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.reconcile.leases import Holding
from joulecut_controller.view import View

CLOCK_TOLERANCE_RATIO = 0.02  # a clock one step (15 MHz) above what was asked is not drift


def as_asked(holding: Holding, observation: JobObservation) -> bool:
    """Every GPU of the job shows the lock it was given, and no other does."""
    locks = observation.measured.locks
    return {uuid: holding.locks.get(uuid, 0) for uuid in locks} == dict(locks)


def drift_of(holding: Holding, observation: JobObservation, view: View) -> str:
    """What the devices show other than what was asked; empty where all is as it should be."""
    measured = observation.measured
    for uuid, asked_mhz in holding.locks.items():
        gpu = view.gpus.get(uuid)
        where = f"GPU {gpu.node}/{gpu.description.index}" if gpu else f"GPU {uuid}"
        if uuid not in measured.locks:
            return f"{where} no longer works for the job"
        shown_mhz = measured.locks[uuid]
        if shown_mhz != asked_mhz:
            return (
                f"{where} lost its lease"
                if not shown_mhz
                else (f"{where} is held at {shown_mhz} MHz, not at {asked_mhz} MHz")
            )
    if not measured.settled:
        return ""
    for load in measured.loads:
        asked_mhz = holding.locks.get(load.uuid, 0)
        if asked_mhz and load.clock_mhz > asked_mhz * (1.0 + CLOCK_TOLERANCE_RATIO):
            return f"GPU {load.uuid} runs at {load.clock_mhz} MHz, above the {asked_mhz} MHz asked"
    return ""
