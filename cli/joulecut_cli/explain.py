"""`joulecut explain JOB`: the reasons for a job's clocks, and its predictions."""

import json
import time
from collections.abc import Iterator

from joulecut_cli.controller_client import Controller, Json, understood
from joulecut_cli.figures import (
    ago,
    band_text,
    gpu_name,
    joules,
    labelled,
    mhz,
    percent,
    seconds,
    sentence,
    table,
    watt_hours,
    watts,
)
from joulecut_cli.status import (
    add_controller_flags,
    foreign_text,
    holdout_text,
    look_text,
    mode_text,
    plan_name,
    planned,
    saving_text,
    worth_text,
)
from joulecut_wire.command import FINE, Parser

BLOAT_KINDS = ("intrinsic", "extrinsic", "variability")
GRANULARITIES = {
    "gpu": "one clock per GPU",
    "changes": "two clock changes per iteration, anywhere",
    "changes:4": "four clock changes per iteration, anywhere",
    "computation": "a clock per operation",
}


def plan_lines(job: Json, now_unix_s: float) -> Iterator[str]:
    """The newest plan: its reason, state, prediction and optimality gap."""
    plan = job["decision"]
    if plan is None or not plan_name(plan):
        # Only what the last pass says still holds.
        holds = plan and plan["reason"] == job["sentence"]
        yield labelled("Plan", f"none in force: {plan['reason']}" if holds else "none in force")
        return
    yield labelled(
        f"Plan {plan['generation']}",
        f"{sentence(plan['reason'], [job['name']])} "
        f"Made {ago(now_unix_s - plan['made_at_unix_s'])} ago, {_state(job, plan)}.",
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
    if band := forecast.get("band"):
        yield labelled("", band_text(band))
    if not forecast["lower_bound_j"]:
        return  # a step of learning has no bound
    bound = (plan.get("solution") or {}).get("bound_granularity", plan["granularity"])
    yield labelled(
        "",
        f"optimality gap at most {percent(forecast['gap_ratio'])}: the lower bound on energy at "
        f"granularity {bound} is {joules(forecast['lower_bound_j'])}",
    )
    found = {kind: forecast.get(f"{kind}_bloat_w") for kind in BLOAT_KINDS}
    before = {kind: watts for kind, watts in found.items() if watts is not None}
    yield from _bloat_lines("now", job["bloat_w"])
    if job["bloat_w"] != before:
        yield from _bloat_lines("before this plan", before)


def _bloat_lines(when: str, watts_of: Json) -> Iterator[str]:
    """Power above the frontier by kind; nothing where no kind is known."""
    if watts_of:
        known = (kind for kind in BLOAT_KINDS if kind in watts_of)
        text = ", ".join(f"{kind} {watts_of[kind]:.0f} W" for kind in known)
        yield labelled("", f"bloat {when}: {text} (predicted)")


def _negated(ratio: float | None) -> str:
    return percent(None if ratio is None else -ratio, signed=True)


def _state(job: Json, plan: Json) -> str:
    if plan["refused"]:
        return f"refused by the guard: {plan['refused']}"
    if plan["changes_nothing"]:
        return "no change"
    if job["applied"] and job["applied"]["generation"] == plan["generation"]:
        return "applied under leases"
    if job["mode"] == "recommend":
        return "not applied (mode recommend)"
    return "not applied yet"


def frontier_text(job: Json) -> str:
    """The ends of the frontier and the best point within the deadline."""
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
    """Predicted saving of each granularity; the title alone where none is known."""
    forecast = (job["decision"] or {}).get("forecast") or {}
    saved = forecast.get("saved_ratio_by_granularity") or {}
    lines = ["What each granularity would save (predicted)"]
    for name, meaning in GRANULARITIES.items():
        if name in saved:
            used = ", in use" if name == job["granularity"] else ""
            lines.append(f"  {name:<11} {percent(saved[name]):>7}  {meaning}{used}")
    if saved and job.get("granularity_why"):
        lines.append(f"  {job['granularity_why']}")
    return lines


def _timing_lines(timing: Json | None) -> Iterator[str]:
    """How well the agents know when iterations begin."""
    if not timing:
        return
    error_s = timing["change_error_s"]
    error = f", changes {error_s * 1e3:.0f} ms off" if error_s else ""
    yield labelled(
        "Starts",
        f"from {timing['source']}: {timing['starts_per_minute']:.1f} a minute, "
        f"{percent(timing['missed_ratio'])} missed, {timing['start_jitter_s'] * 1e3:.0f} ms jitter"
        f"{error}",
    )


DESCRIPTION = (
    "Why a job has its clocks, and which its newest plan would change, at the last pass. "
    "`joulecut doctor JOB` prints what is missing before a plan is enforced."
)
EVENTS_SHOWN = 8  # what still fits below the GPUs of one pipeline on a screen


@understood
def run(argv: list[str]) -> int:
    """Prints the explanation. Raises BadInput for an unknown job, Unavailable as `status`."""
    parser = Parser("joulecut explain", DESCRIPTION)
    parser.add_argument("job", metavar="JOB", help="as `joulecut status` names it")
    add_controller_flags(parser)
    given = parser.parse_args(argv)
    controller = Controller(given.controller)
    job = controller.job(given.job)
    events = controller.events(job["name"], EVENTS_SHOWN)
    if given.json:
        print(json.dumps({"job": job, "events": events}, indent=2))
    else:
        error = controller.brief()["policy"]["error"]
        print(page(job, events, controller.url, time.time(), error))
    return FINE


def page(job: Json, events: list[Json], url: str, now_unix_s: float, policy_error: str = "") -> str:
    """The whole explanation as text."""
    head = [
        f"{job['name']} at {url}: {mode_text(job['mode'], enforced=job['state'] == 'enforced')}",
        sentence(job["sentence"], [job["name"]]),
    ]
    if at := job.get("controller"):  # another one, of the same store
        head.append(f"As the controller at {at} showed it {ago(job['age_s'])} ago.")
    if policy_error:
        head.append(f"! The policy file on disk is not in force: {policy_error}")
    if hindrance := job.get("hindrance"):
        head.append(f"! Not enforceable now: {sentence(hindrance, [job['name']])}")
    parts = [
        head,
        [*_facts(job, now_unix_s), *_predictors(job)],
        granularity_lines(job),
        _gpus(job),
        _decisions(events, now_unix_s),
    ]
    return "\n\n".join("\n".join(part) for part in parts if len(part) > 1)


def _facts(job: Json, now_unix_s: float) -> Iterator[str]:
    if job["mode"] != "off":
        yield labelled("Target", _target(job))
    if job["complaint"]:
        yield labelled("Complaint", job["complaint"])
    for hold in job.get("holds", ()):
        yield labelled("Held", f"for {ago(now_unix_s - hold['since_unix_s'])}: {hold['sentence']}")
    if job.get("breaker_trips"):
        yield labelled(
            "Breaker",
            f"tripped {job['breaker_trips']} times in the last day; 3 trips end enforcement",
        )
    yield labelled("Evidence", job["evidence"]["text"])
    yield from _phase_lines(job["phase"])
    yield from _timing_lines(job.get("timing"))
    for veto in job["vetoes"][1:]:  # the first one is the sentence above
        yield labelled("Also", sentence(veto["text"], [job["name"]]))
    yield labelled("Baseline", _window(job["baseline"], "measured at default clocks"))
    if foreign := foreign_text(job):
        yield labelled("", sentence(foreign, [job["name"]]))
    running = job["generation_running"]
    default = "an external clock lock" if job.get("foreign_lock") else "default clocks"
    yield labelled("Now", _now(job, f"plan {running}" if running else default))
    if kept_w := [
        row["power_limit_kept_w"] for row in job["gpus"] if row.get("power_limit_kept_w")
    ]:
        yield labelled("Limits", _limits(kept_w))
    if job["peer_iteration_time_s"] is not None:
        waited = seconds(job["peer_iteration_time_s"])
        yield labelled(
            "Sibling", f"{waited}: iteration time of a slower sibling pipeline (reported)"
        )
    yield from plan_lines(job, now_unix_s)
    if job["frontier"]:
        yield labelled("Frontier", frontier_text(job))
    yield from _money_lines(job)
    yield labelled("Saved", _saved(job["measured"], job["predicted"]["saved_j"]))
    for title, text in (
        ("Default", look_text(job.get("baseline_look"))),
        ("Saving", saving_text(job.get("saving"))),
        ("Hold-outs", holdout_text(job.get("holdout"))),
    ):
        if text:
            yield labelled(title, text)


def _saved(measured: Json, predicted_j: float | None) -> str:
    """Measured and predicted of the same time, then predicted of all time under plans."""
    text = f"{watt_hours(measured['saved_j'])} measured"
    share, promised_j = measured["saved_known_ratio"], measured["promised_j"]
    if share is not None:
        text += f" for {percent(share)} of the time under plans"
    if promised_j is not None:
        text += f" ({watt_hours(promised_j)} predicted for the same)"
    return f"{text}; {watt_hours(predicted_j)} predicted for all time under plans"


def _phase_lines(phase: Json) -> Iterator[str]:
    """The kind of work now, and how long the job was in each."""
    if not phase["seconds_by_kind"]:
        return
    operations = f" ({phase['operations']} in an iteration of a GPU)" if phase["operations"] else ""
    spent = ", ".join(f"{ago(s)} of {kind}" for kind, s in phase["seconds_by_kind"].items())
    work = f"; work varies by {percent(sd)}" if (sd := phase["work_sd_ratio"]) else ""
    yield labelled("Phase", f"{phase['kind']}{operations}; so far {spent}{work}")


def _money_lines(job: Json) -> Iterator[str]:
    """What the plan is worth, and whether the job's limit loses money."""
    if worth := worth_text(job):
        yield labelled("Money", worth)
        if warning := job["money"]["warning"]:
            yield labelled("", f"! {sentence(warning)}")


def _limits(kept_w: list[float]) -> str:
    """Power limits under a power budget."""
    span = f"{watts(min(kept_w))} to {watts(max(kept_w))}" if len(kept_w) > 1 else watts(kept_w[0])
    return (
        f"{watts(sum(kept_w))} of power limits on {len(kept_w)} GPUs ({span}): the power budget; "
        "they stay when leases end"
    )


def _target(job: Json) -> str:
    slo = job["slo"]
    ratio, deadline_s = slo["max_slowdown_ratio"], slo["deadline_s"]
    wish = slo["given_as"]
    if ratio is not None:
        wish = f"max_slowdown {ratio * 100:.3g} %"
    if slo["least_cost"]:
        bound = slo["bound_ratio"]
        most = "" if bound is None else f", never above {bound * 100:.3g} %"
        wish = f"least cost, now {wish}{most}"
    if wish == "none":
        return "none: clock or power limit are fixed"
    if deadline_s is None:
        return f"{wish}; the deadline follows from the baseline"
    return f"{wish}: at most {seconds(deadline_s)} an iteration"


def _window(window: Json | None, basis: str) -> str:
    if window is None:
        return "not measured yet"
    figures = (
        f"{seconds(window['iteration_time_s'])}, {joules(window['energy_j'])}, "
        f"{watts(window['power_w'])}"
    )
    return f"{figures} ({basis}, {window['iterations']} iterations)"


def _now(job: Json, under: str) -> str:
    text = _window(job["current"], f"measured under {under}")
    measured = job["measured"]
    if measured["slowdown_ratio"] is None:
        return text
    change = f"{percent(measured['slowdown_ratio'], signed=True)} time"
    if measured["saved_ratio"] is not None:
        change += f", {percent(-measured['saved_ratio'], signed=True)} energy"
    return f"{text}: {change}"


def _predictors(job: Json) -> Iterator[str]:
    """The predictor in use and its error."""
    learning = job["learning"]
    if learning["text"]:
        yield labelled("Model", learning["text"])
    for drift in learning["drifting"]:
        yield labelled("Drift", drift)


def _gpus(job: Json) -> list[str]:
    if not job["gpus"]:
        return []
    head = ("GPU", "STAGE", "PLAN", "ASKED", "SEEN", "WHY")
    without = "no change" if plan_name(job["decision"]) else "no plan in force"
    rows = [
        (
            gpu_name(row),
            str(row["stage"]),
            planned(row),
            mhz(row["clock_asked_mhz"], "default" if row["age_s"] is not None else "-"),
            mhz(row["clock_seen_mhz"], "-"),
            f"{row['verb']}: {row['reason']}" if row["verb"] else without,
        )
        for row in job["gpus"]
    ]
    return table(head, rows, frozenset(head[1:5]))


def _decisions(events: list[Json], now_unix_s: float) -> list[str]:
    lines = ["Last decisions"]
    for event in events:
        about = f"plan {event['generation']}" if event["generation"] else ""
        age = f"{ago(now_unix_s - event['at_unix_s'])} ago"
        lines.append(f"  {age:>10}  {event['kind']:<6}  {about:<8}  {event['text']}")
    return lines
