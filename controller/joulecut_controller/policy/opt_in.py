"""Jobs that opt in by themselves: by annotations of their pods, or words of their Slurm comment.

`joulecut.dev/policy` names an entry with `opt_in.allow` and without a `match`: a template, of which
each such job gets a copy. `joulecut.dev/max-slowdown` is the job's own target. Both count only
within what the operator's entry allows. A refused job gets default clocks, and a row with the
reason; an entry's own target stays where a word against it is refused. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from joulecut_controller.policy.owner import (
    KUBERNETES,
    SLURM,
    Instance,
    instance_of,
    matches,
    matches_slurm,
)
from joulecut_controller.policy.owner import shared as has_several_owners
from joulecut_controller.policy.policy import (
    SLOWDOWN,
    JobPolicy,
    PodMatch,
    Policy,
    Slo,
    SlurmJobMatch,
)
from joulecut_wire.messages import Allocation
from joulecut_wire.quantity import Fault

# As agents put them among the labels of an owner.
POLICY, MAX_SLOWDOWN = "joulecut.dev/policy", "joulecut.dev/max-slowdown"
JOBS_MAX = 1_000  # each is a row of the page, and a job of every pass
SHOWN_MAX = 80  # letters of a word that a job says, in a sentence
NAME_MAX = 253


@dataclass(frozen=True, slots=True)
class Words:
    """What a running job asks for. `owner` is one of its allocations."""

    policy: str
    max_slowdown: str
    owner: Allocation
    agree: bool = True  # its pods say the same


def with_opted_in(policy: Policy, allocations: Iterable[Allocation]) -> Policy:
    """The policy with the jobs that opted in: templates go, and their copies come last, so that
    entries with a match of their own come first.
    """
    words = _words(allocations)
    if not words and not any(_is_template(job) for job in policy.jobs):
        return policy
    templates = {job.name: job for job in policy.jobs if _is_template(job)}
    named = {job.name: job for job in policy.jobs}
    jobs, left = [], dict(words)
    for job in policy.jobs:
        if job.name in templates:
            continue
        mine = [one for one, said in words.items() if matches(job, said.owner)]
        for one in mine:
            left.pop(one, None)
        jobs.append(_adjusted(job, words[mine[0]]) if len(mine) == 1 else job)
    names = {job.name for job in jobs}
    for instance, said in sorted(left.items())[:JOBS_MAX]:
        copied = _copy(templates, named, instance, said)
        if copied.name not in names:
            names.add(copied.name)
            jobs.append(copied)
    return replace(policy, jobs=tuple(jobs))


def _is_template(job: JobPolicy) -> bool:
    return job.opt_in.allow and not job.gpus and not job.found_by_allocation


def _words(allocations: Iterable[Allocation]) -> dict[Instance, Words]:
    """What every running job asks for, where it asks for anything."""
    found: dict[Instance, Words] = {}
    for one in allocations:
        policy, slowdown = one.labels.get(POLICY, ""), one.labels.get(MAX_SLOWDOWN, "")
        if not (policy or slowdown) or has_several_owners(one):
            continue
        if one.source not in (KUBERNETES, SLURM):
            continue
        instance = instance_of(one)
        before = found.setdefault(instance, Words(policy, slowdown, one))
        if (before.policy, before.max_slowdown) != (policy, slowdown):
            found[instance] = replace(before, agree=False)
    return found


def _adjusted(job: JobPolicy, words: Words) -> JobPolicy:
    """An entry that matches the job by itself, with the job's own target where that is allowed."""
    if words.policy not in ("", job.name):
        refusal = f"it asks for {_shown(words.policy)}, and entry {job.name} matches it"
        return replace(job, opt_in_refused=refusal)
    slo = _target(job, words)
    return replace(job, opt_in_refused=slo) if isinstance(slo, str) else replace(job, slo=slo)


def _copy(
    templates: dict[str, JobPolicy],
    named: dict[str, JobPolicy],
    instance: Instance,
    words: Words,
) -> JobPolicy:
    """The job of its own that a running job gets; off with the reason where it is refused."""
    template = templates.get(words.policy)
    name = copy_name(words.policy if template else instance.source, instance)
    pods, slurm = match_of(instance)
    slo: Slo | str
    if not words.agree:
        slo = "its pods do not ask for the same"
    elif not words.policy:
        slo = f"it names no entry of the policy ({POLICY})"
    elif template is None and words.policy in named:
        why = "has a match of its own" if named[words.policy].opt_in.allow else "does not allow it"
        slo = f"entry {words.policy} {why}"
    elif template is None:
        slo = f"the policy has no entry {_shown(words.policy)}"
    elif (only := template.opt_in.slurm) and not matches_slurm(only, words.owner):
        slo = f"entry {words.policy} is for Slurm jobs with {only.shown}"
    else:
        slo = _target(template, words)
    if template is None or isinstance(slo, str):
        refusal = slo if isinstance(slo, str) else ""
        off = JobPolicy(name, "off", Slo(max_slowdown=0.0), opt_in_refused=refusal)
        return replace(off, pods=pods, slurm=slurm)
    return replace(template, name=name, slo=slo, pods=pods, slurm=slurm)


def copy_name(entry: str, instance: Instance) -> str:
    """The name of an entry that was made for one running job: `two-stages:train.gpt`."""
    return f"{entry}:{instance.name.replace('/', '.')}"[:NAME_MAX]


def match_of(instance: Instance) -> tuple[PodMatch | None, SlurmJobMatch | None]:
    """`pods` and `slurm` of an entry that stands for this one running job."""
    if instance.source == SLURM:
        return None, SlurmJobMatch(job_id=instance.job)
    return PodMatch(instance.namespace, job=instance.job), None


def _target(job: JobPolicy, words: Words) -> Slo | str:
    """The entry's target with the job's own slowdown, or why it is refused."""
    if not words.agree or not words.max_slowdown:
        return job.slo if words.agree else "its pods do not ask for the same"
    asked = f"{MAX_SLOWDOWN} {_shown(words.max_slowdown)}"
    if not job.opt_in.allow:
        return f"{asked}: entry {job.name} does not allow it"
    if job.slo.max_slowdown is None:
        return f"{asked}: the target of entry {job.name} is {job.slo.given_as}"
    most = job.opt_in.max_slowdown
    most = job.slo.max_slowdown if most is None else most
    try:
        ratio = SLOWDOWN(words.max_slowdown)
    except Fault as fault:
        return f"{asked}: {fault.allowed}"
    allowed = f"{asked} is more than entry {job.name} allows, {most * 100:.6g}%"
    return replace(job.slo, max_slowdown=ratio) if ratio <= most else allowed


def _shown(word: str) -> str:
    return repr(word[:SHOWN_MAX])
