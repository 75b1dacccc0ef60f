"""Estimates that need a profile: from a policy or a job file, beside the measurements.

A profile holds what cannot be measured from outside: the least energy of the same iterations.
Without one, an estimate stays unknown. The engine is imported once there is a profile: an audit
without one needs no numpy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from joulecut_controller.policy.owner import matches
from joulecut_controller.policy.policy import Cost, JobPolicy, Policy, Slo
from joulecut_controller.sources.policy_file import load
from joulecut_lab.audit.auditor import NO_PROFILE, Estimate, OwnerTotals
from joulecut_lab.audit.finding import Amount, PlanSaving
from joulecut_lab.audit.reading import GpuName
from joulecut_wire import document
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import Allocation

if TYPE_CHECKING:
    from joulecut_cli.jobfile import JobFile
    from joulecut_engine.estimate.other_jobs import KnownJob, OtherJobs
    from joulecut_engine.optimize.problem import Problem

BUDGETS = (0.02, 0.05)  # slowdowns of predictions from counters, where no policy has one
NO_SLOWDOWN = Slo(max_slowdown=0.0, tolerance=0.0)


@dataclass(frozen=True)
class OperatorInput:
    """A policy, a job file, or neither. A job file describes the largest job."""

    policy: Policy | None = None
    job: "JobFile | None" = None
    known: "tuple[KnownJob, ...]" = ()  # probed jobs of a controller's store

    @cached_property
    def sensitivity(self) -> "OtherJobs":
        """What counters say, by these jobs."""
        from joulecut_engine.estimate.other_jobs import OtherJobs

        return OtherJobs(self.known)

    @property
    def cost(self) -> Cost:
        return self.policy.cost if self.policy else Cost()


@dataclass(slots=True)
class Rate:
    """Reported iterations of a job: alone, and while it waited for a sibling."""

    own: int = 0
    own_s: float = 0.0
    waited: int = 0
    waited_s: float = 0.0
    peer_s: float = 0.0

    @property
    def iteration_s(self) -> float | None:
        return self.own_s / self.own if self.own else None

    @property
    def mean_peer_s(self) -> float | None:
        return self.peer_s / self.waited if self.waited else None

    @property
    def waited_share(self) -> float:
        total_s = self.own_s + self.waited_s
        return self.waited_s / total_s if total_s else 0.0


@dataclass(frozen=True, slots=True)
class Observed:
    """What a source provides beside frames. `bloat_j` is the estimate of a running controller."""

    gpus: Mapping[str, GpuName]
    rates: Mapping[str, Rate]
    allocations: Mapping[str, Allocation]
    bloat_j: Mapping[str, Mapping[str, float]]


def read(path: Path | None, store: str | None) -> OperatorInput:
    """A policy or job file, and the jobs in the store of a controller.

    Raises BadInput as the readers of the two kinds of file do, Unavailable for the store.
    """
    return replace(_read(path), known=() if store is None else _known(store))


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


def _read(path: Path | None) -> OperatorInput:
    if path is None:
        return OperatorInput()
    data = document.load(path).data
    if isinstance(data, dict) and ("pipeline" in data or "graph" in data) and "jobs" not in data:
        from joulecut_cli import jobfile

        return OperatorInput(job=jobfile.read(path))
    return OperatorInput(policy=load(path))


def estimate(
    known: OperatorInput, facts: OwnerTotals, seen: Observed, *, largest: bool
) -> Estimate:
    """Predicted bloat and savings of one job."""
    found = _problem(known, facts, seen, largest=largest)
    if isinstance(found, str):
        estimate = _by_controller(facts, seen, found)
        return replace(estimate, savings=_from_counters(known, facts, seen))
    from joulecut_engine.optimize.solver import Solver
    from joulecut_lab.audit.profile_estimate import MeasuredJob, ProfileEstimate

    asked, slo, source, lone = found
    rate = seen.rates.get(facts.name, Rate())
    now = MeasuredJob(
        work_j=facts.work_j,
        clock_mhz=facts.clock_mhz,
        iteration_s=rate.iteration_s,
        peer_s=rate.mean_peer_s,
        waited_share=rate.waited_share,
    )
    ground = ProfileEstimate(asked, now, Solver, source)
    extrinsic = ground.extrinsic()
    if lone and extrinsic.joules is None and not ground.unexplained:
        extrinsic = Amount(0.0, "predicted", "one pipeline: no siblings to wait for")
    deadline_s = slo.deadline_s(rate.iteration_s or ground.iteration_s)
    return Estimate(ground.intrinsic(), extrinsic, ground.savings(deadline_s))


def _from_counters(
    known: OperatorInput, facts: OwnerTotals, seen: Observed
) -> tuple[PlanSaving, ...]:
    """What one lower clock would save, by counters; empty where they say nothing.

    The engine is of the controller's role; an audit without numpy has no prediction.
    """
    names = [seen.gpus[uuid] for uuid in facts.uuids if uuid in seen.gpus]
    if find_spec("numpy") is None or len({name.model for name in names}) != 1:
        return ()
    from joulecut_lab.audit.first_saving import predicted_saving

    top_mhz = max(name.top_mhz for name in names)
    job = _entry(known.policy, facts, seen) if known.policy else None
    budget = job.slo.max_slowdown if job is not None else None
    made = (
        predicted_saving(facts, names[0].model, top_mhz, ratio, known.sensitivity)
        for ratio in (BUDGETS if budget is None else (budget,))
    )
    return tuple(one for one in made if one is not None)


def _by_controller(facts: OwnerTotals, seen: Observed, why: str) -> Estimate:
    """From the series of a running controller."""
    said = seen.bloat_j.get(facts.name) or seen.bloat_j.get(facts.name.rpartition("/")[2])
    if not said:
        return Estimate(Amount.unknown(why), Amount.unknown(why))
    text = "from the controller's series"
    made = [
        Amount(said[kind], "predicted", text) if kind in said else Amount.unknown(why)
        for kind in ("intrinsic", "extrinsic")
    ]
    return Estimate(made[0], made[1])


def _problem(
    known: OperatorInput, facts: OwnerTotals, seen: Observed, *, largest: bool
) -> "tuple[Problem, Slo, str, bool] | str":
    """The job's problem, its target, where its costs come from, and whether it is one pipeline;
    or why there is none.
    """
    if known.job is not None:
        if not largest:
            return "the job file describes the largest job only; a policy can describe more"
        one = known.job
        return one.problem(), NO_SLOWDOWN, str(one.path), one.pipeline.data_parallel == 1
    if known.policy is None:
        return NO_PROFILE
    job = _entry(known.policy, facts, seen)
    return _priced(job) if job else "no entry of the policy matches this job"


def _priced(job: JobPolicy) -> "tuple[Problem, Slo, str, bool] | str":
    if job.pipeline is None or job.profile is None:
        missing = "pipeline" if job.pipeline is None else "profile"
        return f"entry {job.name} of the policy has no {missing}"
    from joulecut_engine.optimize.formulation import mismatch, problem

    if complaint := mismatch(job.pipeline, job.profile):
        return f"entry {job.name} of the policy: {complaint}"
    asked = problem(job.pipeline, job.profile, job.blocking_power_w)
    return asked, job.slo, job.profile.source, job.pipeline.data_parallel == 1


def _entry(policy: Policy, facts: OwnerTotals, seen: Observed) -> JobPolicy | None:
    """The entry by name, by the owner of its GPUs, or by its list of GPUs."""
    places = {seen.gpus[uuid].place for uuid in facts.uuids if uuid in seen.gpus}
    allocation = seen.allocations.get(facts.name)
    for job in policy.jobs:
        if facts.name == job.name or facts.name.rpartition("/")[2] == job.name:
            return job
        if allocation is not None and matches(job, allocation):
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
