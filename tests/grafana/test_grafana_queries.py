"""Every query of every panel is put to a real Prometheus that scrapes a running cluster.

`JOULECUT_REWRITE_PICTURES=1` draws docs/pictures/grafana-* from the same run.
"""

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from queries import ask, filled

from joulecut_wire.errors import Unavailable

pytestmark = [pytest.mark.prometheus, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 1800.0  # hold-outs give an interval eight minutes after the start of an idle machine
# Ten scrapes: a window that a late scrape on a busy machine does not empty.
RATE_INTERVAL, RANGE = "10s", "120s"
DASHBOARDS = [
    json.loads(path.read_text()) for path in sorted((ROOT / "grafana/dashboards").glob("*.json"))
]


# Series that only a fault, a person, a budget or hours bring about, and recordings of them.
FAULTS = (
    "job_hold_info", "certificate_expires", "clock_limit_hertz", "control_drift", "drift_active",
    "energy_bloat", "xid_errors", "lease_expires", "clock_event_active", "stuck_locked",
    "joulecut_restore:missing", "power_budget", "power_limit_ends", "energy_saved_joules:increase",
    'iteration_time_seconds{kind="predicted"}',
)  # fmt: skip


# What panels say that are empty on a healthy cluster of stages of one GPU. Any other has a value
# beside hold-outs.
ALL_WELL = ("none", "no", "no alert fires", "no stage of several GPUs was studied")


def _queries(quiet: bool) -> dict[str, str]:
    """`quiet`: of panels about faults, that say that there is none."""
    return {
        f"{dashboard['title']} / {panel['title']} / {query['refId']}": filled(
            query["expr"], dashboard, rate_interval=RATE_INTERVAL, over=RANGE
        )
        for dashboard in DASHBOARDS
        for panel in dashboard["panels"]
        if panel["type"] != "row"
        for query in panel["targets"]
        if (panel["fieldConfig"]["defaults"].get("noValue") in ALL_WELL) is quiet
    }


def _series_of_alerts() -> dict[str, str]:
    """What alerts select, where a healthy cluster has it."""
    groups = yaml.safe_load((ROOT / "grafana/alerts/joulecut.rules.yaml").read_text())["groups"]
    return {
        f"{rule['alert']} / {selector}": selector
        for group in groups
        for rule in group["rules"]
        for selector in re.findall(r"[\w:]*joulecut_\w+(?::\w+)?(?:{[^}]*})?", rule["expr"])
        if "alert" in rule and not any(name in selector for name in FAULTS)
    }


def _answers(server: str, expr: str) -> bool:
    """Whether some series has a number now."""
    found = ask(server, "query", query=expr)["result"]
    return any(math.isfinite(float(series["value"][1])) for series in found)


def _rules(server: str) -> list[dict[str, Any]]:
    groups = ask(server, "rules")["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_query_answers_and_every_rule_runs(prometheus: str) -> None:
    began_s = time.monotonic()
    waiting = _queries(quiet=False) | _series_of_alerts()
    assert len(waiting) > 100
    while waiting and time.monotonic() < began_s + PATIENCE_S:
        time.sleep(0.5)
        try:
            waiting = {
                name: expr for name, expr in waiting.items() if not _answers(prometheus, expr)
            }
        except Unavailable as error:
            assert "does not answer" in str(error), error  # it is starting
    assert not waiting, "these never had data"
    for expr in _queries(quiet=True).values():
        ask(prometheus, "query", query=expr)  # raises where the grammar is wrong

    # One more evaluation of each, with everything there is to see.
    rules = _rules(prometheus)
    while any(rule["health"] == "unknown" for rule in rules):  # not evaluated yet
        assert time.monotonic() < began_s + PATIENCE_S
        time.sleep(0.5)
        rules = _rules(prometheus)
    shipped = yaml.safe_load((ROOT / "grafana" / "alerts" / "joulecut.rules.yaml").read_text())
    assert len(rules) == sum(len(group["rules"]) for group in shipped["groups"])
    sick = {rule["name"]: rule["lastError"] for rule in rules if rule["health"] != "ok"}
    assert not sick
    firing = {rule["name"] for rule in rules if rule.get("state") == "firing"}
    assert not firing, "a healthy cluster wakes nobody"
    for record in (
        "workload:joulecut_job_energy_bloat:ratio",
        "uuid:joulecut_gpu_clock_hertz:highest",
    ):
        while not _answers(prometheus, record):  # bloat is unknown while a new plan is studied
            assert time.monotonic() < began_s + PATIENCE_S, record
            time.sleep(0.5)
    # `job` is the scrape's own; the recorded copy has the training job there, as before 0.1.0.
    for name, scrape in (
        ("joulecut_job_energy_joules_total", "joulecut-agent"),
        ("joulecut_controller_mode", "joulecut-controller"),
    ):
        [one, *_] = ask(prometheus, "query", query=f'{name}{{workload!="",job="{scrape}"}}')[
            "result"
        ]
        assert _answers(prometheus, f'job:{name}{{job="{one["metric"]["workload"]}"}}')

    if os.environ.get("JOULECUT_REWRITE_PICTURES"):
        while not _answers(prometheus, "joulecut_plan_gap_ratio"):  # between two hold-outs
            time.sleep(0.5)
        tool = str(ROOT / "tools" / "grafana-pictures")
        subprocess.run([sys.executable, tool, prometheus], check=True)
