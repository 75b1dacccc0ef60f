"""`joulecut policy check FILE`: what a policy file means for each job, or its first fault."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecut_cli.money import add_price_flags, given_prices, prices_text
from joulecut_cli.progress import Progress
from joulecut_engine.money import (
    USUAL_POWER_W,
    USUAL_SAVED_RATIO,
    Iteration,
    Prices,
    usual_break_even,
    worth,
)
from joulecut_wire.command import FINE, Parser, gone
from joulecut_wire.errors import BadInput

if TYPE_CHECKING:
    from joulecut_controller.policy.policy import JobPolicy, Policy, Slo

PROG = "joulecut policy"
FILES = "profiles are files, beside the policy or in the controller's folder `profiles`"
GONE = {  # answered until 0.3
    "diff": "policy check and status, which show the digest of a policy's content",
    **dict.fromkeys(("profiles", "upload", "remove"), FILES),
}


def run(argv: list[str]) -> int:
    """Raises BadInput where the file is wrong."""
    if argv and argv[0] in GONE:
        raise BadInput(f"{PROG} {argv[0]}", "is gone", GONE[argv[0]])
    if not argv or argv[0] not in {*SUBCOMMANDS, "-h", "--help"}:
        given = f"{argv[0]!r} is no action" if argv else "no action"
        raise BadInput(PROG, given, f"{PROG} check FILE [--json]")
    return SUBCOMMANDS.get(argv[0], lambda _: _check(argv))(argv[1:])


def _check(argv: list[str]) -> int:
    parser = Parser(f"{PROG} check", "Reads a policy file as the controller does.")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    gone(parser, "--controller", "joulecut status and joulecut doctor JOB, once it is in force")
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
    from joulecut_controller.policy.hourly import at_hour
    from joulecut_controller.sources.policy_file import load

    with Progress(f"checking {options.file.name}"):
        policy = load(options.file, profiles=options.profiles)
    series = (policy.cost.kwh_series, policy.cost.co2_series)
    if not any(one is not None and one.promql for one in series):  # a controller asks for those
        policy = at_hour(policy, time.time(), {})
    prices = given_prices(options, policy.cost.prices())
    if options.json:
        shown = as_json(policy)
        shown["money"] = {"prices": asdict(prices), "warnings": limit_warnings(policy, prices)}
        print(json.dumps(shown, indent=2))
        return FINE
    print(as_text(policy, prices))
    return FINE


def as_text(policy: "Policy", prices: Prices) -> str:
    """Every job in a few lines."""
    warnings = limit_warnings(policy, prices)
    count, found = len(policy.jobs), policy.found_jobs
    title = f"{policy.source}: fine ({count} job{'' if count == 1 else 's'}, mode {policy.mode}"
    lines = [f"{title}, content {policy.digest})"]
    for job in policy.jobs:
        off, fixed = job.mode == "off", bool(job.fixed)
        lines.append(f"  {job.name}: {job.mode}")
        lines += [] if off or job.is_order else [f"    target  {_target(job.slo, prices)}"]
        lines.append(f"    GPUs    {_gpus(job)}")
        lines += [] if off or fixed else [f"    work    {_work(job)}"]
        lines.append(f"    so      {outcome(job)}")
        if job.warning:
            lines.append(f"  ! {job.name}: {job.warning}")
        if warning := warnings.get(job.name):
            lines.append(f"  ! {job.name}: {warning}")
    if prices.hour:
        lines.append(f"  prices: {prices.hour}")
    if warnings:
        lines.append(f"  ! {prices_text(prices, 'cluster.cost')}")
    if found.mode == "recommend" and policy.mode != "off":
        slower = f"{found.max_slowdown * 100:.6g}% slower"
        lines.append(f"  jobs without an entry: recommended at {slower}, no command is sent")
    if policy.idle.mode == "enforce" and policy.mode != "off":
        mhz = policy.idle.lock_mhz
        clock = f"at most {mhz} MHz" if mhz else "the lowest clock"
        lines.append(f"  GPUs unused for {policy.idle.after_s:g} s: {clock} until the first work")
    return "\n".join(lines)


def as_json(policy: "Policy") -> dict[str, Any]:
    """The policy as values, with what the controller does for each job."""
    from joulecut_controller.policy.policy import policy_json

    shown = policy_json(policy)
    for job, entry in zip(policy.jobs, shown["jobs"], strict=True):
        entry["outcome"] = outcome(job)
    return shown


def limit_warnings(policy: "Policy", prices: Prices) -> dict[str, str]:
    """Why limits lose money, by job; none where the site is short of watts."""
    if policy.power_budget_w is not None:
        return {}
    usual, found = usual_break_even(prices), dict[str, str]()
    for job in (one for one in policy.jobs if one.mode != "off"):
        most = best_break_even(job, prices)
        if job.slo.allowed_slowdown > (usual if most is None else most):
            basis = (
                f"about {100.0 * usual:.2f} % ({100.0 * USUAL_SAVED_RATIO:g} % saved of "
                f"{USUAL_POWER_W:g} W)"
                if most is None
                else f"at most {100.0 * most:.2f} % (by its profile)"
            )
            found[job.name] = job.slo.loses_text(basis)
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


def outcome(job: "JobPolicy") -> str:
    """What the controller does for this job."""
    if job.mode == "off":
        return "nothing is planned"
    if job.fixed:
        done = "set under leases" if job.mode == "enforce" else "shown, no command is sent"
        kept = "" if job.is_order else ", while reports show that the target is kept"
        return f"at most {job.fixed}: {done}{kept}"
    if job.pipeline is None and job.rate is None:
        return "the job's own reports show its pipeline, else no change"
    recommends = job.mode == "recommend"
    if job.profile is None:
        done = "is shown, no command is sent" if recommends else "sets the first clocks"
        return f"no profile is given: a plan predicted from other jobs {done}"
    done = "plans are made and shown, no command is sent"
    return done if recommends else "clocks are set under leases"


def _target(slo: "Slo", prices: Prices) -> str:
    if slo.least_cost:
        bound = "" if slo.bound is None else f", at most {slo.bound * 100:.6g}% slower"
        return f"the slowdown where GPU time and energy cost least, at {prices}{bound}"
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

        each = "of every running job among" if job.each else "allocated to"
        return f"those {each} {wanted(job)}; {said}"
    if not job.gpus:
        return f"those that report this job; {said}"
    names = [f"{gpu.node}/{gpu.index}" for gpu in job.gpus]
    shown = names if len(names) <= 8 else [*names[:4], "...", names[-1]]
    return f"{len(names)} ({' '.join(shown)}); {said}"


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


SUBCOMMANDS = {"check": _check}
