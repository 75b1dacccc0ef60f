"""`joulecut recommend JOB`: the newest plan as a diff of clocks."""

import json
from collections.abc import Iterator

from joulecut_cli.controller_client import Controller, Json, understood
from joulecut_cli.figures import band_text, gpu_name, joules, mhz, percent, seconds, sentence
from joulecut_cli.status import MODES, add_controller_flags, plan_name
from joulecut_wire.command import FINE, Parser

PREDICTED = (
    "iteration_time_s", "energy_j", "baseline_time_s", "baseline_energy_j", "slowdown_ratio",
    "saved_ratio",
)  # fmt: skip


@understood
def run(argv: list[str]) -> int:
    """Raises BadInput for an unknown job, Unavailable without a controller."""
    parser = Parser(
        "joulecut recommend",
        "Clock changes of a job's newest plan, with their predicted effect, to approve or to apply "
        "by hand. `joulecut explain` says why each clock.",
    )
    parser.add_argument("job", metavar="JOB", help="as `joulecut status` names it")
    add_controller_flags(parser)
    given = parser.parse_args(argv)
    controller = Controller(given.controller)
    job = controller.job(given.job)
    if given.json:
        print(json.dumps(recommendation(job), indent=2))
    else:
        print("\n".join(_page(job, controller.url)))
    return FINE


def recommendation(job: Json) -> Json:
    """The JSON form. A clock is None for default; `changes` may be empty."""
    plan = job["decision"] or {}
    forecast = plan.get("forecast") or {}
    return {
        "job": job["name"],
        "mode": job["mode"],
        "generation": plan.get("generation") or None,
        "reason": plan.get("reason") or job["sentence"],
        "refused": plan.get("refused") or None,
        "predicted_from": plan.get("predicted_from") or None,
        "held": [hold["sentence"] for hold in job["holds"]],
        "hindrance": job.get("hindrance") or None,
        "in_force": _in_force(job),
        "changes": [
            {
                "gpu": gpu_name(row),
                "uuid": row["uuid"],
                "stage": row["stage"],
                "clock_now_mhz": _lock(row, "asked"),
                "clock_recommended_mhz": _lock(row, "recommended"),
                "reason": row["reason"],
            }
            for row in _changing(job)
        ],
        "predicted": forecast and {key: forecast[key] for key in PREDICTED},
        "band": forecast.get("band"),
    }


def _in_force(job: Json) -> bool:
    plan, applied = job["decision"], job["applied"]
    return bool(plan and applied and plan["generation"] == applied["generation"])


def _changing(job: Json) -> list[Json]:
    """GPUs whose clock in the newest plan differs from the current one."""
    rows: list[Json] = [row for row in job["gpus"] if row["verb"] is not None]
    return [row for row in rows if _lock(row, "recommended") != _lock(row, "asked")]


def _lock(row: Json, which: str) -> int | None:
    """The lock for a clock; None for the highest, which is the default."""
    clock: int | None = row[f"clock_{which}_mhz"]
    return None if clock == row["clock_highest_mhz"] else clock


def _page(job: Json, url: str) -> Iterator[str]:
    yield f"{job['name']} at {url}: {MODES[job['mode']]}"
    for hold in job["holds"]:
        yield f"! {sentence(hold['sentence'], [job['name']])}"
    plan = job["decision"]
    if not plan_name(plan):
        yield f"No recommendation yet: {sentence(job['sentence'], [job['name']])}"
        return
    yield f"Plan {plan['generation']}: {sentence(plan['reason'], [job['name']])}"
    if plan["refused"]:
        yield f"! Refused by the guard: {sentence(plan['refused'], [job['name']])}"
    changing = _changing(job)
    if not changing:
        done = "Its clocks are in force" if _in_force(job) else "Its clocks equal the current ones"
        yield f"{done}: no change."
    for row in changing:
        where = f"stage {row['stage']:<3} {gpu_name(row)}"
        yield f"- {where}  {_clock(_lock(row, 'asked'))}"
        yield f"+ {where}  {_clock(_lock(row, 'recommended'))}  {row['reason']}"
    forecast = plan["forecast"]
    if forecast:
        yield from _predicted(forecast)
    if hindrance := job.get("hindrance"):
        yield f"! Not enforceable now: {sentence(hindrance, [job['name']])}"
    elif changing and job["mode"] == "recommend":
        yield "No command is sent; `mode: enforce` in the policy applies it."


def _clock(clock: int | None) -> str:
    return "default" if clock is None else f"{mhz(clock)} MHz"


def _predicted(forecast: Json) -> Iterator[str]:
    yield (
        f"  time    {seconds(forecast['baseline_time_s'])} -> "
        f"{seconds(forecast['iteration_time_s'])} an iteration "
        f"({percent(forecast['slowdown_ratio'], signed=True)}, predicted)"
    )
    saved, band = forecast["saved_ratio"], forecast.get("band")
    yield (
        f"  energy  {joules(forecast['baseline_energy_j'])} -> {joules(forecast['energy_j'])} "
        f"an iteration ({percent(None if saved is None else -saved, signed=True)}, predicted)"
    )
    if band:
        yield f"  band    {band_text(band)}"
