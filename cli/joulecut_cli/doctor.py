"""`joulecut doctor [JOB]`: what is missing between a running job and enforced savings, in order.

Each step needs the ones before it, so the first that fails is the one to mend; its line ends with
the command or the line of the policy that does. Without a job this node is examined.
Exit status 0 where nothing is missing, else 1.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from joulecut_cli.controller_client import DEFAULT_URL, Controller, Json, understood
from joulecut_cli.figures import ago, percent, seconds, sentence
from joulecut_cli.status import add_controller_flags
from joulecut_wire.command import FAILED, FINE, Parser, gone
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import NO_KEEPER, POWER_PROFILE

SOURCES_PAGE = "docs/integrations.md"
INSTALLED = Path("/etc/joulecut/agent.yaml")


@dataclass(frozen=True, slots=True)
class Step:
    """`found` says what is there, `mend` what to do where that is not enough."""

    name: str
    done: bool
    found: str
    mend: str = ""


@understood
def run(argv: list[str]) -> int:
    """Raises BadInput for a bad flag, Unavailable without a controller."""
    parser = Parser(
        "joulecut doctor",
        "What is missing between a running job and enforced savings, in order; without a JOB, "
        "what is wrong with this node. `joulecut explain` is about a plan, `status` about all.",
    )
    parser.add_argument("job", metavar="JOB", nargs="?", help="as `joulecut status` names it")
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help=f"of this node's agent; default {INSTALLED}"
    )
    gone(parser, "--prometheus", "the targets page of Prometheus")
    add_controller_flags(parser)
    parser.set_defaults(controller=None)
    given = parser.parse_args(argv)
    controller = Controller(given.controller or DEFAULT_URL)
    if given.job is None:
        if given.controller or not (given.config or INSTALLED.exists()):
            allowed = "a JOB, or an agent's --config FILE; joulecut status shows a controller"
            raise BadInput(parser.prog, "no job, and no agent here", allowed)
        from joulecut_cli import installation

        steps = list(installation.examined(given.config or INSTALLED))
    elif given.config:
        raise BadInput(parser.prog, "--config with a JOB", "one of the two")
    else:
        board = controller.board()
        job = next((one for one in board["jobs"] if one["name"] == given.job), None)
        steps = list(examined(given.job, job, board))
    missing = next((step for step in steps if not step.done), None)
    if given.json:
        print(json.dumps(_json(given.job, steps, missing), indent=2))
    else:
        page = _page(given.job, steps, missing, controller.url) if given.job else _installed(steps)
        print("\n".join(page))
    return FINE if missing is None else FAILED


def examined(name: str, job: Json | None, board: Json) -> Iterator[Step]:
    """The steps in order; without the job only the first."""
    if job is None:
        yield _in_policy(name, board)
        return
    where = "no entry: found by its reports, " if job["found"] else ""
    yield Step("policy", True, f"{where}mode {job['mode']}, {_budget(job)}")
    yield _agents(board)
    yield _reports(job, board)
    yield _placed(job)
    yield _controllable(job, board)
    yield from _profiled(job, board)
    yield _measured(job)
    yield _learnt(job, board)
    yield _saving(job)
    yield _held(job)
    yield _enforced(job, board)


def _in_policy(name: str, board: Json) -> Step:
    names = sorted(job["name"] for job in board["jobs"])
    source = board["policy"]["source"] or "the policy file"
    mend = (
        f"add to {source}: - {{name: {name}, slo: {{max_slowdown: 0%}}}}; then "
        f"joulecut policy check {source}"
    )
    return Step("policy", False, f"no such job; the policy has {', '.join(names) or 'none'}", mend)


def _agents(board: Json) -> Step:
    """Whether every agent is connected."""
    lost = [node for node in board["nodes"] if not node["connected"]]
    if not board["nodes"]:
        return Step("agents", False, "none is configured", "agents: [HOST:9431] of the controller")
    if not lost:
        return Step("agents", True, f"{len(board['nodes'])} connected")
    name, error = lost[0]["node"] or lost[0]["address"], lost[0]["error"] or "no answer"
    return Step(
        "agents", False, f"{len(lost)} of {len(board['nodes'])} lost: {name}: {error}",
        f"on {name}: systemctl status joulecut-agent, then joulecut doctor",
    )  # fmt: skip


def _reports(job: Json, board: Json) -> Step:
    faults = job.get("report_faults", [])
    if job["report_age_s"] is None:
        if faults:
            return Step("reports", False, "none is usable", faults[0]["text"])
        mend = f"joulecut run --job {job['name']} -- COMMAND, or another source ({SOURCES_PAGE})"
        if others := [one["name"] for one in board["jobs"] if one["found"]]:
            mend = f"if it is {' or '.join(others)}, which no entry takes: match it; else {mend}"
        return Step("reports", False, "the job has not reported yet", mend)
    if faults:
        fault = faults[0]
        what, _, allowed = fault["text"].partition("; allowed: ")
        times = "once" if fault["count"] == 1 else f"{fault['count']} times"
        found = f"{what} ({fault['source']}, {times})"
        return Step("reports", False, found, allowed or what)
    source = job.get("rate_source") or "report"
    found = f"the newest {ago(job['report_age_s'])} ago, source {source}"
    return Step("reports", True, found)


def _profiled(job: Json, board: Json) -> Iterator[Step]:
    """A vendor's power profile, which is a state of the card; nothing without one."""
    ours = {row["uuid"] for row in job["gpus"]}
    under = [
        reason.removeprefix(POWER_PROFILE)
        for gpu in board["gpus"]
        if gpu["uuid"] in ours
        for reason in gpu["event_reasons"]
        if reason.startswith(POWER_PROFILE)
    ]
    if under:
        names = ", ".join(sorted(set(under)))
        found = f"{names} on {len(under)} of {len(ours)} GPUs: clocks are planned on top of it"
        yield Step("profile", True, found)


def _placed(job: Json) -> Step:
    if job["complaint"]:
        return Step("stages", False, job["complaint"], "match, pipeline or ranks of its entry")
    if job["pipeline"] is None:
        mend = "pipeline: {schedule: 1f1b, stages: 1, microbatches: 1} in its entry; stages above 1"
        return Step("stages", False, "no pipeline in the policy", f"{mend} for a pipeline")
    stages = {row["stage"] for row in job["gpus"]}
    return Step("stages", True, f"{len(job['gpus'])} GPUs, stages: {len(stages)}")


def _controllable(job: Json, board: Json) -> Step:
    gpus = {gpu["uuid"]: gpu for gpu in board["gpus"]}
    mine = [gpus[row["uuid"]] for row in job["gpus"] if row["uuid"] in gpus]
    if not mine:
        return Step("control", False, "no GPU is known to be the job's", _explain(job))
    fixed = [gpu for gpu in mine if not gpu["controllable"]]
    if not fixed:
        return Step("control", True, f"GPUs that may be set: {len(mine)}")
    first = fixed[0]
    found = (
        f"{len(fixed)} of {len(mine)} GPUs may not: {first['node']}/{first['index']}: "
        f"{first['why_not_controllable']}"
    )
    mend = f"on {first['node']}: systemctl status joulecut-keeper"
    if first["why_not_controllable"] == NO_KEEPER:
        mend = f"`keeper: none` in the agent.yaml of {first['node']} only measures (docs/agent.md)"
    return Step("control", False, found, mend)


def _measured(job: Json) -> Step:
    if job.get("foreign_lock"):
        mend = "site_default of the agent, or end the other writer"
        return Step("baseline", False, job["foreign_lock"], mend)
    baseline = job["baseline"]
    if not baseline:
        waits = [veto["text"] for veto in job.get("vetoes", ()) if veto["kind"] == "baseline"]
        found = waits[0] if waits else "not measured yet"
        return Step("baseline", False, found, "wait: default clocks are measured first")
    time_s = seconds(baseline["iteration_time_s"])
    return Step("baseline", True, f"{time_s} an iteration at default clocks")


def _learnt(job: Json, board: Json) -> Step:
    if job["profile"]:
        return Step("evidence", True, f"profile {job['profile']}")
    if learning := job["learning"]["text"]:
        return Step("evidence", True, learning)
    found = "no profile, and its work at default clocks is not known yet"
    if job["found"]:
        return Step("evidence", False, found, _entry(job, board))
    return Step("evidence", False, found, f"wait ({_explain(job)}), or pipeline.profile: FILE")


def _saving(job: Json) -> Step:
    plan = job["decision"] or {"refused": ""}
    if plan["refused"]:
        return Step("plan", False, f"refused: {plan['refused']}", _explain(job))
    forecast = plan.get("forecast") or {}
    if not forecast:  # no change
        return Step("plan", False, sentence(job["sentence"], [job["name"]]), _explain(job))
    saved = forecast.get("saved_ratio")
    if not saved or saved <= 0.0:
        mend = "a larger slo.max_slowdown; joulecut explain shows the frontier"
        return Step("plan", False, f"no plan saves energy within {_budget(job)}", mend)
    slower = percent(forecast["slowdown_ratio"], signed=True)
    found = f"plan {plan['generation']}: {percent(saved)} less energy, {slower} time (predicted)"
    return Step("plan", True, found)


def _held(job: Json) -> Step:
    if not job["holds"]:
        return Step("holds", True, "none")
    hold = job["holds"][0]
    return Step("holds", False, hold["sentence"], f"joulecut resume {hold['job'] or '--all'}")


def _enforced(job: Json, board: Json) -> Step:
    applied = job["applied"]
    if applied and job["mode"] == "enforce":
        return Step("enforced", True, f"plan {applied['generation']} is in force")
    if job["mode"] != "enforce":
        found = f"mode {job['mode']}: no command is sent"
        if job["found"]:
            return Step("enforced", False, found, _entry(job, board))
        return Step("enforced", False, found, f"mode: enforce in the entry of {job['name']}")
    found = job.get("next_step") or job["sentence"]
    return Step("enforced", False, sentence(found, [job["name"]]), _explain(job))


def _entry(job: Json, board: Json) -> str:
    """The line that takes a job which no entry names."""
    scheduler, _, owner = job["name"].partition(":")
    match = f'slurm: {{job_id: "{owner}"}}'
    if scheduler != "slurm":
        namespace = owner.partition(".")[0]
        match = f"kubernetes: {{namespace: {namespace}, labels: {{KEY: VALUE}}}}"
    slo = f"max_slowdown: {percent(job['slo']['max_slowdown_ratio']).replace(' ', '')}"
    line = f"- {{name: NAME, match: {{{match}}}, slo: {{{slo}}}, mode: enforce}}"
    return f"add to {board['policy']['source'] or 'the policy file'}: {line}"


def _explain(job: Json) -> str:
    return f"joulecut explain {job['name']}"


def _budget(job: Json) -> str:
    slo = job["slo"]
    if slo["max_slowdown_ratio"] is not None:
        return f"at most {percent(slo['max_slowdown_ratio'])} slower"
    return f"at most {seconds(slo['max_iteration_time_s'])} an iteration"


def _page(name: str, steps: list[Step], missing: Step | None, url: str) -> Iterator[str]:
    yield f"{name} at {url}"
    width = max(len(step.name) for step in steps)
    for step in steps:
        mark = "ok" if step.done else "!!" if step is missing else " -"
        yield f"  {mark}  {step.name:<{width}}  {step.found}"
    yield "Nothing is missing." if missing is None else f"Next: {missing.mend}"


def _installed(steps: list[Step]) -> Iterator[str]:
    """Every step, and below each that fails its own next step."""
    width = max(len(step.name) for step in steps)
    for step in steps:
        yield f"  {'ok' if step.done else '!!'}  {step.name:<{width}}  {step.found}"
        if not step.done:
            yield f"      {'':<{width}}  next: {step.mend}"
    wrong = sum(not step.done for step in steps)
    yield f"{wrong} of {len(steps)} are wrong." if wrong else "Nothing is wrong."


def _json(name: str | None, steps: list[Step], missing: Step | None) -> Json:
    return {
        "job": name,
        "missing": missing.name if missing else None,
        "next": missing.mend if missing else None,
        "steps": [
            {"name": one.name, "done": one.done, "found": one.found, "mend": one.mend or None}
            for one in steps
        ],
    }
