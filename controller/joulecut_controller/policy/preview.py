"""What a policy means for GPUs and money before it is in force: hindrances, power budget, limits.

`board` is the JSON of a controller's board. Pure.
"""

from typing import Any

from joulecut_controller.policy.policy import JobPolicy, Policy, Slo
from joulecut_engine.money import (
    USUAL_POWER_W,
    USUAL_SAVED_RATIO,
    Iteration,
    Prices,
    usual_break_even,
    worth,
)
from joulecut_wire.errors import BadInput

REASONS_SHOWN = 3

Json = dict[str, Any]


def hindrances(policy: Policy, board: Json | None) -> dict[str, str]:
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


def budget_check(policy: Policy, board: Json | None) -> Json | None:
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


def limit_warnings(policy: Policy, prices: Prices) -> dict[str, str]:
    """Why limits lose money, by job; none where the site is short of watts."""
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


def best_break_even(job: JobPolicy, prices: Prices) -> float | None:
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


def limit_text(limit: float, break_even: str) -> str:
    """Why a limit loses money."""
    return (
        f"max_slowdown {100.0 * limit:.3g} % is above the break-even of {break_even}: longer GPU "
        "time costs more than the energy saved"
    )


def limit_of(slo: Slo) -> float:
    """The slowdown that a policy allows on purpose; 0 for a target below its tolerance."""
    limit = slo.max_slowdown
    return 0.0 if limit is None or limit <= slo.tolerance else limit
