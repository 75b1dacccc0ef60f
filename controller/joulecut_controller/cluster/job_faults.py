"""Reports of a job that could not be used: what its agents refused, and names that fit no entry."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.ports import RETIRED_SOURCE
from joulecut_controller.view import JobState, View

REPORT = "report"  # as agents name the owner that is known by its reports alone
NAME_LIKE = 0.6  # difflib's own cut-off for a close match


@dataclass(frozen=True, slots=True)
class JobFault:
    """One line for the owner of a job; `count` reports of that kind so far."""

    node: str
    source: str
    text: str
    count: int
    age_s: float


def job_faults(job: JobState, view: View) -> tuple[JobFault, ...]:
    """The newest first."""
    found = [*_refused(job, view), *_misnamed(job, view)]
    return tuple(sorted(found, key=lambda fault: fault.age_s))


def _refused(job: JobState, view: View) -> Iterator[JobFault]:
    listed = {f"{ref.node}/{ref.index}" for ref in job.policy.gpus}
    placed = {uuid for stage in job.placement.stages for uuid in stage}
    names = {job.policy.name, *((job.running.name,) if job.running else ())}

    def is_mine(uuid: str) -> bool:
        gpu = view.gpus.get(uuid)
        return uuid in placed or (gpu is not None and gpu.place in listed)

    for node in view.nodes:
        for fault in node.faults:
            if fault.source == RETIRED_SOURCE:
                continue
            if fault.job in names or any(map(is_mine, fault.uuids)):
                yield JobFault(node.node, fault.source, fault.text, fault.count, fault.age_s)
    for fault in view.rate_faults:
        if fault.job == job.policy.name:
            yield JobFault("", fault.source, fault.text, fault.count, fault.age_s)


def _misnamed(job: JobState, view: View) -> Iterator[JobFault]:
    """An entry that is found by name, has no report, and has a neighbour in spelling."""
    policy = job.policy
    if policy.gpus or policy.found_by_allocation or any(job.placement.stages):
        return
    for name, places in _unknown_names(view).items():
        if difflib.SequenceMatcher(None, name, policy.name).ratio() > NAME_LIKE:
            yield JobFault("", REPORT, _name_text(policy, name, places), len(places), 0.0)


def _unknown_names(view: View) -> dict[str, list[str]]:
    """GPUs by the name they report, of names that are in no entry."""
    known = {job.policy.name for job in view.jobs}
    found: dict[str, list[str]] = {}
    for gpu in view.gpus.values():
        owner = gpu.allocation
        if owner is not None and owner.source == REPORT and owner.job not in known:
            found.setdefault(owner.job, []).append(gpu.place)
    return found


def _name_text(policy: JobPolicy, name: str, places: list[str]) -> str:
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return (
        f"GPU {places[0]}{more} reports as {name!r}, the policy has {policy.name!r}; allowed: "
        f"JOULECUT_JOB={policy.name} in the job, or name: {name} in the policy"
    )
