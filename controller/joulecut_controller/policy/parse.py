"""Parses a YAML document into a policy, or raises BadInput with the first fault.

Pure: the caller reads the file and supplies a reader of profiles. Checks go from outside in: is it
a policy, does every key and value have a known shape, do the keys fit together.
"""

from collections.abc import Callable
from dataclasses import replace

from joulecut_controller.policy.hourly import NAMES, Points
from joulecut_controller.policy.policy import JobPolicy, Mode, Policy, Series
from joulecut_controller.policy.rate_query import NO_POWER_SIGNATURE, POWER_SIGNATURE, RateQuery
from joulecut_controller.policy.schema import API_VERSION, KIND, JobKeys, PolicyKeys
from joulecut_controller.policy.validation import contradictions
from joulecut_engine.graph.pipeline import Pipeline, Profile
from joulecut_engine.graph.shape import kinds_of
from joulecut_engine.optimize.formulation import completed, mismatch
from joulecut_wire.document import Document, KeyPath
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import shown
from joulecut_wire.section import first, read

Profiles = Callable[[str], Profile]
Hourly = Callable[[str], Points]
JOBS_MAX = 20_000  # twice a cluster of 10,000 one-GPU jobs; each costs 0.1 ms here
NO_OPT_IN = (
    "opt_in has no effect any more, and an entry without a match is off: each: true with a match "
    "takes every running job of a class, such as pods with the label joulecut.dev/policy"
)
NO_P95 = "slo.statistic: p95 has no effect any more: targets are of the mean iteration"
FINER = "granularity {} means changes, and goes with 0.3"
GPU_ENTRIES_MAX = 20_000  # of match.gpus in the whole file; an entry names up to 64 GPUs


def parse(document: Document, profiles: Profiles, hourly: Hourly | None = None) -> Policy:
    """The policy that a document holds.

    `profiles` and `hourly` (prices) read the file of a path as written, or raise BadInput; they
    are called last, once the file itself is valid. Raises BadInput for the first fault in the file.
    `digest` is set by the caller, which has the bytes.
    """
    _is_a_policy(document)
    _is_bounded(document)
    keys: PolicyKeys = read(document, PolicyKeys, document.data)
    if fault := first(document, contradictions(keys)):
        raise fault
    jobs = (
        _job(document, ("jobs", i), job, keys.mode, profiles) for i, job in enumerate(keys.jobs)
    )
    return Policy(
        hourly=_hourly(document, keys, hourly),
        mode=keys.mode,
        jobs=tuple(jobs),
        found_jobs=keys.found_jobs,
        predict=keys.predict,
        idle=keys.idle,
        cost=keys.cluster.cost,
        source=document.name,
        power_budget_w=keys.cluster.power_budget_w,
        node_power_w=keys.cluster.node_power_w,
    )


def _hourly(document: Document, keys: PolicyKeys, hourly: Hourly | None) -> dict[str, Points]:
    """The series of files, by path. Raises BadInput."""
    found: dict[str, Points] = {}
    for key in NAMES:
        series: Series | None = getattr(keys.cluster.cost, key)
        if series is None or not series.csv or hourly is None:
            continue
        try:
            found[series.csv] = hourly(series.csv)
        except BadInput as error:
            raise document.behind(("cluster", "cost", key, "csv"), error) from None
    return found


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


def _profile(
    document: Document, place: KeyPath, name: str, pipeline: Pipeline, profiles: Profiles
) -> Profile:
    """That of this name, with every operation of the pipeline. Raises BadInput; a fault in the file
    names both the key and the place in the file.
    """
    try:
        measured = profiles(name)
    except BadInput as error:
        raise document.behind(place, error) from None
    profile = measured
    if mismatch(pipeline, measured):  # a whole backward follows from its halves
        profile = completed(measured, kinds_of(pipeline), None)
    if what := mismatch(pipeline, profile):
        kinds = ", ".join(kinds_of(pipeline))
        allowed = f"stages 0 to {pipeline.stages - 1}, each with {kinds}"
        raise document.bad(place, what, allowed)
    return profile


def _job(
    document: Document, path: KeyPath, keys: JobKeys, mode: Mode, profiles: Profiles
) -> JobPolicy:
    match, rate = keys.match, keys.slo.rate
    pipeline = keys.pipeline.shape() if keys.pipeline else None
    profile, watts = None, (keys.pipeline and keys.pipeline.blocking_power_w) or 0.0
    if pipeline and keys.pipeline and keys.pipeline.profile is not None:
        place: KeyPath = (*path, "pipeline", "profile")
        profile = _profile(document, place, keys.pipeline.profile, pipeline, profiles)
        if fault := profile.units_fault(watts):
            raise document.bad(place, fault, "times in seconds, energies in joules")
        _floor_is_low_enough(document, path, keys.clocks.min_mhz, profile)
    template = keys.opt_in is not None and match is None  # no job of its own before either
    gone = [NO_POWER_SIGNATURE] if rate == POWER_SIGNATURE else []
    gone += [NO_OPT_IN] if keys.opt_in is not None else []
    gone += [NO_P95] if keys.slo.statistic == "p95" else []
    clocks, slo = keys.clocks, keys.slo.target()
    if (clocks.lock_mhz or keys.power_limit_w) and not keys.slo.targets:
        slo = replace(slo, given_as="")
    if clocks.granularity in ("computation", "edge"):
        gone += [FINER.format(clocks.granularity)]
        clocks = replace(clocks, granularity="changes")
    return JobPolicy(
        name=keys.name,
        mode="off" if template else effective_mode(mode, keys.mode),
        slo=slo,
        gpus=match.listed if match else (),
        clocks=clocks,
        pipeline=pipeline,
        profile=profile,
        rate=rate if isinstance(rate, RateQuery) else None,
        warning="; ".join(gone),
        blocking_power_w=watts,
        weight=keys.weight,
        ranks=keys.ranks.source,
        pods=match.kubernetes if match else None,
        slurm=match.slurm if match else None,
        rank_order=keys.ranks.order,
        verify=keys.verify,
        tenant=keys.tenant,
        each=keys.each,
        excluded=tuple(one for left in keys.excluded if (one := left.kubernetes or left.slurm)),
        power_limit_w=keys.power_limit_w,
    )


def _floor_is_low_enough(document: Document, path: KeyPath, min_mhz: int, profile: Profile) -> None:
    """A minimum clock above the profile would leave a stage without a clock."""
    highest = min(max(o.clock_mhz for o in options) for options in profile.options.values())
    if min_mhz > highest:
        raise document.bad(
            (*path, "clocks", "min_mhz"),
            f"{min_mhz} is above every clock of the profile",
            f"up to {highest}",
        )
