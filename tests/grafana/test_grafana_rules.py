"""The alerts: each fires and keeps silent when it should, and leads to an entry in the runbook."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from joulecut_wire import metrics

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "grafana" / "alerts"
RULES = ALERTS / "joulecut.rules.yaml"
CASES = sorted((ALERTS / "tests").glob("*.yaml"))
PARTS = ("**Means.**", "**Look.**", "**Do.**", "**By itself.**")
ALERTS_MIN = 15
SCRAPED = {"cluster", "instance", "job", "le"}  # by Prometheus, and of histograms
SUFFIXES = ("_bucket", "_sum", "_count")


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in _rules() if "alert" in rule}


def _entries() -> dict[str, str]:
    """The runbook's sections by their title."""
    parts = re.split(r"^##? ", (ROOT / "docs" / "runbook.md").read_text(), flags=re.MULTILINE)
    return {part.partition("\n")[0]: part for part in parts[1:]}


def _expected() -> dict[str, set[bool]]:
    """For each alert, whether cases exist that fire (True) and that stay silent (False)."""
    seen: dict[str, set[bool]] = {}
    for path in CASES:
        for case in yaml.safe_load(path.read_text())["tests"]:
            # A case that fires and is silent at other times counts for firing only.
            told = case["alert_rule_test"]
            for name in {one["alertname"] for one in told}:
                fires = any(one["exp_alerts"] for one in told if one["alertname"] == name)
                seen.setdefault(name, set()).add(fires)
    return seen


def _promtool(*words: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("Debian package prometheus is not installed")
    judged = subprocess.run([promtool, *words], capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_a_fault_of_one_node_is_no_night_call() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [
        r for g in groups if g["name"] in {"joulecut-control", "joulecut-node"} for r in g["rules"]
    ]
    assert {r["labels"]["severity"] for r in rules if "alert" in r} == {"warning", "info"}


@pytest.mark.prometheus
def test_promtool_accepts_the_rules() -> None:
    _promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(
            path,
            marks=[pytest.mark.long, *([] if path.stem == "days" else [pytest.mark.smoke])],
            id=path.stem,
        )
        for path in CASES
    ],
)
def test_alerts_fire_and_stay_silent_as_told(cases: Path) -> None:
    _promtool("test", "rules", str(cases))


@pytest.mark.prometheus
def test_the_scrape_configuration_is_accepted(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "grafana", tmp_path / "grafana")
    _promtool("check", "config", str(tmp_path / "grafana" / "prometheus.yaml"))


def test_the_series_of_each_case_are_those_of_an_exporter() -> None:
    """Else an alert could fire in its case, and never where it is installed."""
    known = {metric.full_name: set(metric.labels) for metric in metrics.AGENT + metrics.CONTROLLER}
    known |= {name + suffix: labels for name, labels in known.items() for suffix in SUFFIXES}
    for path in CASES:
        for case in yaml.safe_load(path.read_text())["tests"]:
            for one in case["input_series"]:
                name, _, labels = one["series"].partition("{")
                if name.startswith("joulecut_"):
                    given = set(re.findall(r"(\w+)=", labels)) - SCRAPED
                    assert given == known[name], f"{path.name}: {one['series']}"


def test_each_alert_has_a_case_for_firing_and_one_for_silence() -> None:
    alerts, expected = _alerts(), _expected()
    assert len(alerts) >= ALERTS_MIN
    assert set(expected) == set(alerts)
    assert not {name for name, seen in expected.items() if seen != {True, False}}


def test_each_alert_says_how_grave_it_is_and_what_to_do() -> None:
    for name, rule in _alerts().items():
        assert re.fullmatch(r"Joulecut[A-Z][A-Za-z]+", name)
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, name
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, name
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"


def test_each_alert_has_a_whole_entry_in_the_runbook_and_no_entry_is_left_over() -> None:
    entries, alerts = _entries(), _alerts()
    for name in alerts:
        assert name in entries, f"docs/runbook.md has no entry {name}"
        places = [entries[name].find(part) for part in PARTS]
        assert -1 not in places, name
        assert places == sorted(places), name
    assert {title for title in entries if title.startswith("Joulecut")} == set(alerts)
    named = set(re.findall(r"\bJoulecut[A-Z]\w+", (ROOT / "docs" / "runbook.md").read_text()))
    assert named == set(alerts)


def test_the_series_of_before_the_rename_are_recorded_and_a_new_metric_needs_no_rule() -> None:
    """The README's `sed` turns an older dashboard to the recorded names; they are a closed list."""
    ours = {metric.full_name: metric.labels for metric in (*metrics.AGENT, *metrics.CONTROLLER)}
    old = [rule for rule in _rules() if rule.get("record", "").startswith("job:")]
    [edit] = re.findall(r"sed -E '(.*)' ", (ROOT / "grafana" / "README.md").read_text())
    assert old
    for rule in old:
        name = rule["record"].removeprefix("job:")
        assert "workload" in ours[name], name
        assert rule["expr"] == f'label_replace({name}, "job", "$1", "workload", "(.*)")'
        said = subprocess.run(
            ["sed", "-E", edit], input=name, capture_output=True, text=True, check=True
        )
        assert said.stdout == rule["record"]


def test_every_metric_in_a_rule_exists() -> None:
    known = {metric.full_name for metric in (*metrics.AGENT, *metrics.CONTROLLER)}
    known |= {name + suffix for name in known for suffix in SUFFIXES}
    recorded = {rule["record"] for rule in _rules() if "record" in rule}
    for rule in _rules():
        named = set(re.findall(r"[a-z_]+:joulecut_\w+:\w+|\bjoulecut_\w+", rule["expr"]))
        assert named, rule
        assert not named - known - recorded, rule
