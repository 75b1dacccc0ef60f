"""`joulecut status`: fleet and jobs on one screen, at the controller's last pass."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from joulecut_cli.controller_client import (
    DEFAULT_URL,
    Controller,
    Json,
    stands_by,
    understood,
    where_to_ask,
)
from joulecut_cli.figures import (
    ago,
    gpu_name,
    joules,
    length,
    mhz,
    percent,
    point_wait,
    seconds,
    sentence,
    table,
    watt_hours,
    watts,
)
from joulecut_wire import duration
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import Unavailable


def saving_text(saving: Json | None) -> str:
    """The measured saving with its interval, or why it is unknown; empty without windows."""
    if not saving:
        return ""
    saved = saving["saved_ratio"]
    if saved is None:
        return f"not measured yet: {saving['reason']}"
    text = (
        f"{percent(saved['mid'])} less energy ({percent(saved['low'])} to "
        f"{percent(saved['high'])}) measured in {saving['holdouts']} hold-outs over "
        f"{saving['days']:.1f} days"
    )
    if wait := point_wait(saving.get("point_in_s")):
        text += f", {wait}"
    if saving["predicted_saved_ratio"] is not None:
        text += f"; {percent(saving['predicted_saved_ratio'])} predicted"
    return text


def look_text(look: Json | None) -> str:
    """When default clocks were measured, and what looks at them cost; empty without any."""
    if not look or look["age_s"] is None:
        return ""
    text = f"default clocks measured {ago(look['age_s'])} ago"
    text += f"; short default windows take {percent(look['share_ratio'])} of the time"
    return f"{text}; {look['text']}" if look["text"] else text


def holdout_text(holdout: Json | None) -> str:
    """The current or next window and the counts of past ones; empty without hold-outs."""
    if not holdout:
        return ""
    parts = [holdout["text"]]
    if holdout["share_ratio"]:
        windows = f", windows of {length(holdout['window_s'])}" if holdout["window_s"] else ""
        parts.append(f"{percent(holdout['share_ratio'])} of the time{windows}")
    kept = {w["arm"]: w["count"] for w in holdout["windows"] if w["outcome"] == "kept"}
    if kept:
        at_default, under_plan = kept.get("default", 0), kept.get("plan", 0)
        parts.append(f"{at_default} windows kept at default clocks, {under_plan} under a plan")
    dropped = Counter[str]()
    for window in holdout["windows"]:
        dropped[window["outcome"]] += window["count"]
    del dropped["kept"]
    if dropped:
        why = ", ".join(f"{count} ({reason})" for reason, count in sorted(dropped.items()))
        parts.append(f"dropped: {why}")
    return "; ".join(parts)


def worth_text(job: Json) -> str:
    """What the plan is worth, and where energy and time together cost least; empty without one."""
    money = job["money"]
    if not money:
        return ""
    text = f"worth {money['plan']['text']} ({money['basis']})"
    if least := money["least_cost"]:
        text += f"; least cost at {percent(least['slowdown_ratio'], signed=True)} time"
    prices = money["prices"]
    usual = ", ".join(f"cluster.cost.{name}" for name in prices["assumed"])
    return f"{text}; at {prices['text']}" + (f" (assumed; yours: {usual})." if usual else ".")


STALE_PASSES = 6  # as /healthz: one pass may be slow or fail, six are a fault
STALE_S_MIN = 30.0

WATCH_S = 2.0  # as often as a person looks; a pass is every few seconds
WATCH_S_MIN, WATCH_S_MAX = 0.2, 3600.0
CLEAR = "\x1b[H\x1b[2J"  # cursor home, screen empty
INDENTED_GPUS_MAX = 256
JOBS_SHOWN_MAX = 20  # with head and GPUs, a screen


def mode_text(mode: str, *, enforced: bool) -> str:
    """As the page says it; a policy may allow clocks that no plan holds now."""
    if mode == "enforce":
        return "enforcing" if enforced else "enforce, no plan in force"
    return "recommending, no command is sent" if mode == "recommend" else mode


@understood
def run(argv: list[str]) -> int:
    """Prints the status. Raises BadInput for a bad flag or URL, Unavailable without controller."""
    parser = Parser("joulecut status", "Fleet and jobs on one screen, at the last pass.")
    add_controller_flags(parser)
    parser.add_argument("--gpus", action="store_true", help="list every GPU of a large fleet")
    parser.add_argument("--all", action="store_true", help="list every job, with its next step")
    parser.add_argument(
        "--watch", nargs="?", const=f"{WATCH_S:g}", metavar="SECONDS",
        help=f"refresh every SECONDS (default {WATCH_S:g}) until Ctrl-C",
    )  # fmt: skip
    given = parser.parse_args(argv)
    controller = Controller(given.controller)
    if given.watch is None:
        print(_shown(controller, given))
        return FINE
    interval_s = max(WATCH_S_MIN, duration.seconds(given.watch, "--watch", WATCH_S_MAX))
    return _watch(controller, given, interval_s)


def _shown(controller: Controller, given: argparse.Namespace, indent: int | None = 2) -> str:
    board = controller.board() if given.gpus or given.json else controller.brief()
    if given.json:  # indenting the board of a large fleet takes seconds
        few = len(board["gpus"]) <= INDENTED_GPUS_MAX
        return json.dumps(board, indent=indent if few else None)
    now_unix_s = time.time() - controller.skew_s
    text = page(board, controller.url, now_unix_s, every_job=given.all)
    if controller.skew_s:
        text += (
            f"\n! The clock of this machine is {ago(abs(controller.skew_s))} "
            f"{'ahead of' if controller.skew_s > 0 else 'behind'} the controller's clock, which is "
            "used here."
        )
    return text


def _watch(controller: Controller, given: argparse.Namespace, interval_s: float) -> int:
    """Refreshes until Ctrl-C, also while no controller answers."""
    alone = sys.stdout.isatty() and not given.json
    try:
        while True:
            try:
                text = _shown(controller, given, indent=None)
            except Unavailable as error:
                text = json.dumps({"error": str(error)}) if given.json else f"! {error}"
            print(CLEAR + text if alone else text, end="\n" if given.json else "\n\n", flush=True)
            time.sleep(interval_s)
    except KeyboardInterrupt:
        return FINE


def add_controller_flags(parser: Parser) -> None:
    parser.add_argument(
        "--controller", metavar="URL", default=DEFAULT_URL, help=f"default {DEFAULT_URL}"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def page(board: Json, url: str, now_unix_s: float, *, every_job: bool = False) -> str:
    """The whole screen as text. Of many jobs the worst, unless `every_job` is asked for."""
    many = len(board["jobs"]) > JOBS_SHOWN_MAX and not every_job and not stands_by(board)
    jobs = _worst_jobs(board) if many else _jobs(board)
    others = _elsewhere(board)
    return "\n".join([*_head(board, url, now_unix_s), "", *jobs, *others, "", *_gpus(board)])


def _elsewhere(board: Json) -> Iterator[str]:
    """Jobs of other controllers of the same store; absent before 0.2."""
    for one in board.get("elsewhere", ()):
        names, at = ", ".join(one["jobs"]) or "no jobs", one["controller"]
        yield f"  at {at} ({ago(one['age_s'])} ago): {names}"


def _head(board: Json, url: str, now_unix_s: float) -> Iterator[str]:
    age_s = now_unix_s - board["at_unix_s"]
    policy = board["policy"]
    simulated = ", simulated GPUs" if board["simulated"] else ""
    if stands_by(board):
        yield f"Joulecut at {url}: standby, no commands; last pass {ago(age_s)} ago{simulated}"
        yield sentence(board["sentence"].removeprefix("standby: "))
        yield sentence(where_to_ask(board, url))
    else:
        enforced = bool(board["cluster"]["job_counts"].get("enforced"))  # by any controller
        mode = mode_text(board["mode"], enforced=enforced)
        yield (
            f"Joulecut at {url}: {mode if board['jobs'] else 'no jobs'}; "
            f"pass {board['pass_number']} ended {ago(age_s)} ago, epoch {board['epoch']}{simulated}"
        )
        yield from _cluster(board["cluster"], board.get("power_budget"))
        digest = f" ({policy['digest'][:8]})" if policy["digest"] else ""
        yield f"Policy {policy['source'] or 'none'}{digest}"
    if age_s > max(STALE_S_MIN, STALE_PASSES * (board["interval_s"] or 0.0)):
        yield f"! No pass has ended for {ago(age_s)}: the data below is stale."
    if (budget := board.get("power_budget")) and not budget["best_effort"]:
        yield sentence(budget["sentence"])
    yield from _needs(board["cluster"])


def _cluster(cluster: Json, budget: Json | None) -> Iterator[str]:
    """One line of numbers for the whole cluster, then the headline."""
    power, savings, gpus = cluster["power"], cluster["savings"], cluster["gpu_counts"]
    counts, without_w = cluster["need_counts"], power["without_w"]
    change = percent(power["now_w"] / without_w - 1.0, signed=True) if without_w else "-"
    basis = "partly predicted" if power["without_is_predicted"] else "estimate"
    now, without = watts(power["now_w"]), watts(without_w)
    known = savings["measured_j"] is not None
    measured = f"{watt_hours(savings['measured_j'])} measured" if known else "not measured yet"
    budget_w = budget["budget_w"] if budget else None
    words = [
        f"{now} now, {without} without Joulecut ({basis}): {change}",
        f"plans would save {watts(power['available_w'])}" if power["available_w"] else "",
        f"saved: {measured}, {watt_hours(savings['predicted_j'])} predicted",
        f"power budget {watts(budget_w)}" if budget_w else "no power budget",
        f"{gpus['controlled']} of {gpus['all']} GPUs controlled",
        f"needs a person: {counts['fault'] + counts['decision'] or 'nothing'}",
    ]
    yield "; ".join(filter(None, words))
    yield cluster["headline"]


JOB_COLUMNS = (
    "  PREDICTED: what the newest plan saves. MEASURED: what is saved now, beside TIME and ENERGY "
    "of an iteration. SAVED: measured so far."
)
NEED_MARKS = {"fault": "!", "decision": "?", "note": "-"}


def _needs(cluster: Json) -> Iterator[str]:
    """What needs a person: `!` a fault, `?` a decision, `-` for information."""
    for need in cluster["needs"]:
        about = need["job"] or need["node"]
        text = sentence(need["text"], [about])
        yield f"{NEED_MARKS[need['severity']]} {about and f'{about}: '}{text}"
    more = sum(cluster["need_counts"].values()) - len(cluster["needs"])
    if more > 0:
        yield f"- and {more} more: see the page"


def _jobs(board: Json) -> list[str]:
    if stands_by(board):
        return ["Jobs and plans are shown by the leader; below are the GPUs seen by this standby."]
    if not board["jobs"]:
        none = "No jobs: GPUs are measured and stay at default clocks."
        return [] if board.get("elsewhere") else [none]
    lines = _job_table(board["jobs"])
    for job in board["jobs"]:
        name, step = job["name"], job["next_step"]
        if job["sentence"] != step:
            lines.append(f"  {name}: {sentence(job['sentence'], [name])}")
        if step:
            lines.append(f"  {name}: next: {sentence(step, [name])}")
        if foreign := foreign_text(job):
            lines.append(f"  {name}: {foreign}")
        for fault in job.get("report_faults", [])[:1]:
            lines.append(f"! {name}: reports: {fault['text']} ({fault['count']} so far).")
        if worth := worth_text(job):
            lines.append(f"  {name}: {worth}")
        saving = saving_text(job.get("saving"))
        if saving:
            lines.append(f"  {name}: saving {saving}.")
    return [*lines, JOB_COLUMNS]


def _worst_jobs(board: Json) -> list[str]:
    """Rows of the jobs that need a person, then of the slowest; counts of the others by state."""
    severities = [*NEED_MARKS]
    needs = {one["job"]: severities.index(one["severity"]) for one in board["cluster"]["needs"]}

    def better(job: Json) -> tuple[int, float, str]:
        slower = job["measured"]["slowdown_ratio"]
        return needs.get(job["name"], len(severities)), -(slower or 0.0), job["name"]

    ordered = sorted(board["jobs"], key=better)
    states = Counter(job["state"] for job in ordered[JOBS_SHOWN_MAX:])
    others = ", ".join(f"{count} {state}" for state, count in states.most_common())
    rest = f"  and {states.total()} more ({others}): `joulecut status --all` lists every job."
    return [*_job_table(ordered[:JOBS_SHOWN_MAX]), rest, JOB_COLUMNS]


def _job_table(jobs: list[Json]) -> list[str]:
    head = (
        "JOB", "STATE", "PLAN", "TIME", "BASELINE", "SLOWER", "ENERGY", "PREDICTED", "MEASURED",
        "SAVED",
    )  # fmt: skip
    return table(head, [_job_row(job) for job in jobs], frozenset(head[2:]))


def foreign_text(job: Json) -> str:
    """Why no baseline is measured and its remedy; empty where one is."""
    if not job.get("foreign_lock"):
        return ""
    return (
        f"no baseline is measured: {job['foreign_lock']}. If the site sets this lock, name it "
        "in site_default of the agent's configuration."
    )


def _job_row(job: Json) -> tuple[str, ...]:
    baseline, current = job["baseline"] or {}, job["current"] or {}
    return (
        job["name"],
        job["state"],
        plan_name(job["decision"]) or "-",
        seconds(current.get("iteration_time_s")),
        seconds(baseline.get("iteration_time_s")),
        percent(job["measured"]["slowdown_ratio"], signed=True),
        joules(current.get("energy_j")),
        percent(job["predicted_saved_ratio"]),
        percent(job["measured"]["saved_ratio"] if job["generation_running"] else None),
        watt_hours(job["measured"]["saved_j"]),
    )


def _gpus(board: Json) -> list[str]:
    if board.get("brief"):
        gpus, nodes = board["cluster"]["gpu_counts"], board["cluster"]["node_counts"]
        counted = (
            f"{gpus['all']} GPUs on {nodes['all']} nodes: {gpus['controlled']} under leases, "
            f"{gpus['default']} at default clocks, {gpus['silent']} silent, "
            f"{gpus['not_controllable']} not controllable; {nodes['lost']} nodes lost."
        )
        return [counted, "`joulecut status --gpus` lists every GPU."]
    if not board["gpus"]:
        return ["No GPU has been reported yet."]
    wanted = {row["uuid"]: row for job in board["jobs"] for row in job["gpus"]}
    head = (
        "GPU",
        "JOB",
        "STAGE",
        "PLAN",
        "ASKED",
        "SEEN",
        "POWER",
        "LEASE",
        "AGE",
        "EVENT REASONS",
    )
    rows = [_gpu_row(gpu, wanted.get(gpu["uuid"])) for gpu in board["gpus"]]
    lines = table(head, rows, frozenset(head[2:9]))
    lines.append("  Clocks in MHz; default: no lock. PLAN: recommended clock, ASKED: leased clock.")
    return lines


def _gpu_row(gpu: Json, row: Json | None) -> tuple[str, ...]:
    fresh = gpu["age_s"] is not None
    return (
        gpu_name(gpu),
        gpu["job"] or "-",
        "-" if gpu["stage"] is None else str(gpu["stage"]),
        planned(row),
        mhz(gpu["clock_asked_mhz"], "default" if fresh else "-"),
        mhz(gpu["clock_seen_mhz"], "-"),
        watts(gpu["power_average_w"]),
        _lease(gpu, fresh=fresh),
        ago(gpu["age_s"]) if fresh else "silent",
        ", ".join(gpu["event_reasons"]) or "-",
    )


def plan_name(plan: Json | None) -> str:
    """A plan's number; empty before the first decision."""
    return str(plan["generation"]) if plan and plan["generation"] else ""


def planned(row: dict[str, Any] | None) -> str:
    """The clock of a GPU in a plan, or `1260-1410` where it changes in an iteration: `default` for
    no lock, `-` without a plan."""
    if row is None or row["verb"] is None:
        return "-"
    lowest, highest = row.get("clock_lowest_recommended_mhz"), row["clock_recommended_mhz"]
    return mhz(highest) if lowest in (None, highest) else f"{lowest}-{mhz(highest)}"


def _lease(gpu: Json, *, fresh: bool) -> str:
    if gpu["lease"] is None:
        return "none" if fresh else "-"
    left = f"{gpu['lease']['remaining_s'] or 0.0:.0f} s"
    return left if gpu["lease"]["job"] == gpu["job"] else f"{gpu['lease']['job']} {left}"
