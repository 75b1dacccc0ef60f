"""Parses a YAML document into a policy, or raises BadInput with the first fault.

Pure: the caller reads the file and supplies a reader of profiles. Checks go from outside in: is it
a policy, does every key and value have a known shape, do the keys fit together, is every key
available in this version.
"""

from collections.abc import Callable
from typing import Literal, cast

from pydantic import ValidationError

from joulecut_controller.policy.diagnostics import empty_values, first, of_shape
from joulecut_controller.policy.policy import (
    ClockPolicy,
    Cost,
    FoundJobsPolicy,
    GranularityAsked,
    JobPolicy,
    Mode,
    OptIn,
    PodMatch,
    Policy,
    Ranks,
    Slo,
    SlurmJobMatch,
    Verify,
)
from joulecut_controller.policy.quantity import shown
from joulecut_controller.policy.rate_query import RateQuery
from joulecut_controller.policy.schema import (
    API_VERSION,
    KIND,
    ClusterKeys,
    JobKeys,
    PipelineKeys,
    PolicyKeys,
    SloKeys,
    SlurmMatch,
)
from joulecut_controller.policy.validation import contradictions, not_yet, shape_of
from joulecut_engine.graph.pipeline import Pipeline, Profile
from joulecut_engine.graph.shape import kinds_of
from joulecut_engine.optimize.formulation import completed, mismatch
from joulecut_wire.document import Document, KeyPath
from joulecut_wire.errors import BadInput

Profiles = Callable[[str], Profile]
# Of a run file: predicted profile, blocking power, and the pipeline that it describes.
Models = Callable[[str], tuple[Profile, float, Pipeline]]
JOBS_MAX = 20_000  # twice a cluster of 10,000 one-GPU jobs; each costs 0.1 ms here
GPU_ENTRIES_MAX = 20_000  # of match.gpus in the whole file; an entry names up to 64 GPUs


def parse(document: Document, profiles: Profiles, models: Models | None = None) -> Policy:
    """The policy that a document holds.

    `profiles` and `models` read the file of a path as written, or raise BadInput; they are called
    last, once the file itself is valid. Raises BadInput for the first fault in the file. `digest`
    is set by the caller, which has the bytes.
    """
    _is_a_policy(document)
    _is_bounded(document)
    try:
        keys = PolicyKeys.model_validate(document.data)
    except ValidationError as error:
        diagnostic = first(document, of_shape(error, PolicyKeys))
        assert diagnostic is not None
        raise diagnostic from None
    fault = (
        first(document, empty_values(document.data))
        or first(document, contradictions(keys))
        or first(document, not_yet(keys))
    )
    if fault:
        raise fault
    jobs = tuple(
        _job(document, ("jobs", number), job, keys.mode, _Costs(document, profiles, models))
        for number, job in enumerate(keys.jobs)
    )
    return Policy(
        mode=keys.mode,
        jobs=jobs,
        found_jobs=FoundJobsPolicy(
            "off" if keys.found_jobs.mode == "off" else "recommend", keys.found_jobs.max_slowdown
        ),
        cost=_cost(keys.cluster),
        source=document.name,
        power_budget_w=keys.cluster.power_budget_w,
    )


def effective_mode(policy_mode: Mode, job_mode: Mode | None) -> Mode:
    """A job's mode overrides the file's, except that `off` for the file is off for all jobs.

    So an operator can enforce one job while new ones only get recommendations, and can still stop
    everything with one word.
    """
    if policy_mode == "off":
        return "off"
    return job_mode or policy_mode


def _is_a_policy(document: Document) -> None:
    data = document.data
    allowed = f"apiVersion: {API_VERSION}, kind: {KIND}"
    if data is None:
        raise document.bad((), "the file is empty", allowed)
    if not isinstance(data, dict):
        raise document.bad((), f"{shown(data)} is not a policy", "a mapping of keys")
    if "apiVersion" not in data and not data.keys().isdisjoint(("pipeline", "graph")):
        raise document.bad((), "a job file, read by joulecut plan; not a policy", allowed)
    for key, right in (("apiVersion", API_VERSION), ("kind", KIND)):
        if key not in data:
            raise document.bad((key,), "key missing", right)
        if data[key] != right:
            raise document.bad((key,), f"{shown(data[key])} is not known", right)


def _is_bounded(document: Document) -> None:
    """Before anything is made of the entries; what is no list is refused later."""
    jobs = document.data.get("jobs")
    if not isinstance(jobs, list):
        return
    if len(jobs) > JOBS_MAX:
        raise document.bad(("jobs",), f"{len(jobs)} jobs", f"at most {JOBS_MAX} in a file")
    entries = 0
    for number, job in enumerate(jobs):
        match = job.get("match") if isinstance(job, dict) else None
        gpus = match.get("gpus") if isinstance(match, dict) else None
        entries += len(gpus) if isinstance(gpus, list) else 0
        if entries > GPU_ENTRIES_MAX:
            what = f"more than {GPU_ENTRIES_MAX} entries of GPUs"
            raise document.bad(("jobs", number, "match", "gpus"), what, "ranges: node1/0-7")


class _Costs:
    """Reads profiles and models; a fault names both the key and the place in the file."""

    def __init__(self, document: Document, profiles: Profiles, models: Models | None) -> None:
        self._document, self._profiles, self._models = document, profiles, models

    def read(
        self, keys: PipelineKeys, pipeline: Pipeline, path: KeyPath
    ) -> tuple[Profile | None, float]:
        """The profile, None without one, and the blocking power. Raises BadInput."""
        if keys.profile is None and (keys.model is None or self._models is None):
            return None, keys.blocking_power_w or 0.0
        place: KeyPath = (*path, "pipeline", "profile" if keys.profile else "model")
        try:
            if keys.profile is not None:
                measured, watts, shape = self._profiles(keys.profile), 0.0, pipeline
            else:
                assert self._models is not None
                measured, watts, shape = self._models(keys.model or "")
        except BadInput as error:
            where = f"{self._document.where(place)}: {error.where}"
            raise BadInput(where, error.what, error.allowed) from None
        self._same_shape(place, pipeline, shape)
        watts = watts if keys.blocking_power_w is None else keys.blocking_power_w
        profile = measured
        if mismatch(pipeline, measured):  # a whole backward follows from its halves
            profile = completed(measured, kinds_of(pipeline), None)
        what = mismatch(pipeline, profile)
        if what:
            kinds = ", ".join(kinds_of(pipeline))
            allowed = f"stages 0 to {pipeline.stages - 1}, each with {kinds}"
            raise self._document.bad(place, what, allowed)
        if fault := measured.units_fault(watts):
            raise self._document.bad(place, fault, "times in seconds, energies in joules")
        return profile, watts

    def _same_shape(self, place: KeyPath, pipeline: Pipeline, shape: Pipeline) -> None:
        for key in ("schedule", "stages", "microbatches", "chunks"):
            told, here = getattr(shape, key), getattr(pipeline, key)
            if told != here:
                what = f"the run file has {key} {told}, the policy {here}"
                raise self._document.bad(place, what, "the same pipeline in both")


def _job(document: Document, path: KeyPath, keys: JobKeys, mode: Mode, costs: _Costs) -> JobPolicy:
    groups = keys.match.gpus if keys.match and keys.match.gpus else []
    pipeline = shape_of(keys.pipeline) if keys.pipeline else None
    profile, watts = None, 0.0
    if pipeline and keys.pipeline:
        profile, watts = costs.read(keys.pipeline, pipeline, path)
    if profile is not None:
        _floor_is_low_enough(document, path, keys.clocks.min_mhz, profile)
    return JobPolicy(
        name=keys.name,
        mode=effective_mode(mode, keys.mode),
        slo=_slo(keys.slo),
        gpus=tuple(gpu for references in groups for gpu in references),
        clocks=ClockPolicy(
            granularity=cast("GranularityAsked | None", keys.clocks.granularity),
            changes=keys.clocks.changes,
            changes_given="changes" in keys.clocks.model_fields_set,
            min_mhz=keys.clocks.min_mhz,
            min_dwell_s=keys.clocks.min_dwell,
        ),
        pipeline=pipeline,
        profile=profile,
        rate=keys.slo.rate if isinstance(keys.slo.rate, RateQuery) else None,
        power_signature=keys.slo.rate == "power-signature",
        predicted=profile if keys.pipeline and keys.pipeline.model else None,
        blocking_power_w=watts,
        weight=keys.weight,
        ranks=cast("Ranks", keys.ranks.source),
        pods=_pods(keys),
        slurm=_slurm(keys.match.slurm if keys.match else None),
        rank_order=keys.ranks.order,
        verify=Verify(keys.verify.holdout, keys.verify.window),
        tenant=keys.tenant or "",
        opt_in=OptIn(keys.opt_in.allow, keys.opt_in.max_slowdown_up_to, _slurm(keys.opt_in.slurm)),
    )


def _pods(keys: JobKeys) -> PodMatch | None:
    match = keys.match.kubernetes if keys.match else None
    return PodMatch(match.namespace, tuple(sorted(match.labels.items()))) if match else None


def _slurm(keys: SlurmMatch | None) -> SlurmJobMatch | None:
    return SlurmJobMatch(**keys.model_dump(exclude_none=True)) if keys else None


def _floor_is_low_enough(document: Document, path: KeyPath, min_mhz: int, profile: Profile) -> None:
    """A minimum clock above the profile would leave a stage without a clock."""
    highest = min(max(o.clock_mhz for o in options) for options in profile.options.values())
    if min_mhz > highest:
        raise document.bad(
            (*path, "clocks", "min_mhz"),
            f"{min_mhz} is above every clock of the profile",
            f"up to {highest}",
        )


def _slo(keys: SloKeys) -> Slo:
    held: Literal["mean", "p95"] = "p95" if keys.statistic == "p95" else "mean"
    rate, time_s = keys.min_rate, keys.max_iteration_time
    if rate is not None:
        return Slo(max_iteration_time_s=rate.iteration_time_s, given_as="min_rate", statistic=held)
    if time_s is not None:
        return Slo(max_iteration_time_s=time_s, given_as="max_iteration_time", statistic=held)
    return Slo(
        max_slowdown=keys.max_slowdown,
        given_as="max_slowdown",
        statistic=held,
        tolerance=keys.tolerance,
    )


def _cost(keys: ClusterKeys) -> Cost:
    cost = keys.cost
    return Cost(
        gpu_hour=cost.gpu_hour,
        kwh=cost.kwh,
        host_power_w=cost.host_power_w,
        pue=cost.pue,
        co2_g_per_kwh=cost.co2_g_per_kwh,
    )
