"""Reservations: why a job in mode enforce is only recommended for now, as its GPUs are not free.

A plan is still made and shown, so that an operator sees what waits, and why. Pure.
"""

from collections.abc import Mapping

from joulecut_controller.policy.owner import Instance, certain, foreign, instance_of
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.view import GpuView, Placement, View


def unanimous(placement: Placement, gpus: Mapping[str, GpuView]) -> Instance | None:
    """The running job of the first GPU of which that is sure; all others have to agree."""
    for uuid in (uuid for stage in placement.stages for uuid in stage):
        gpu = gpus.get(uuid)
        if gpu is not None and gpu.allocation is not None and certain(gpu.allocation):
            return instance_of(gpu.allocation)
    return None


def reservation_of(
    policy: JobPolicy, placement: Placement, running: Instance | None, view: View
) -> str:
    """Why no command should be sent for the job; empty where one may be."""
    if placement.doubt:
        return placement.doubt
    for uuid in (uuid for stage in placement.stages for uuid in stage):
        gpu = view.gpus.get(uuid)
        if gpu is None:
            continue  # the layout's own complaint
        node = view.node_at.get(gpu.address)
        why = (
            foreign(policy, running, gpu.allocation)
            or (node.hindrance if node else "")
            or gpu.hindrance
        )
        if why:
            return f"GPU {gpu.place}: {why}"
    return ""
