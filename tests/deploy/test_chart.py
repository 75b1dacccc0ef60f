"""The chart against the schemas of every Kubernetes version, and its values against theirs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifests import CHART, HELM, NEWEST, ROOT, VALUES, chart, check, helm, one, refusal, versions

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
# What Kubernetes defines, or the policy's own loader checks.
FREE = {
    "affinity", "tlsConfig", "basicAuth", "namespaceSelector", "podSelector", "ipBlock",
    "global", "policy", "env", "profilesVolume",
}  # fmt: skip


@pytest.mark.parametrize("program", [HELM, NEWEST / "helm"], ids=["3", "4"])
def test_it_lints_and_packs(tmp_path: Path, program: Path) -> None:
    for values in ([], ["--values", ROOT / "tests/deploy/values/everything.yaml"]):
        done = helm("lint", CHART, "--strict", *values, program=program)
        assert done.returncode == 0, done.stdout + done.stderr
    packed = helm("package", CHART, "--destination", tmp_path, program=program)
    assert packed.returncode == 0


@pytest.mark.parametrize("values", ["everything", "keeper", "controller"])
def test_helm_4_makes_the_same_objects(values: str) -> None:
    argv = ("template", "joulecut", CHART, "-n", "joulecut", "-f", VALUES / f"{values}.yaml")
    done = helm(*argv, program=NEWEST / "helm")
    assert done.returncode == 0, done.stderr
    made = [found for found in yaml.safe_load_all(done.stdout) if found]
    by_name = {(o["kind"], o["metadata"]["name"]): o for o in chart(values)}
    assert {(o["kind"], o["metadata"]["name"]): o for o in made} == by_name


def test_its_version_is_that_of_the_package() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert version
    assert {about["appVersion"], about["version"]} == {version[1]}


@pytest.mark.parametrize(
    "version",
    [
        versions()[0],
        *(pytest.param(v, marks=pytest.mark.long) for v in versions()[1:-1]),
        versions()[-1],
    ],
)
def test_every_version_takes_every_object(version: str) -> None:
    kinds = set()
    for objects in (
        chart(),
        chart("keeper"),
        chart("everything"),
        chart("controller"),
        chart("everything", "controller"),
    ):
        check(objects, version)
        kinds |= {o["kind"] for o in objects}
    assert kinds == {
        "Certificate", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet",
        "Deployment", "Job", "NetworkPolicy",
        "PersistentVolumeClaim", "PodDisruptionBudget", "PodMonitor", "PrometheusRule", "Role",
        "RoleBinding", "Service", "ServiceAccount",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("keeperr.enabled=true", "keeperr"),
        ("keeper.enabled=yes-please", "keeper.enabled"),
        ("keeper.stateDir=relative", "keeper.stateDir"),
        ("keeper.terminationGracePeriodSeconds=1", "terminationGracePeriodSeconds"),
        ("agent.privileged=true", "privileged"),
        ("agent.config.sample_intervall_s=1", "sample_intervall_s"),
        ("agent.config.sample_interval_s=0", "sample_interval_s"),
        ("agent.config.keeper=child", "keeper"),
        ("agent.config.listen.grpc=0.0.0.0:9431", "listen"),
        ("agent.config.bounds.ttl=1", "ttl"),
        ("agent.uid=0", "agent.uid"),
        ("agent.ports.metrics=70000", "agent.ports.metrics"),
        ("gpu.access=privileged", "gpu.access"),
        ("images.agent.digest=sha256:12", "images.agent.digest"),
        ("tls.certManager.issuerRef.kind=Vault", "kind"),
        ("controller.policy.mode=force", "mode"),
        ("controller.config.agents={}", "agents"),
        ("monitoring.podMonitor.interval=15", "interval"),
        ("networkPolicy.metricsFrom[0].pods=x", "pods"),
    ],
)
def test_a_wrong_value_is_refused_by_name(given: str, named: str) -> None:
    said = refusal(sets=(given,))
    assert "values don't meet the specifications of the schema" in said
    assert named in said


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("controller.enabled=true",), "controller.enabled: needs tls.enabled"),
        (
            ("controller.enabled=true", "tls.enabled=true", "tls.agentSecret=a"),
            "controller.enabled: needs tls.controllerSecret, or tls.certManager.enabled",
        ),
        (("agent.podApi=true",), "agent.podApi: needs agent.podResources"),
        (
            ("agent.jobsDir=/run/joulecut", "agent.podResources=true"),
            "agent.jobsDir: with agent.podResources needs agent.hostPID and agent.podApi",
        ),
        (("agent.grpcHostPort=9431",), "agent.grpcHostPort: needs tls.enabled"),
        (("tls.enabled=true",), "tls.enabled: needs tls.agentSecret, or tls.certManager.enabled"),
        (
            ("tls.enabled=true", "tls.certManager.enabled=true"),
            "tls.certManager.issuerRef.name: is empty",
        ),
    ],
)
def test_a_contradiction_is_refused_in_one_line(sets: tuple[str, ...], said: str) -> None:
    assert said in refusal(sets=sets)


def test_no_mapping_takes_unknown_keys_by_oversight() -> None:
    loose = [
        "/".join(path)
        for path, schema in _schemas(SCHEMA)
        if schema.get("type") == "object"
        and "additionalProperties" not in schema
        and not FREE & set(path)
    ]
    assert not loose


def test_every_default_stands_in_the_values_file() -> None:
    """The file is the chart's reference: no key is known to the schema alone."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    missing = []
    for path, _ in _schemas(SCHEMA):
        if path[:2] == ("agent", "config") or path[:2] == ("controller", "config"):
            continue  # docs/agent.md and docs/controller.md
        if path[-2:-1] in {("agentEndpoint",), ("controllerEndpoint",)}:
            continue  # prometheus-operator's
        if "[]" in path or FREE & set(path) or path[-1:] in {("requests",), ("limits",)}:
            continue
        node: Any = values
        for key in path:
            node = node.get(key, missing) if isinstance(node, dict) else missing
        if node is missing:
            missing.append(".".join(path))
    assert not missing


def test_alerts_are_those_of_the_dashboards() -> None:
    source = ROOT / "grafana" / "alerts" / "joulecut.rules.yaml"
    if not source.exists():
        pytest.skip("no grafana/alerts in this tree")
    packed = CHART / "files" / "joulecut.rules.yaml"
    assert packed.read_text() == source.read_text(), f"cp {source} {packed}"


def test_alerts_come_out_as_they_went_in() -> None:
    """Their braces are Prometheus's, not the chart's."""
    rule = one(chart(sets=("monitoring.prometheusRule.enabled=true",)), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "joulecut.rules.yaml").read_text())


def test_selectors_hold_nothing_that_an_upgrade_changes() -> None:
    for o in (one(chart("everything"), "DaemonSet"), one(chart(), "DaemonSet")):
        assert set(o["spec"]["selector"]["matchLabels"]) == {
            "app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component",
        }  # fmt: skip


def _schemas(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    if path:
        yield path, schema
    for key, inner in schema.get("properties", {}).items():
        yield from _schemas(inner, (*path, key))
    if "items" in schema:
        yield from _schemas(schema["items"], (*path, "[]"))
