"""The cluster as JSON: a few kilobytes, whatever the size of the fleet; tables have pages."""

import math
from collections.abc import Iterator
from dataclasses import asdict

from joulecut_controller.answer import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    WORD,
    Answer,
    Json,
    Key,
    listed,
    maybe,
    number,
)
from joulecut_controller.board import Board
from joulecut_controller.cluster.history import Series
from joulecut_controller.cluster.summary import cluster_of
from joulecut_controller.policy.policy import Cost
from joulecut_controller.savings.record import INTERVAL
from joulecut_controller.view import BUDGET_JOB
from joulecut_controller.web.board_json import EVENT, POWER_BUDGET, RUN, SUMMARY, work_by_gpu
from joulecut_controller.web.job_json import JOB_STATE
from joulecut_controller.web.links import Links

EVENTS_LISTED_MAX = 12

JOB_COLUMNS = (
    "name", "state", "rate_source", "granularity", "gpus", "power_w", "slowdown_ratio",
    "predicted_saved_ratio", "saved_ratio", "saved_measured_j", "next_step",
)  # fmt: skip
JOB_SEARCHED = ("name", "state", "rate_source", "granularity", "next_step")
NODE_COLUMNS = (
    "node",
    "state",
    "gpus",
    "controlled_gpus",
    "power_w",
    "temperature_celsius",
    "jobs",
)
NODE_SEARCHED = ("node", "address", "state", "jobs")
GPU_COLUMNS = (
    "place", "model", "job", "stage", "clock_asked_mhz", "clock_seen_mhz", "power_average_w",
    "temperature_celsius", "age_s",
)  # fmt: skip
GPU_SEARCHED = ("place", "uuid", "model", "job", "event_reasons")


_WEEK = Answer(
    since_unix_s=NUMBER,
    until_unix_s=NUMBER,
    jobs=COUNT,
    jobs_unknown=COUNT,
    saved_kwh=maybe(INTERVAL),
    predicted_kwh=NUMBER,
    energy_money=maybe(INTERVAL),
    co2_kg=maybe(INTERVAL),
)
_BUDGET = ("budget_w", "in_force_w", "state", "best_effort", "sentence")
# The first screen.
CLUSTER = Answer(
    "Cluster",
    **RUN | {"events": listed(EVENT).at(lambda board: board.events[:EVENTS_LISTED_MAX])},
    **{key: one.given for key, one in SUMMARY.keys.items()},
    savings_week=maybe(_WEEK).given,
    prices=Answer(money_per_kwh=NUMBER, co2_kg_per_kwh=NUMBER, currency=TEXT).key.given,
    power_budget=maybe(
        Answer(**{key: POWER_BUDGET.keys[key] for key in _BUDGET} | {"state": TEXT})
    ).at("power_limits"),
    links=Answer(grafana=TEXT, runbook=TEXT, audit_log=TEXT).key.given,
)


def cluster_json(board: Board, *, week: Json | None = None, links: Links | None = None) -> Json:
    """The first screen. `week` are the savings that hold-outs of the last week measured."""
    return CLUSTER.json(
        board,
        **SUMMARY.json(cluster_of(board)),
        savings_week=week,
        prices=prices_json(board.policy.cost if board.policy else Cost()),
        links=asdict(links or Links()),
    )


def prices_json(cost: Cost) -> Json:
    """Of a kilowatt-hour at the GPUs: cooling and conversion (PUE) are in both. Null where the
    policy names no price, or no intensity.
    """
    grams = cost.co2_g_per_kwh
    return {
        "money_per_kwh": None if cost.kwh is None else cost.kwh * cost.pue,
        "co2_kg_per_kwh": None if grams is None else grams * cost.pue / 1000.0,
        "currency": cost.currency,
    }


# One row of the table of jobs.
STANDING = Answer(
    "Standing",
    name=TEXT,
    state=JOB_STATE,
    next_step=TEXT,
    rate_source=WORD,
    granularity=TEXT,
    gpus=COUNT,
    power_w=NUMBER,
    slowdown_ratio=NUMBER,
    budget_ratio=NUMBER,
    predicted_saved_ratio=NUMBER,
    saved_now_ratio=NUMBER,
    saved_ratio=maybe(INTERVAL),
    saved_measured_j=NUMBER.at("account.measured_j"),
    saved_predicted_j=NUMBER.at("account.predicted_j"),
    straggler=FLAG,
)
NODE_ROW = Answer(
    "NodeRow",
    node=TEXT,
    address=TEXT,
    state=Key({"enum": ["connected", "lost", "stopped"]}),
    error=TEXT,
    gpus=COUNT,
    controlled_gpus=COUNT,
    power_w=NUMBER,
    temperature_celsius=NUMBER,
    jobs=TEXT,
)


def node_rows(board: Board) -> Iterator[Json]:
    """One row for each agent, lost ones too."""
    work = work_by_gpu(board)
    rows: dict[str, Json] = {}
    for node in board.view.nodes:
        state = "lost" if not node.connected else "stopped" if node.hindrance else "connected"
        rows[node.address] = {
            "node": node.node or node.address,
            "address": node.address,
            "state": state,
            "error": node.error or node.hindrance,
            "gpus": 0,
            "controlled_gpus": 0,
            "power_w": None,
            "temperature_celsius": None,
            "jobs": set(),
        }
    for gpu in board.view.gpus.values():
        row, seen = rows.get(gpu.address), gpu.snapshot
        if row is None:
            continue
        row["gpus"] += 1
        if gpu.uuid in work:
            row["jobs"].add(work[gpu.uuid][0])
        if seen is None:
            continue
        row["controlled_gpus"] += seen.lease is not None and seen.lease.job != BUDGET_JOB
        if (power_w := number(seen.power_average_w)) is not None:
            row["power_w"] = (row["power_w"] or 0.0) + power_w
        if (celsius := number(seen.temperature_celsius)) is not None:
            row["temperature_celsius"] = max(row["temperature_celsius"] or celsius, celsius)
    for row in rows.values():
        yield row | {"jobs": ", ".join(sorted(row["jobs"]))}


def series_json(series: Series) -> Json:
    """Columns of equal length; unknown values are null."""
    return {
        "step_s": series.step_s,
        "at_unix_s": list(series.at_unix_s),
        **{
            name: [None if math.isnan(value) else float(f"{value:.5g}") for value in column]
            for name, column in series.columns.items()
        },
    }
