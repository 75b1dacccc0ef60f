"""Estimates that need a profile: from a policy, beside the measurements.

A profile holds what cannot be measured from outside: the least energy of the same iterations.
Without one, an estimate stays unknown. The engine is imported once there is a profile: an audit
without one needs no numpy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from joulecut_controller.policy.policy import Cost, JobPolicy, Policy, Slo
from joulecut_controller.sources.policy_file import load
from joulecut_lab.audit.auditor import NO_PROFILE, Estimate, OwnerTotals
from joulecut_lab.audit.finding import Amount, PlanSaving
from joulecut_lab.audit.reading import GpuName
from joulecut_wire.errors import BadInput

if TYPE_CHECKING:
    from joulecut_engine.estimate.other_jobs import KnownJob, OtherJobs
    from joulecut_engine.optimize.problem import Problem

BUDGETS = (0.02, 0.05)  # slowdowns of predictions from counters, where no policy has one


@dataclass(frozen=True)
class OperatorInput:
    """A policy, where there is one, and known jobs."""

    policy: Policy | None = None
    known: "tuple[KnownJob, ...]" = ()  # probed jobs of a controller's store

    @cached_property
    def sensitivity(self) -> "OtherJobs":
        """What counters say, by these jobs."""
        from joulecut_engine.estimate.other_jobs import OtherJobs

        return OtherJobs(self.known)

    @property
    def cost(self) -> Cost:
        return self.policy.cost if self.policy else Cost()


def read(path: Path | None, store: str | None) -> OperatorInput:
    """A policy, and the jobs in the store of a controller. Raises BadInput, Unavailable."""
    policy = None if path is None else load(path)
    return OperatorInput(policy, () if store is None else _known(store))


def _known(url: str) -> "tuple[KnownJob, ...]":
    """Raises BadInput, Unavailable."""
    from joulecut_controller.learn.known_jobs import NAME, decoded
    from joulecut_controller.store.database import open_store
    from joulecut_controller.store.sqlite import PREFIX, file_of

    if url.startswith(PREFIX) and not file_of(url).is_file():
        raise BadInput("--store", f"no file {file_of(url)}", "the store of a controller")
    store = open_store(url)
    try:
        return tuple(decoded(store.learnt(NAME)))
    except ValueError as error:
        what = f"its known jobs cannot be read: {error}"
        raise BadInput("--store", what, "those of this version") from None
    finally:
        store.close()


def estimate(known: OperatorInput, facts: OwnerTotals, gpus: Mapping[str, GpuName]) -> Estimate:
    """Predicted bloat and savings of one job; `gpus` by UUID."""
    found = _problem(known, facts, gpus)
    if isinstance(found, str):
        return Estimate(Amount.unknown(found), _from_counters(known, facts, gpus))
    from joulecut_engine.optimize.solver import Solver
    from joulecut_lab.audit.profile_estimate import ProfileEstimate

    asked, slo, source = found
    by_profile = ProfileEstimate(
        asked, Solver, source, work_j=facts.work_j, clock_mhz=facts.clock_mhz
    )
    savings = by_profile.savings(slo.deadline_s(by_profile.iteration_s))
    return Estimate(by_profile.intrinsic(), savings)


def _from_counters(
    known: OperatorInput, facts: OwnerTotals, gpus: Mapping[str, GpuName]
) -> tuple[PlanSaving, ...]:
    """What one lower clock would save, by counters; empty where they say nothing.

    The engine is of the controller's role; an audit without numpy has no prediction.
    """
    models = {gpus[uuid].model for uuid in facts.uuids if uuid in gpus}
    if find_spec("numpy") is None or len(models) != 1:
        return ()
    from joulecut_lab.audit.first_saving import predicted_saving

    [model] = models
    job = _entry(known.policy, facts, gpus) if known.policy else None
    budget = job.slo.max_slowdown if job is not None else None
    made = (
        predicted_saving(facts, model, ratio, known.sensitivity)
        for ratio in (BUDGETS if budget is None else (budget,))
    )
    return tuple(one for one in made if one is not None)


def _problem(
    known: OperatorInput, facts: OwnerTotals, gpus: Mapping[str, GpuName]
) -> "tuple[Problem, Slo, str] | str":
    """The job's problem, its target, and where its costs come from; or why there is none."""
    if known.policy is None:
        return NO_PROFILE
    job = _entry(known.policy, facts, gpus)
    return _priced(job) if job else "no entry of the policy matches this job"


def _priced(job: JobPolicy) -> "tuple[Problem, Slo, str] | str":
    if job.pipeline is None or job.profile is None:
        missing = "pipeline" if job.pipeline is None else "profile"
        return f"entry {job.name} of the policy has no {missing}"
    from joulecut_engine.optimize.formulation import mismatch, problem

    if complaint := mismatch(job.pipeline, job.profile):
        return f"entry {job.name} of the policy: {complaint}"
    asked = problem(job.pipeline, job.profile, job.blocking_power_w)
    return asked, job.slo, job.profile.source


def _entry(policy: Policy, facts: OwnerTotals, gpus: Mapping[str, GpuName]) -> JobPolicy | None:
    """The entry by name, or by its list of GPUs."""
    places = {gpus[uuid].place for uuid in facts.uuids if uuid in gpus}
    for job in policy.jobs:
        if facts.name == job.name or facts.name.rpartition("/")[2] == job.name:
            return job
        if job.gpus and {f"{gpu.node}/{gpu.index}" for gpu in job.gpus} == places:
            return job
        if _by_words(job, facts.name):
            return job
    return None


def _by_words(job: JobPolicy, name: str) -> bool:
    """A Prometheus has no pod labels, but pod names contain them."""
    if job.pods is None:
        return job.slurm is not None and bool(job.slurm.job_id) and job.slurm.job_id == name
    namespace, _, stem = name.rpartition("/")
    return namespace == job.pods.namespace and stem in {value for _, value in job.pods.labels}
