"""What the file may hold one day and this version cannot do yet, refused by name.

Taking such a key and leaving it aside would be worse than an error: the operator would
believe in a bound, a match or a measurement that is not there.
"""

from collections.abc import Iterator

from joulecut_controller.policy.complaint import Complaint
from joulecut_controller.policy.schema import RANK_SOURCES, JobKeys, PolicyKeys
from joulecut_engine.graph.pipeline import SCHEDULES_ALL
from joulecut_wire.document import KeyPath


def not_yet(keys: PolicyKeys) -> Iterator[Complaint]:
    """Everything in the file that is valid and has to wait."""
    for number, job in enumerate(keys.jobs):
        yield from _job(job, ("jobs", number))


def _wait(path: KeyPath, what: str, allowed: str) -> Complaint:
    return Complaint(path, f"{what} is not available yet", allowed)


def _job(job: JobKeys, path: KeyPath) -> Iterator[Complaint]:
    if job.slo.rate != "hook":
        yield _wait((*path, "slo", "rate"), f"a rate from {job.slo.rate}", "hook")
    if job.clocks.granularity != "gpu":
        place = (*path, "clocks", "granularity")
        yield _wait(place, f"{job.clocks.granularity} for a running job", "gpu")
    if job.ranks.source not in RANK_SOURCES:
        yield _wait(
            (*path, "ranks", "source"), f"ranks from {job.ranks.source}", " | ".join(RANK_SOURCES)
        )
    if job.pipeline is not None:
        place = (*path, "pipeline")
        if job.pipeline.schedule not in SCHEDULES_ALL:
            yield _wait(
                (*place, "schedule"),
                f"schedule {job.pipeline.schedule}",
                " | ".join(SCHEDULES_ALL),
            )
        if job.pipeline.tensor_parallel > 1:
            # Its GPUs form one lock-step group, which has to change all or nothing even
            # where it spans nodes, and whose busy times hold the waiting for its slowest.
            yield _wait((*place, "tensor_parallel"), "more than 1", "1")
