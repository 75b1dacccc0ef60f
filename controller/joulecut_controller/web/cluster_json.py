"""The cluster as JSON: a few kilobytes, whatever the size of the fleet; tables have pages."""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict

from joulecut_controller import answer as a
from joulecut_controller.answer import INTERVAL, Answer, Json, Key, listed, maybe, number
from joulecut_controller.board import Board
from joulecut_controller.cluster.history import Series
from joulecut_controller.cluster.state import budget_ratio
from joulecut_controller.cluster.summary import cluster_of
from joulecut_controller.policy.policy import Cost
from joulecut_controller.view import BUDGET_JOB, GpuView, NodeView
from joulecut_controller.web.board_json import EVENT, POWER_BUDGET, RUN, SUMMARY, work_by_gpu
from joulecut_controller.web.job_json import STATE
from joulecut_controller.web.links import Links
from joulecut_controller.web.week import WEEK

EVENTS_LISTED_MAX = 12

JOB_COLUMNS = (
    "name", "state", "rate_source", "granularity", "gpus", "power_w", "slowdown_ratio",
    "predicted_saved_ratio", "saved_ratio", "saved_measured_j", "next_step",
)  # fmt: skip
JOB_SEARCHED = ("name", "state", "rate_source", "granularity", "next_step")
NODE_COLUMNS = (
    "node", "state", "gpus", "controlled_gpus", "power_w", "temperature_celsius", "jobs",
)  # fmt: skip
NODE_SEARCHED = ("node", "address", "state", "jobs")
GPU_COLUMNS = (
    "place", "model", "job", "stage", "clock_asked_mhz", "clock_seen_mhz", "power_average_w",
    "temperature_celsius", "age_s",
)  # fmt: skip
GPU_SEARCHED = ("place", "uuid", "model", "job", "event_reasons")


# Of a kilowatt-hour at the GPUs: cooling and conversion (PUE) are in both. Null where the policy
# names no price, or no intensity.
PRICES = Answer(
    money_per_kwh=a.NUMBER.at(lambda cost: None if cost.kwh is None else cost.kwh * cost.pue),
    co2_kg_per_kwh=a.NUMBER.at(
        lambda cost: cost.co2_g_per_kwh and cost.co2_g_per_kwh * cost.pue / 1000.0
    ),
    currency=a.TEXT,
)
_BUDGET = ("budget_w", "in_force_w", "state", "best_effort", "sentence")
# The first screen.
CLUSTER = Answer(
    "Cluster",
    **RUN | {"events": listed(EVENT).at(lambda board: board.events[:EVENTS_LISTED_MAX])},
    **{key: one.given for key, one in SUMMARY.keys.items()},
    savings_week=maybe(WEEK).given,
    prices=PRICES.key.at(lambda board: board.policy.cost if board.policy else Cost()),
    power_budget=maybe(
        Answer(**{key: POWER_BUDGET.keys[key] for key in _BUDGET} | {"state": a.TEXT})
    ).at("power_limits"),
    links=Answer(grafana=a.TEXT, runbook=a.TEXT, audit_log=a.TEXT).key.given,
)


def cluster_json(board: Board, *, week: Json | None = None, links: Links | None = None) -> Json:
    """The first screen. `week` are the savings that hold-outs of the last week measured."""
    return CLUSTER.json(
        board,
        **SUMMARY.json(cluster_of(board)),
        savings_week=week,
        links=asdict(links or Links()),
    )


# One row of the table of jobs.
STANDING = Answer(
    "Standing",
    name=a.TEXT.at("view.policy.name"),
    **STATE.keys,
    granularity=a.TEXT,
    gpus=a.COUNT.at(lambda job: sum(map(len, job.view.placement.stages))),
    power_w=a.NUMBER.at(lambda job: (now := job.view.measured.current) and now.power_w),
    slowdown_ratio=a.NUMBER,
    budget_ratio=a.NUMBER.at(budget_ratio),
    saved_now_ratio=a.NUMBER.at("saved_ratio"),
    saved_ratio=maybe(INTERVAL).at(
        lambda job: job.holdout and job.holdout.saving and job.holdout.saving.saved_ratio
    ),
    saved_measured_j=a.NUMBER.at("account.measured_j"),
    saved_predicted_j=a.NUMBER.at("account.predicted_j"),
    straggler=a.FLAG.at("view.measured.straggling"),
)
NODE_ROW = Answer(
    "NodeRow",
    node=a.TEXT.at(lambda node: node.node or node.address),
    address=a.TEXT,
    state=Key({"enum": ["connected", "lost", "stopped"]}).at(
        lambda node: "stopped" if node.connected and node.hindrance else _reached(node)
    ),
    error=a.TEXT.at(lambda node: node.error or node.hindrance),
    gpus=a.COUNT.given,
    controlled_gpus=a.COUNT.given,
    power_w=a.NUMBER.given,
    temperature_celsius=a.NUMBER.given,
    jobs=a.TEXT.given,
)


def _reached(node: NodeView) -> str:
    return "connected" if node.connected else "lost"


def node_rows(board: Board) -> Iterator[Json]:
    """One row for each agent, lost ones too."""
    work, by_node = work_by_gpu(board), defaultdict[str, list[GpuView]](list)
    for gpu in board.view.gpus.values():
        by_node[gpu.address].append(gpu)
    for node in board.view.nodes:
        gpus = by_node[node.address]
        shown = [gpu.snapshot for gpu in gpus if gpu.snapshot]
        power_w = [watts for one in shown if (watts := number(one.power_average_w)) is not None]
        celsius = [heat for one in shown if (heat := number(one.temperature_celsius)) is not None]
        leases = [one.lease for one in shown if one.lease]
        jobs = {work[gpu.uuid][0] for gpu in gpus if gpu.uuid in work}
        jobs |= {lease.job for lease in leases if lease.job != BUDGET_JOB}  # of other controllers
        yield NODE_ROW.json(
            node,
            gpus=len(gpus),
            controlled_gpus=sum(lease.job != BUDGET_JOB for lease in leases),
            power_w=sum(power_w) if power_w else None,
            temperature_celsius=max(celsius, default=None),
            jobs=", ".join(sorted(jobs)),
        )


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
