"""The cluster as JSON: a few kilobytes, whatever the size of the fleet; tables have pages."""

import math
from collections.abc import Iterator
from dataclasses import asdict

from joulecut_controller.board import Board
from joulecut_controller.cluster.history import Series
from joulecut_controller.cluster.standing import Standing
from joulecut_controller.cluster.summary import cluster_of
from joulecut_controller.policy.policy import Cost
from joulecut_controller.view import BUDGET_JOB
from joulecut_controller.web.board_json import SIMULATED, event_json, work_by_gpu
from joulecut_controller.web.job_json import interval_json, strongest_mode
from joulecut_controller.web.links import Links
from joulecut_controller.web.responses import Json, number
from joulecut_controller.web.summary_json import summary_json

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


def cluster_json(board: Board, *, week: Json | None = None, links: Links | None = None) -> Json:
    """The first screen. `week` are the savings that hold-outs of the last week measured."""
    cluster, budget = cluster_of(board), board.power_limits
    return {
        "at_unix_s": number(board.at_unix_s),
        "role": "leader" if board.leads else "standby",
        "leader": board.leader,
        "pass_number": board.pass_number,
        "epoch": board.epoch,
        "interval_s": number(board.interval_s),
        "mode": strongest_mode(board.jobs),
        "simulated": any(uuid.startswith(SIMULATED) for uuid in board.view.gpus),
        "policy": {
            "source": board.policy_source,
            "digest": board.policy_digest,
            "error": board.policy_error,
        },
        **summary_json(cluster),
        "savings_week": week,
        "prices": prices_json(board.policy.cost if board.policy else Cost()),
        "power_budget": budget
        and {
            "budget_w": number(budget.budget_w),
            "in_force_w": number(budget.in_force_w),
            "state": budget.state,
            "best_effort": budget.best_effort,
            "sentence": budget.sentence,
        },
        "events": [event_json(event) for event in board.events[:EVENTS_LISTED_MAX]],
        "links": asdict(links or Links()),
    }


def prices_json(cost: Cost) -> Json:
    """Of a kilowatt-hour at the GPUs: cooling and conversion (PUE) are in both. Null where the
    policy names no price, or no intensity.
    """
    grams = cost.co2_g_per_kwh
    return {
        "money_per_kwh": None if cost.kwh is None else cost.kwh * cost.pue,
        "co2_kg_per_kwh": None if grams is None else grams * cost.pue / 1000.0,
    }


def standing_json(standing: Standing) -> Json:
    """One row of the table of jobs."""
    return {
        "name": standing.name,
        "state": standing.state,
        "next_step": standing.next_step,
        "rate_source": standing.rate_source or None,
        "granularity": standing.granularity,
        "gpus": standing.gpus,
        "power_w": number(standing.power_w),
        "slowdown_ratio": number(standing.slowdown_ratio),
        "budget_ratio": number(standing.budget_ratio),
        "predicted_saved_ratio": number(standing.predicted_saved_ratio),
        "saved_now_ratio": number(standing.saved_now_ratio),
        "saved_ratio": interval_json(standing.saved_ratio),
        "saved_measured_j": number(standing.saved_measured_j),
        "saved_predicted_j": number(standing.saved_predicted_j),
        "straggler": standing.straggler,
    }


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
