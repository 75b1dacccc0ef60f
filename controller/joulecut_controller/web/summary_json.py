"""What page and command line say first, as JSON: headline, needs, power, savings, counts."""

from joulecut_controller.answer import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    Answer,
    Json,
    Key,
    component,
    listed,
)
from joulecut_controller.cluster.summary import Cluster

NEEDS_LISTED_MAX = 20  # more are counted

NEED = Answer(severity=component("Severity"), text=TEXT, job=TEXT, node=TEXT, runbook=TEXT)


def _counted(cluster: Cluster) -> Json:
    return {name: cluster.count(name) for name in ("fault", "decision", "note")}


_JOB_COUNTS = {
    "type": "object",
    "properties": {"all": COUNT.schema},
    "required": ["all"],
    "additionalProperties": COUNT.schema,
}
# The cluster without its tables.
SUMMARY = Answer(
    headline=TEXT,
    needs=listed(NEED).at(lambda cluster: cluster.needs[:NEEDS_LISTED_MAX]),
    need_counts=Key(Answer(fault=COUNT, decision=COUNT, note=COUNT).schema).at(_counted),
    power=Answer(
        now_w=NUMBER,
        without_w=NUMBER,
        without_is_predicted=FLAG.at("predicted"),
        available_w=NUMBER,
    ).key,
    savings=Answer(measured_j=NUMBER, promised_j=NUMBER, predicted_j=NUMBER).key.at("account"),
    gpu_counts=Answer(
        all=COUNT, controlled=COUNT, default=COUNT, silent=COUNT, not_controllable=COUNT
    ).key.at("gpus"),
    node_counts=Answer(all=COUNT.at("nodes"), lost=COUNT.at("nodes_lost")).key.here,
    job_counts=Key(_JOB_COUNTS).at(lambda one: {"all": len(one.standings), **one.states}),
)


def summary_json(cluster: Cluster) -> Json:
    return SUMMARY.json(cluster)
