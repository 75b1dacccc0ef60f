"""The files that tools/dashboards writes: dashboards, ConfigMaps, PrometheusRule."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from joulecut_dashboards import controller, fleet, gpu, job, savings
from joulecut_dashboards.grafana_json import document
from joulecut_dashboards.panels import Dashboard

DASHBOARDS: tuple[Dashboard, ...] = (
    fleet.DASHBOARD,
    job.DASHBOARD,
    gpu.DASHBOARD,
    controller.DASHBOARD,
    savings.DASHBOARD,
)
GENERATED = "# Made by tools/dashboards from grafana/; do not edit.\n"


def made(grafana: Path) -> Iterator[tuple[Path, str]]:
    """Each generated file below the folder `grafana`, with its text."""
    for dashboard in DASHBOARDS:
        text = json.dumps(document(dashboard), indent=1, ensure_ascii=False) + "\n"
        yield grafana / "dashboards" / f"{dashboard.uid}.json", text
    yield grafana / "kubernetes" / "dashboards.yaml", GENERATED + _yaml(*_config_maps())
    rules = yaml.safe_load((grafana / "alerts" / "joulecut.rules.yaml").read_text())
    yield grafana / "kubernetes" / "rules.yaml", GENERATED + _yaml(_prometheus_rule(rules))


def _config_maps() -> Iterator[dict[str, Any]]:
    """For the dashboard sidecar of the Grafana chart, which loads ConfigMaps with this label."""
    for dashboard in DASHBOARDS:
        text = json.dumps(document(dashboard), separators=(",", ":"), ensure_ascii=False)
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": dashboard.uid,
                "labels": {"grafana_dashboard": "1", "app.kubernetes.io/part-of": "joulecut"},
                "annotations": {"grafana_folder": "Joulecut"},
            },
            "data": {f"{dashboard.uid}.json": text},
        }


def _prometheus_rule(rules: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "joulecut", "labels": {"app.kubernetes.io/part-of": "joulecut"}},
        "spec": rules,
    }


def _yaml(*documents: dict[str, Any]) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False, width=100, allow_unicode=True)
