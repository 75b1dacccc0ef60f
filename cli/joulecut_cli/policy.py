"""`joulecut policy check FILE`, `joulecut policy diff FILE`, and the profiles of a controller.

`check` reads a policy file as the controller does and prints what it means for every job, or its
first fault. `diff` compares it with the policy in force, as values after defaults: a comment or
another order of keys is no difference. `upload` sends a profile to the controller's store, where a
policy can name it like a file; `profiles` lists what is there, `remove` takes one away.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecut_cli.controller_client import Controller, Json, quoted, understood
from joulecut_cli.money import add_price_flags, given_prices, prices_text
from joulecut_cli.progress import Progress
from joulecut_cli.status import add_controller_flags
from joulecut_engine.money import (
    USUAL_POWER_W,
    USUAL_SAVED_RATIO,
    Iteration,
    Prices,
    usual_break_even,
    worth,
)
from joulecut_wire import user_file
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput

if TYPE_CHECKING:
    from joulecut_controller.policy.policy import JobPolicy, Policy, Slo

PROG = "joulecut policy"
REASONS_SHOWN = 3
UPLOAD_BYTES_MAX = 4 << 20  # as the controller has it, which refuses more
DIGEST_SHOWN = 12  # letters, as of a policy
PIPELINE_SHOWN = (
    "schedule", "stages", "microbatches", "tensor_parallel", "context_parallel", "expert_parallel",
    "data_parallel", "sync",
)  # fmt: skip
NOT_COMPARED = ("source", "digest")  # the file's name, and the digest of its bytes


@understood
def run(argv: list[str]) -> int:
    """Raises BadInput where the file is wrong, Unavailable without a controller to ask."""
    if not argv or argv[0] not in {*SUBCOMMANDS, "-h", "--help"}:
        given = f"{argv[0]!r} is no action" if argv else "no action"
        allowed = (
            f"{PROG} check FILE [--json], {PROG} diff FILE, {PROG} profiles, "
            f"{PROG} upload PROFILE.csv, {PROG} remove NAME"
        )
        raise BadInput(PROG, given, allowed)
    return SUBCOMMANDS.get(argv[0], lambda _: _check(argv))(argv[1:])


def _check(argv: list[str]) -> int:
    parser = Parser(f"{PROG} check", "Reads a policy file as the controller does.")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--controller",
        metavar="URL",
        help="also find profiles uploaded there, and check the power budget against its GPUs",
    )
    parser.add_argument(
        "--profiles",
        type=Path,
        metavar="DIR",
        help="folder of profiles, as in the controller's file",
    )
    add_price_flags(parser)
    options = parser.parse_args(argv)
    if options.profiles is not None and not options.profiles.is_dir():
        raise BadInput("--profiles", f"no folder {options.profiles}", "a folder of profiles")
    from joulecut_controller.sources.policy_file import load

    controller = Controller(options.controller) if options.controller else None
    with Progress(f"checking {options.file.name}"):
        uploaded = _Uploaded(controller) if controller else None
        policy = load(options.file, profiles=options.profiles, uploaded=uploaded)
    board = controller.board() if controller else None
    budget = budget_check(policy, board)
    barred = hindrances(policy, board)
    prices = given_prices(options, policy.cost.prices())
    if options.json:
        shown = as_json(policy) | {"power_budget": budget, "hindrances": barred}
        shown["money"] = {"prices": asdict(prices), "warnings": limit_warnings(policy, prices)}
        print(json.dumps(shown, indent=2))
        return FINE
    lines = [as_text(policy, prices)]
    lines += [f"  ! {name}: not enforceable now: {why}" for name, why in barred.items()]
    lines += [f"  power budget: {budget['text']}"] if budget else []
    print("\n".join(lines))
    return FINE


def hindrances(policy: "Policy", board: Json | None) -> dict[str, str]:
    """Why no command could be sent for jobs of the policy, by name, as a controller sees it: by its
    own word for jobs that it knows, else by the GPUs that the policy lists.
    """
    if board is None:
        return {}
    known = {job["name"]: job.get("hindrance") or "" for job in board["jobs"]}
    gpus = {(gpu["node"], gpu["index"]): gpu for gpu in board["gpus"]}
    found: dict[str, str] = {}
    for job in (one for one in policy.jobs if one.mode != "off"):
        why = known.get(job.name, "")
        for ref in job.gpus:
            gpu = gpus.get((ref.node, ref.index))
            if why or (gpu is not None and not gpu["why_not_controllable"]):
                continue
            reason = (
                f"not controllable: {gpu['why_not_controllable']}" if gpu else "no agent has it"
            )
            why = f"GPU {ref.node}/{ref.index}: {reason}"
        if why:
            found[job.name] = why
    return found


class _Uploaded:
    """The profiles uploaded to a controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def digests(self) -> Mapping[str, str]:
        return {one["name"]: one["digest"] for one in self._controller.profiles()}

    def read(self, name: str) -> bytes:
        return self._controller.profile(name).encode()


def _profiles(argv: list[str]) -> int:
    parser = Parser(f"{PROG} profiles", "Lists the profiles uploaded to a controller.")
    add_controller_flags(parser)
    given = parser.parse_args(argv)
    found = Controller(given.controller).profiles()
    if given.json:
        print(json.dumps({"profiles": found}, indent=2))
        return FINE
    for one in found:
        print(f"{one['name']}  {one['bytes']} bytes  {one['digest'][:DIGEST_SHOWN]}")
    if not found:
        print("no profile was uploaded")
    return FINE


def _upload(argv: list[str]) -> int:
    parser = Parser(f"{PROG} upload", "Sends a profile to the controller's store.")
    parser.add_argument("file", type=Path, metavar="PROFILE.csv")
    parser.add_argument("--name", metavar="NAME.csv", help="default: the file's own name")
    parser.add_argument("--replace", action="store_true", help="also one that a job uses")
    add_controller_flags(parser)
    given = parser.parse_args(argv)
    raw = user_file.read(given.file, UPLOAD_BYTES_MAX, "a readable CSV file")
    try:
        content = raw.decode()
    except UnicodeDecodeError:
        raise BadInput(str(given.file), "is not text", "a readable CSV file") from None
    path = f"profiles/{quoted(given.name or given.file.name)}"
    return _done(
        Controller(given.controller).order(path, content=content, replace=given.replace),
        as_json=given.json,
    )


def _remove(argv: list[str]) -> int:
    parser = Parser(f"{PROG} remove", "Removes an uploaded profile that no policy names.")
    parser.add_argument("name", metavar="NAME.csv")
    add_controller_flags(parser)
    given = parser.parse_args(argv)
    answer = Controller(given.controller).order(f"profiles/{quoted(given.name)}/remove")
    return _done(answer, as_json=given.json)


def _done(answer: Json, *, as_json: bool) -> int:
    print(json.dumps(answer, indent=2) if as_json else answer["sentence"])
    return FINE


def budget_check(policy: "Policy", board: Json | None) -> Json | None:
    """What the power budget means for the GPUs of a controller, as far as they are known.

    None without a budget. Raises BadInput where it is below the least possible.
    """
    budget_w, host_w = policy.power_budget_w, policy.cost.host_power_w
    if budget_w is None:
        return None
    if board is None:
        least_w, count, reasons = 0.0, sum(len(job.gpus) for job in policy.jobs), []
    else:
        gpus = board["gpus"]
        keeps = {node["node"] for node in board["nodes"] if node["keeps_power_limits"]}
        free = [gpu for gpu in gpus if gpu["power_controllable"] and gpu["node"] in keeps]
        fixed = [gpu for gpu in gpus if gpu not in free]
        least_w = sum(gpu["power_limit_least_w"] or 0.0 for gpu in free)
        least_w += sum(gpu["power_limit_w"] or 0.0 for gpu in fixed)
        count, reasons = len(gpus), [_why_fixed(gpu, keeps) for gpu in fixed]
    least_w += host_w * count
    if budget_w < least_w:
        what = f"{budget_w:g} W is less than the hosts and least power limits of {count} GPUs"
        where = f"{policy.source}: cluster.power_budget_w"
        raise BadInput(where, what, f"{least_w:g} W or more")
    enforced = policy.mode == "enforce" or any(job.mode == "enforce" for job in policy.jobs)
    text = "power limits keep it" if enforced else "limits are shown, no command is sent"
    if reasons:
        text = f"best effort: {'; '.join(reasons[:REASONS_SHOWN])}"
        more = len(reasons) - REASONS_SHOWN
        text += f"; and {more} more" if more > 0 else ""
    elif board is None and enforced:
        text += " where agents may set them; --controller URL checks that"
    known_w = least_w if board is not None else None
    return {"budget_w": budget_w, "least_w": known_w, "best_effort": reasons, "text": text}


def _why_fixed(gpu: Json, keeps: set[str]) -> str:
    if gpu["node"] not in keeps:
        why = "its agent has no keeper, or none with power.keep_hours"
    else:
        why = gpu["why_not_controllable"] or "the card has no power limit"
    return f"{gpu['node']}/{gpu['index']}: {why}"


def _diff(argv: list[str]) -> int:
    parser = Parser(f"{PROG} diff", "Compares a policy file with the policy in force.")
    parser.add_argument("file", type=Path, metavar="FILE")
    add_controller_flags(parser)
    given = parser.parse_args(argv)
    from joulecut_controller.policy.policy import policy_json
    from joulecut_controller.sources.policy_file import load

    controller = Controller(given.controller)
    mine = policy_json(load(given.file, uploaded=_Uploaded(controller)))
    theirs = controller.policy()
    found = difference(theirs, mine)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_diff_lines(found, theirs, str(given.file), controller.url)))
    return FINE


def limit_warnings(policy: "Policy", prices: Prices) -> dict[str, str]:
    """Why limits lose money, by job; none where the site is short of watts."""
    from joulecut_controller.cluster.worth import limit_of, limit_text

    if policy.power_budget_w is not None:
        return {}
    usual, found = usual_break_even(prices), dict[str, str]()
    for job in (one for one in policy.jobs if one.mode != "off"):
        limit, most = limit_of(job.slo), best_break_even(job, prices)
        if limit > (usual if most is None else most):
            basis = (
                f"about {100.0 * usual:.2f} % ({100.0 * USUAL_SAVED_RATIO:g} % saved of "
                f"{USUAL_POWER_W:g} W)"
                if most is None
                else f"at most {100.0 * most:.2f} % (by its profile)"
            )
            found[job.name] = limit_text(limit, basis)
    return found


def best_break_even(job: "JobPolicy", prices: Prices) -> float | None:
    """A bound on the break-even slowdown of any plan: every operation at its least effective cost,
    in an iteration no longer than the work of the busiest stage. None without a profile.
    """
    if job.profile is None:
        return None
    busy_s, saved_j = dict[int, float](), 0.0
    for (stage, _), options in job.profile.options.items():
        fastest = min(options, key=lambda one: (one.time_s, one.energy_j))
        costs = [one.effective_cost_j(job.blocking_power_w) for one in options]
        saved_j += max(0.0, fastest.effective_cost_j(job.blocking_power_w) - min(costs))
        busy_s[stage] = busy_s.get(stage, 0.0) + fastest.time_s
    default = Iteration(max(busy_s.values()), saved_j)
    return worth(default, Iteration(default.time_s, 0.0), len(busy_s), prices).break_even_slowdown


def as_text(policy: "Policy", prices: Prices) -> str:
    """Every job in a few lines."""
    warnings = limit_warnings(policy, prices)
    count, found = len(policy.jobs), policy.found_jobs
    title = f"{policy.source}: fine ({count} job{'' if count == 1 else 's'}, mode {policy.mode}"
    lines = [f"{title}, content {policy.digest})"]
    for job in policy.jobs:
        lines += [
            f"  {job.name}: {job.mode}",
            f"    target  {_target(job.slo)}",
            f"    GPUs    {_gpus(job)}",
            f"    clocks  {_clocks(job)}",
            f"    work    {_work(job)}",
            f"    so      {outcome(job)}",
        ]
        if job.opt_in.allow:
            lines.append(f"    opt-in  {_opt_in(job)}")
        if job.verify.holdout:
            lines.append(f"    saving  {_holdout(job)}")
        if job.warning:
            lines.append(f"  ! {job.name}: {job.warning}")
        if warning := warnings.get(job.name):
            lines.append(f"  ! {job.name}: {warning}")
    if warnings:
        lines.append(f"  ! {prices_text(prices, 'cluster.cost')}")
    if found.mode == "recommend" and policy.mode != "off":
        slower = f"{found.max_slowdown * 100:.6g}% slower"
        lines.append(f"  jobs without an entry: recommended at {slower}, no command is sent")
    return "\n".join(lines)


def as_json(policy: "Policy") -> dict[str, Any]:
    """The JSON form; units are in the names."""
    return {
        "file": policy.source,
        "digest": policy.digest,
        "mode": policy.mode,
        "cost": asdict(policy.cost),
        "jobs": [_job_json(job) for job in policy.jobs],
    }


def outcome(job: "JobPolicy") -> str:
    """What the controller does for this job."""
    if job.mode == "off":
        return "nothing is planned"
    if job.pipeline is None and job.rate is None:
        return "the job's own reports show its pipeline, else no change"
    if job.profile is None:
        if job.mode == "recommend":
            return "no profile is given: no plan; the first setting to try is shown"
        return "no profile is given: measured step by step while the job runs, within the target"
    if job.mode == "recommend":
        return "plans are made and shown, no command is sent"
    return "clocks are set under leases"


def _job_json(job: "JobPolicy") -> dict[str, Any]:
    pipeline, profile = job.pipeline, job.profile
    return {
        "name": job.name,
        "mode": job.mode,
        "slo": {
            "given_as": job.slo.given_as,
            "max_slowdown_ratio": job.slo.max_slowdown,
            "max_iteration_time_s": job.slo.max_iteration_time_s,
        },
        "gpus": [f"{gpu.node}/{gpu.index}" for gpu in job.gpus],
        "kubernetes": job.pods
        and {"namespace": job.pods.namespace, "labels": dict(job.pods.labels)},
        "slurm": job.slurm and {key: word or None for key, word in asdict(job.slurm).items()},
        "ranks": job.ranks,
        "rank_order": job.rank_order,
        "granularity": job.clocks.granularity,
        "clock_min_mhz": job.clocks.min_mhz,
        "min_dwell_s": job.clocks.min_dwell_s,
        "pipeline": pipeline and {key: getattr(pipeline, key) for key in PIPELINE_SHOWN},
        "profile": profile and {"source": profile.source, "clocks_mhz": _profiled_mhz(job)},
        "blocking_power_w": job.blocking_power_w if profile else None,
        "tenant": job.tenant or None,
        "opt_in": {
            "allow": job.opt_in.allow,
            "max_slowdown_ratio": job.opt_in.max_slowdown,
            "slurm": job.opt_in.slurm and job.opt_in.slurm.shown,
        },
        "holdout_ratio": job.verify.holdout,
        "window_s": job.verify.window_s,
        "outcome": outcome(job),
    }


def _opt_in(job: "JobPolicy") -> str:
    """What running jobs may ask for."""
    template = not job.gpus and not job.found_by_allocation
    only = f"Slurm job with {job.opt_in.slurm.shown}" if job.opt_in.slurm else "job"
    who = f"every {only} that names it gets a copy" if template else "the job may ask"
    if job.slo.max_slowdown is None:
        return who if template else "allowed, but the target is no max_slowdown"
    most = job.opt_in.max_slowdown
    most = job.slo.max_slowdown if most is None else most
    return f"{who}, with a max_slowdown up to {most * 100:.6g}%"


def _holdout(job: "JobPolicy") -> str:
    """How the saving is measured, or why it is not."""
    text = f"measured in {job.verify.window_s:g} s windows at default clocks"
    if job.mode == "enforce" and job.pipeline is not None:
        return f"{text}, {job.verify.holdout * 100:.3g}% of the time"
    why = f"mode {job.mode}" if job.mode != "enforce" else "no pipeline"
    return f"{text}, once clocks are set ({why}: no windows)"


def _target(slo: "Slo") -> str:
    if slo.max_slowdown is not None and slo.max_slowdown <= slo.tolerance:
        return f"not measurably slower than at default clocks ({slo.tolerance * 100:.6g}%)"
    if slo.max_slowdown is not None:
        return f"at most {slo.max_slowdown * 100:.6g}% slower than at default clocks"
    given = "" if slo.given_as == "max_iteration_time" else f" ({slo.given_as})"
    return f"an iteration in at most {slo.max_iteration_time_s:.6g} s{given}"


def _gpus(job: "JobPolicy") -> str:
    said = {
        "hook": "stages as reported",
        "list": "ranks in this order, verified by the reports",
        "completion-index": "ranks by completion index, verified by the reports",
    }[job.ranks]
    if job.found_by_allocation:
        from joulecut_controller.policy.owner import wanted

        return f"those allocated to {wanted(job)}; {said}"
    if not job.gpus:
        return f"those that report this job; {said}"
    names = [f"{gpu.node}/{gpu.index}" for gpu in job.gpus]
    shown = names if len(names) <= 8 else [*names[:4], "...", names[-1]]
    return f"{len(names)} ({' '.join(shown)}); {said}"


def _clocks(job: "JobPolicy") -> str:
    floor = f"never below {job.clocks.min_mhz} MHz" if job.clocks.min_mhz else "no minimum"
    return f"granularity {job.clocks.granularity}, {floor}, kept for {job.clocks.min_dwell_s:g} s"


def _work(job: "JobPolicy") -> str:
    if job.pipeline is None:
        return "unknown"
    p = job.pipeline
    shape = f"{p.schedule}, {p.stages} stages x {p.microbatches} microbatches"
    if p.lockstep > 1:
        shape += f", {p.lockstep} GPUs a stage in one lock-step group"
    if p.replicas > 1:
        shape += f", {p.replicas} pipelines side by side (sync: {p.sync})"
    clocks = _profiled_mhz(job)
    if job.profile is None or not clocks:
        return shape
    return f"{shape}; {job.profile.source}: {len(clocks)} clocks, {clocks[0]}-{clocks[-1]} MHz"


def _profiled_mhz(job: "JobPolicy") -> list[int]:
    options = job.profile.options.values() if job.profile else ()
    return sorted({option.clock_mhz for one in options for option in one})


def difference(before: Json, after: Json) -> Json:
    """Jobs added and removed by name, and every changed value by its dotted key."""
    old, new = ({job["name"]: job for job in one["jobs"]} for one in (before, after))
    both = [name for name in old if name in new]
    changed = list(_changed("", _cluster(before), _cluster(after)))
    changed += [one for name in both for one in _changed(name, old[name], new[name])]
    moved = both != [name for name in new if name in old]
    added, removed = [n for n in new if n not in old], [n for n in old if n not in new]
    return {
        "same": not (changed or added or removed or moved),
        "added": added,
        "removed": removed,
        "changed": changed,
        "order_changed": moved,
    }


def _cluster(policy: Json) -> Json:
    return {key: value for key, value in policy.items() if key not in (*NOT_COMPARED, "jobs")}


def _changed(job: str, before: Json, after: Json) -> Iterator[Json]:
    old, new = dict(_flat(before)), dict(_flat(after))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield {"job": job, "key": key, "before": old.get(key), "after": new.get(key)}


def _flat(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{path}{key}.")
        else:
            yield path + key, inner


def _diff_lines(found: Json, theirs: Json, file: str, url: str) -> Iterator[str]:
    yield f"--- in force at {url}: {theirs['source']} ({theirs['digest']})"
    yield f"+++ {file}"
    if found["same"]:
        yield "No difference."
        return
    for name in found["removed"]:
        yield f"- job {name}: its clocks would be reset"
    for name in found["added"]:
        yield f"+ job {name}"
    about = None
    for one in found["changed"]:
        if one["job"] != about:
            about = one["job"]
            yield f"  job {about}" if about else "  cluster"
        yield f"-   {one['key']}: {_word(one['before'])}"
        yield f"+   {one['key']}: {_word(one['after'])}"
    if found["order_changed"]:
        yield "  the order of jobs changes: a GPU belongs to the first job that matches it"


def _word(value: Any) -> str:
    return "none" if value is None else json.dumps(value) if isinstance(value, list) else str(value)


SUBCOMMANDS = {
    "check": _check,
    "diff": _diff,
    "profiles": _profiles,
    "upload": _upload,
    "remove": _remove,
}
