"""What was decided for a job, in words: its plan, and what else could have been had.

Predicted, all of it, and said to be; what was measured stands elsewhere.
"""

from collections.abc import Iterator

from joulecut_cli.controller_client import Json
from joulecut_cli.figures import ago, joules, labelled, percent, seconds, sentence
from joulecut_cli.status import plan_name

GRANULARITIES = {
    "gpu": "one clock per GPU",
    "edge": "a second clock for the first forward and the last backward",
    "computation": "a clock per operation",
}


def plan_lines(job: Json, now_unix_s: float) -> Iterator[str]:
    """What it says, how it stands, what it promises, and how good any plan could be."""
    plan = job["decision"]
    if plan is None or not plan_name(plan):
        yield labelled("Plan", f"none yet: {plan['reason']}" if plan else "none yet")
        return
    yield labelled(
        f"Plan {plan['generation']}",
        f"{sentence(plan['reason'])} Made {ago(now_unix_s - plan['made_at_unix_s'])} ago, "
        f"{_standing(job, plan)}.",
    )
    forecast = plan["forecast"]
    if forecast is None:
        return
    yield labelled(
        "",
        f"{seconds(forecast['iteration_time_s'])} "
        f"({percent(forecast['slowdown_ratio'], signed=True)}), "
        f"{joules(forecast['energy_j'])} "
        f"({_negated(forecast['saved_ratio'])}) an iteration (predicted)",
    )
    if not forecast["lower_bound_j"]:
        return  # a step of learning: nobody knows how good the best plan would be
    bound = (plan.get("solution") or {}).get("bound_granularity", plan["granularity"])
    yield labelled(
        "",
        f"at most {percent(forecast['gap_ratio'])} above the least possible energy: "
        f"no plan of granularity {bound} beats {joules(forecast['lower_bound_j'])}",
    )


def _negated(ratio: float | None) -> str:
    return percent(None if ratio is None else -ratio, signed=True)


def _standing(job: Json, plan: Json) -> str:
    if plan["refused"]:
        return f"refused by the guard: {plan['refused']}"
    if plan["changes_nothing"]:
        return "no change"
    if job["applied"] and job["applied"]["generation"] == plan["generation"]:
        return "applied under leases"
    if job["mode"] == "recommend":
        return "not applied: only recommended"
    return "not applied yet"


def frontier_text(job: Json) -> str:
    """Its ends, and the best point within the deadline."""
    points = job["frontier"]
    first, last = points[0], points[-1]
    text = (
        f"from {seconds(first['iteration_time_s'])}, {joules(first['energy_j'])} "
        f"to {seconds(last['iteration_time_s'])}, {joules(last['energy_j'])}"
    )
    deadline_s = job["slo"]["deadline_s"]
    within = [p for p in points if deadline_s and p["iteration_time_s"] <= deadline_s]
    if within:
        best = within[-1]
        text += (
            f"; within the deadline {joules(best['energy_j'])} at "
            f"{seconds(best['iteration_time_s'])}"
        )
    return f"{text} (predicted, {len(points)} points)"


def granularity_lines(job: Json) -> list[str]:
    """A head alone where nothing is known."""
    forecast = (job["decision"] or {}).get("forecast") or {}
    saved = forecast.get("saved_ratio_by_granularity") or {}
    lines = ["What each granularity would save (predicted)"]
    for name, meaning in GRANULARITIES.items():
        if name in saved:
            used = ", in use" if name == job["granularity"] else ""
            lines.append(f"  {name:<11} {percent(saved[name]):>7}  {meaning}{used}")
    return lines
