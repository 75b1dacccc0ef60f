"""What page and command line say first, as JSON: headline, needs, power, savings, counts."""

from joulecut_controller.cluster.needs import Need
from joulecut_controller.cluster.summary import Cluster
from joulecut_controller.web.responses import Json, number

NEEDS_LISTED_MAX = 20  # more are counted


def summary_json(cluster: Cluster) -> Json:
    """The cluster without its tables."""
    power, gpus = cluster.power, cluster.gpus
    return {
        "headline": cluster.headline,
        "needs": [need_json(need) for need in cluster.needs[:NEEDS_LISTED_MAX]],
        "need_counts": {name: cluster.count(name) for name in ("fault", "decision", "note")},
        "power": {
            "now_w": number(power.now_w),
            "without_w": number(power.without_w),
            "without_is_predicted": power.predicted,
            "available_w": number(power.available_w),
        },
        "savings": {
            "measured_j": number(cluster.saved_measured_j),
            "predicted_j": number(cluster.saved_predicted_j),
        },
        "gpu_counts": {
            "all": gpus.all,
            "controlled": gpus.controlled,
            "default": gpus.default,
            "silent": gpus.silent,
            "not_controllable": gpus.not_controllable,
        },
        "node_counts": {"all": cluster.nodes, "lost": cluster.nodes_lost},
        "job_counts": {"all": len(cluster.standings), **cluster.states},
    }


def need_json(need: Need) -> Json:
    return {
        "severity": need.severity,
        "text": need.text,
        "job": need.job,
        "node": need.node,
        "runbook": need.runbook,
    }
