"""Rules across keys. Each function yields diagnostics and changes nothing."""

from collections.abc import Iterator, Mapping

from joulecut_controller.policy.hourly import NAMES
from joulecut_controller.policy.policy import Cost, GpuRef, Series, SlurmJobMatch
from joulecut_controller.policy.rate_query import RateQuery
from joulecut_controller.policy.schema import TARGETS, JobKeys, PolicyKeys
from joulecut_engine.graph.shape import misfit
from joulecut_wire.document import KeyPath, show
from joulecut_wire.duration import ITERATION_S_MAX
from joulecut_wire.section import Place

MATCHES = ("kubernetes", "slurm", "gpus")
HOLDOUT_MIN = 0.001  # one window of five minutes in four days; less measures nothing
UNUSED_S_MIN = 60.0  # less is a pause of work
WINDOW_S_MIN = 60.0  # below it warm-ups take more than three fifths of a slot
WINDOW_WARM_UPS_MIN, WINDOW_KNOWN_S_MIN = 2.0 / 3.0, 10.0  # the same beside a warm-up that is given
WARM_UP_S = (1.0, 600.0)
WINDOW_S_MAX = 6 * 3600.0  # a job drifts meanwhile, and windows far apart cannot be compared
HOLDOUT_RANGES_MIN = 12  # a window needs eight means, and those at its ends do not count


def contradictions(keys: PolicyKeys) -> Iterator[Place]:
    """Contradictions between keys."""
    yield from _series(keys.cluster.cost)
    if keys.idle.after_s < UNUSED_S_MIN:
        what = f"{keys.idle.after_s:g} s is out of range"
        yield Place(("idle", "after"), what, "a time from 1min to 24h")
    named: dict[str, KeyPath] = {}
    owners: dict[GpuRef, int] = {}
    for number, job in enumerate(keys.jobs):
        path: KeyPath = ("jobs", number)
        if job.name in named:
            yield Place(
                (*path, "name"),
                f'"{job.name}" is also the name of {show(named[job.name])}',
                "one entry per name",
            )
        named.setdefault(job.name, path)
        off = "off" in {job.mode, job.mode or keys.mode} or bool(_fixes(job))
        yield from _fixed(job, path)
        yield from _target(job, path, keys.cluster.cost, off=off)
        yield from _match(job, path)
        for other, before in enumerate(keys.jobs[:number]):
            if job.match is not None and job.match.gpus is None and job.match == before.match:
                what = f"is that of {show(('jobs', other))}, which takes every job"
                yield Place((*path, "match"), what, "each match once in the whole file")
        yield from _listed_once(keys, number, owners)
        yield from _ranks(job, path)
        yield from _pipeline(job, path)
        yield from _verify(job, path)
        yield from _rate(job, path)
        yield from _class(job, path)
        if job.verify.holdout > 0.0 and keys.cluster.power_budget_w is not None:
            yield Place(
                (*path, "verify", "holdout"),
                "contradicts cluster.power_budget_w: at default clocks the power is not bounded",
                "0% beside a power budget",
            )


def _target(job: JobKeys, path: KeyPath, cost: Cost, *, off: bool) -> Iterator[Place]:
    """A job that is off needs none."""
    given = job.slo.targets
    if not given and not off and not job.slo.least_cost:
        targets = f"exactly one of {', '.join(TARGETS)}, or least_cost: true"
        yield Place((*path, "slo"), "no target", targets)
    if job.slo.least_cost:
        if given[:1] not in ([], ["max_slowdown"]):
            what = f"contradicts {given[0]}: a job has one target"
            yield Place((*path, "slo", "least_cost"), what, "alone, or beside max_slowdown")
        lacks = [f"cluster.cost.{key}" for key in ("gpu_hour", "kwh") if getattr(cost, key) is None]
        if lacks:
            what = f"needs the site's prices; missing: {', '.join(lacks)}"
            yield Place((*path, "slo", "least_cost"), what, "cluster.cost with gpu_hour and kwh")
    for extra in given[1:]:
        yield Place(
            (*path, "slo", extra),
            f"contradicts {given[0]}: a job has one target",
            f"exactly one of {', '.join(TARGETS)}",
        )
    rate = job.slo.min_rate
    if rate is not None and rate.iteration_time_s > ITERATION_S_MAX:
        yield Place(
            (*path, "slo", "min_rate", "value"),
            "an iteration would last more than a day",
            f"at most {ITERATION_S_MAX:g} s per iteration",
        )


def _fixed(job: JobKeys, path: KeyPath) -> Iterator[Place]:
    """A fixed clock or power limit has no plan, and GPUs that are known without reports."""
    if not (place := _fixes(job)):
        return
    place = (*path, *place)
    if job.match is None:
        yield Place(place, f"a fixed {_FIXES[place[-1]]} names no GPU", "match beside it")
    if 0 < job.clocks.lock_mhz < job.clocks.min_mhz:
        yield Place(place, f"below min_mhz {job.clocks.min_mhz}", "one of the two")
    if job.slo.least_cost:
        yield Place(place, "contradicts slo.least_cost: nothing is predicted", "one of the two")
    if job.pipeline is not None:
        what = f"contradicts pipeline: a fixed {_FIXES[place[-1]]} has no plan"
        yield Place(place, what, "one of the two")
    if job.verify.holdout > 0.0:
        yield Place(place, "contradicts verify.holdout: it stays set", "one of the two")


_FIXES: Mapping[str | int, str] = {"lock_mhz": "clock", "power_limit_w": "power limit"}


def _fixes(job: JobKeys) -> KeyPath:
    """The key that fixes clock or power limit; empty without one."""
    if job.clocks.lock_mhz:
        return ("clocks", "lock_mhz")
    return ("power_limit_w",) if job.power_limit_w else ()


def _series(cost: Cost) -> Iterator[Place]:
    """A series falls back to a constant."""
    for key, (constant, _) in NAMES.items():
        series: Series | None = getattr(cost, key)
        place: KeyPath = ("cluster", "cost", key)
        if series is not None and bool(series.csv) == bool(series.promql):
            yield Place(place, "not one series", "exactly one of csv, promql")
        elif series is not None and getattr(cost, constant) is None:
            what = f"{constant} is missing: it counts where the series has no value"
            yield Place(place, what, f"cluster.cost.{constant} beside it")


def _rate(job: JobKeys, path: KeyPath) -> Iterator[Place]:
    """A rate names no GPU."""
    query = job.slo.rate
    if not isinstance(query, RateQuery):
        return
    if job.match is None:
        what = "a rate names no GPU"
        yield Place((*path, "slo", "rate"), what, "match beside it")
    least_s = HOLDOUT_RANGES_MIN * query.range_s
    if job.verify.holdout > 0.0 and job.verify.window_s < least_s:
        what = f"a rate has a value every {query.range_s:g} s only"
        yield Place((*path, "verify", "window"), what, f"at least {least_s:g}s")


def _match(job: JobKeys, path: KeyPath) -> Iterator[Place]:
    if job.match is None:
        return
    place: KeyPath = (*path, "match")
    given = [key for key in MATCHES if getattr(job.match, key) is not None]
    if not given:
        yield Place(place, "nothing to match", "gpus, or no match at all")
    for extra in given[1:]:
        yield Place(
            (*place, extra), f"contradicts {given[0]}", f"exactly one of {', '.join(MATCHES)}"
        )
    if job.match.slurm is not None:
        yield from _slurm(job.match.slurm, (*place, "slurm"))
    if job.match.gpus == ():
        yield Place((*place, "gpus"), "an empty list", "at least one GPU")


def _listed_once(keys: PolicyKeys, number: int, owners: dict[GpuRef, int]) -> Iterator[Place]:
    """`owners`: number of the job of each GPU listed before; this job's are added."""
    match = keys.jobs[number].match
    for entry, references in enumerate((match.gpus if match else None) or ()):
        for gpu in references:
            if gpu in owners:
                other = keys.jobs[owners[gpu]].name
                owner = "this job already" if owners[gpu] == number else f'"{other}"'
                yield Place(
                    ("jobs", number, "match", "gpus", entry),
                    f"{gpu.node}/{gpu.index} belongs to {owner}",
                    "each GPU once in the whole file",
                )
                break
            owners[gpu] = number


def _ranks(job: JobKeys, path: KeyPath) -> Iterator[Place]:
    """`list` means that match.gpus is in rank order, `completion-index` that its pods are."""
    place: KeyPath = (*path, "ranks", "source")
    if job.ranks.source == "completion-index":
        if job.match is None or job.match.kubernetes is None:
            what = "completion-index takes its ranks from pods"
            yield Place(place, what, "match.kubernetes beside it")
        elif job.pipeline is None:
            what = "completion-index needs stages"
            yield Place(place, what, "pipeline beside it")
    if job.ranks.source != "list":
        return
    listed = len(job.match.listed) if job.match else 0
    if not listed:
        yield Place(place, "list takes its ranks from match.gpus", "match.gpus beside it")
    elif job.pipeline is None:
        yield Place(place, "list needs stages", "pipeline beside it")
    else:
        shape = job.pipeline.shape()
        stages, widest = shape.stages, shape.width
        place = (*path, "match", "gpus")
        if shape.lockstep > 1:  # groups count whole, and all of them
            if listed != stages * widest:
                what = f"{listed} GPUs do not make {stages} stages of {widest}"
                yield Place(place, what, f"{stages * widest} GPUs")
        elif listed % stages or listed // stages > widest:
            yield Place(
                place,
                f"{listed} GPUs do not make {stages} stages of up to {widest}",
                f"{stages} GPUs" + (f", or up to {widest} times as many" if widest > 1 else ""),
            )


def _pipeline(job: JobKeys, path: KeyPath) -> Iterator[Place]:
    pipeline = job.pipeline
    if pipeline is None:
        return
    shape = pipeline.shape()
    fault = misfit(shape)
    if fault is not None:
        yield Place((*path, "pipeline", fault.key), fault.what, fault.allowed)
    if shape.width % shape.lockstep:
        what = f"{pipeline.expert_parallel} experts' groups do not fit"
        allowed = "a divisor of context_parallel x data_parallel"
        yield Place((*path, "pipeline", "expert_parallel"), what, allowed)
    if pipeline.profile is not None and pipeline.blocking_power_w is None:
        yield Place(
            (*path, "pipeline"),
            "blocking_power_w is missing beside profile",
            "the watts that a GPU draws while it waits for its neighbours",
        )
    listed = len(job.match.listed) if job.match else 0
    if 0 < listed < pipeline.stages:
        yield Place(
            (*path, "match", "gpus"),
            f"{listed} GPUs for {pipeline.stages} stages",
            f"at least {pipeline.stages} GPUs",
        )


def _verify(job: JobKeys, path: KeyPath) -> Iterator[Place]:
    verify, place = job.verify, (*path, "verify")
    least_s, known_s = WINDOW_S_MIN, verify.warm_up_s
    if known_s is not None:
        least_s = min(least_s, max(WINDOW_KNOWN_S_MIN, WINDOW_WARM_UPS_MIN * known_s))
        if not WARM_UP_S[0] <= known_s <= WARM_UP_S[1]:
            what = f"{known_s:g} s is out of range"
            yield Place((*place, "warm_up"), what, "a time from 1s to 10min")
    if not least_s <= verify.window_s <= WINDOW_S_MAX:
        what = f"{verify.window_s:g} s is out of range"
        least = "1min" if least_s == WINDOW_S_MIN else f"{least_s:g}s"
        yield Place((*place, "window"), what, f"a time from {least} to 6h")
    if 0.0 < verify.holdout < HOLDOUT_MIN:
        yield Place(
            (*place, "holdout"),
            f"{verify.holdout * 100:.2g}% is one window in many days, too few to measure",
            f"0%, or {HOLDOUT_MIN:.1%} to 50%",
        )
    if verify.holdout > 0.0 and verify.window_s < job.clocks.min_dwell_s:
        yield Place(
            (*place, "window"),
            f"a window of {verify.window_s:g} s is shorter than clocks.min_dwell, "
            f"{job.clocks.min_dwell_s:g} s, after which clocks may come back",
            f"{job.clocks.min_dwell_s:g}s or longer",
        )


def _slurm(match: SlurmJobMatch, place: KeyPath) -> Iterator[Place]:
    if match == SlurmJobMatch() or (match.job_id and match != SlurmJobMatch(job_id=match.job_id)):
        what = "a word beside an id" if match.job_id else "nothing to match"
        yield Place(place, what, "job_id alone, or job_name, user, account, partition")


def _class(job: JobKeys, path: KeyPath) -> Iterator[Place]:
    match = job.match
    owned = match is not None and (match.kubernetes or match.slurm)
    if job.each and not owned:
        what = "stands for the running jobs that match, and nothing matches"
        yield Place((*path, "each"), what, "match.kubernetes or match.slurm beside it")
    if job.each and match and match.slurm and match.slurm.job_id:
        yield Place((*path, "each"), "a job id is one job", "each: false, or no job_id")
    for number, left in enumerate(job.excluded):
        place: KeyPath = (*path, "except", number)
        if (left.kubernetes is None) == (left.slurm is None):
            yield Place(place, "not one match", "exactly one of kubernetes, slurm")
        elif match is None or (left.slurm is None) != (match.slurm is None) or match.gpus:
            what = "leaves nothing out: the entry's match is another"
            yield Place(place, what, "the same one of kubernetes, slurm as in match")
        if left.slurm is not None:
            yield from _slurm(left.slurm, (*place, "slurm"))
