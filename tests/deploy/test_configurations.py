"""Every configuration that a manifest holds, read by the program that will read it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from certificates import Authority
from manifests import CHART, Object, chart, kustomized, one

from joulecut_agent import config as agent_config
from joulecut_agent.settings import Settings
from joulecut_controller import config as controller_config
from joulecut_controller.sources.agents import AgentsByName
from joulecut_wire.web_config import WebConfig

SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def on_the_node(objects: list[Object], folder: Path) -> dict[str, Settings]:
    """The files as the agent's container sees them, with the name that its variable has."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in one(objects, "ConfigMap", _config_name(objects))["data"].items():
        (folder / name).write_text(text)
    pod = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    (variable,) = (v for v in pod["containers"][0]["env"] if v["name"] == agent_config.NODE)
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    return {path.name: agent_config.load(path) for path in folder.glob("*.yaml")}


def _config_name(objects: list[Object]) -> str:
    pod = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    return next(str(v["configMap"]["name"]) for v in pod["volumes"] if v["name"] == "config")


@pytest.mark.parametrize("values", [(), ("keeper",), ("everything",)])
def test_the_agent_reads_what_the_chart_writes(
    values: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")  # as in every pod
    monkeypatch.setenv(agent_config.NODE, "10")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    objects = chart(*values)
    settings = on_the_node(objects, tmp_path)
    assert "warning" not in capsys.readouterr().err
    assert set(settings) == ({"agent.yaml", "keeper.yaml"} if values else {"agent.yaml"})
    agent = settings["agent.yaml"]
    assert agent.node == "10"  # a node's name that YAML alone would take for a number
    assert agent.device == "nvml"
    assert agent.metrics[1] == 9430
    _paths_are_mounted(objects, settings)


@pytest.mark.parametrize(("overlay", "keeper"), [("metrics-only", False), ("control", True)])
def test_the_agent_reads_what_the_overlays_write(
    overlay: str, keeper: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = kustomized(overlay)
    settings = on_the_node(objects, tmp_path)
    assert "warning" not in capsys.readouterr().err
    assert (settings["agent.yaml"].keeper_mode != "none") == keeper == ("keeper.yaml" in settings)
    _paths_are_mounted(objects, settings)


def _paths_are_mounted(objects: list[Object], settings: dict[str, Settings]) -> None:
    """Roots are read-only: what is written lies on a volume. And both meet at one socket."""
    pod = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    mounts = {
        c["name"]: {m["mountPath"] for m in c["volumeMounts"] if not m.get("readOnly")}
        for c in pod["containers"]
    }
    agent = settings["agent.yaml"]
    assert agent.keeper.state_dir in mounts["agent"]
    if agent.attribution.pod_resources:
        seen = {m["mountPath"] for c in pod["containers"] for m in c["volumeMounts"]}
        assert str(agent.attribution.pod_resources.parent) in seen
        assert agent.attribution.api
        assert str(agent.attribution.api.credentials) in seen
    assert str(Path(agent.socket).parent) in mounts["agent"]
    if "keeper.yaml" not in settings:
        assert agent.keeper_mode == "none"
        assert "keeper" not in mounts
        return
    keeper = settings["keeper.yaml"].keeper
    assert keeper.state_dir in mounts["keeper"]
    assert agent.keeper_mode == f"{keeper.state_dir}/keeper.sock"
    assert keeper.state_dir not in mounts["agent"]  # it sees the socket, and can change nothing


def test_the_site_s_words_reach_both_processes(tmp_path: Path) -> None:
    settings = on_the_node(chart("keeper"), tmp_path)
    for one_of_both in settings.values():
        assert one_of_both.keeper.bounds.ttl_s_max == 45
        assert one_of_both.keeper.bounds.clock_min_mhz == 600
        assert one_of_both.keeper.site_default == (0, 1980)
        assert one_of_both.keeper.power_safe == "keep"
        assert one_of_both.keeper.restore_jitter_s == 5
    assert settings["agent.yaml"].audit.bytes_max == 1_048_576


def test_without_certificates_commands_come_from_the_pod_alone(tmp_path: Path) -> None:
    assert on_the_node(chart("keeper"), tmp_path)["agent.yaml"].grpc[0] == "127.0.0.1"


def test_with_certificates_only_the_controller_may_command(tmp_path: Path) -> None:
    sets = ("tls.enabled=true", "tls.agentSecret=a")
    objects = chart(sets=(*sets, "monitoring.podMonitor.enabled=true"))
    agent = on_the_node(objects, tmp_path)["agent.yaml"]
    assert agent.grpc == ("0.0.0.0", 9431)
    assert agent.tls is not None
    pod = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    mounts = next(c for c in pod["containers"] if c["name"] == "agent")["volumeMounts"]
    folder = next(m["mountPath"] for m in mounts if m["name"] == "tls")
    assert {path.parent for path in agent.tls.paths} == {Path(folder)}
    name = "controller.joulecut.joulecut"
    assert agent.rules.roles([name]) == ("observe", "clear", "release", "apply")
    assert agent.rules.roles(["somebody.else"]) == ()


def test_certificates_carry_the_names_that_roles_are_given_to() -> None:
    objects = chart(
        sets=(
            "tls.enabled=true",
            "tls.certManager.enabled=true",
            "tls.certManager.issuerRef.name=ca",
        )
    )
    config = yaml.safe_load(one(objects, "ConfigMap", "-agent")["data"]["agent.yaml"])
    names = one(objects, "Certificate", "-controller")["spec"]["dnsNames"]
    assert config["access"]["apply"] == names[:1]
    assert names[0].startswith("controller.")
    secret = one(objects, "Certificate", "-agent")["spec"]["secretName"]
    pod = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert {"name": "tls", "secret": {"secretName": secret}} in pod["volumes"]


def _leaves(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[Any]:
    if schema.get("type") == "object":
        for key, inner in schema["properties"].items():
            yield from _leaves(inner, (*path, key))
    else:
        for choice in schema.get("anyOf", [schema]):
            yield from (
                (path, value)
                for value in (
                    *choice.get("enum", ()),
                    *(choice[k] for k in ("minimum", "maximum") if k in choice),
                )
            )


@pytest.mark.parametrize(
    ("path", "value"),
    list(_leaves(SCHEMA["properties"]["agent"]["properties"]["config"])),
    ids=lambda given: ".".join(given) if isinstance(given, tuple) else str(given),
)
def test_what_the_schema_allows_the_agent_takes(
    path: tuple[str, ...], value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At both ends of each range: a number that only the chart likes would fail on every node."""
    data: dict[str, Any] = {"device": "nvml"}
    node = data
    for key in path[:-1]:
        node = node.setdefault(key, {})
    node[path[-1]] = value
    if path[0] == "site_default":
        node["clock_max_mhz"] = max(value, 1) if path[-1] == "clock_max_mhz" else 10_000
    file = tmp_path / "agent.yaml"
    file.write_text(yaml.safe_dump(data))
    agent_config.load(file)
    assert "warning" not in capsys.readouterr().err


def _controller_files(objects: list[Object], folder: Path) -> Path:
    for name, text in one(objects, "ConfigMap", "-controller")["data"].items():
        (folder / name).write_text(text)
    return folder / "controller.yaml"


def test_the_controller_reads_what_the_chart_writes(tmp_path: Path) -> None:
    objects = chart("controller")
    settings = controller_config.read(_controller_files(objects, tmp_path))
    assert (settings.interval_s, settings.ttl_s) == (10, 30)
    assert settings.agents.addresses() == ("node1:9431", "node2:9431")
    assert settings.http == ("0.0.0.0", 9440)
    assert settings.tls is not None
    container = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    mounts = {m["mountPath"]: m.get("readOnly", False) for m in container["volumeMounts"]}
    assert not mounts[str(Path(settings.store.removeprefix("sqlite:///")).parent)]
    assert {str(path.parent) for path in settings.tls.paths} <= set(mounts)


def test_without_a_list_the_controller_finds_the_agents(tmp_path: Path) -> None:
    """By the name of their service, without a token for the API server."""
    objects = chart("controller", sets=("controller.agents=null",))
    source = controller_config.read(_controller_files(objects, tmp_path)).agents
    assert isinstance(source, AgentsByName)
    name, namespace, _ = source.name.split(".")
    service = one(objects, "Service", name)
    assert service["metadata"].get("namespace", namespace) == namespace
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    pod = one(objects, "DaemonSet")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    containers = {each["name"]: each for each in pod["spec"]["containers"]}
    assert source.port in {port["containerPort"] for port in containers["agent"]["ports"]}
    assert not [o for o in objects if o["kind"] == "Role" and "controller" in o["metadata"]["name"]]
    assert "serviceAccountToken" not in str(one(objects, "Deployment"))


def test_profiles_come_from_a_volume(tmp_path: Path) -> None:
    claim = "controller.profilesVolume.persistentVolumeClaim.claimName=profiles"
    objects = chart("controller", sets=(claim,))
    settings = controller_config.read(_controller_files(objects, tmp_path))
    spec = one(objects, "Deployment")["spec"]["template"]["spec"]
    mounts = {m["mountPath"]: m["name"] for m in spec["containers"][0]["volumeMounts"]}
    (volume,) = (v for v in spec["volumes"] if v["name"] == mounts[str(settings.profiles)])
    assert volume["persistentVolumeClaim"] == {"claimName": "profiles"}


def test_a_page_with_passwords_is_read_from_its_secret(tmp_path: Path) -> None:
    objects = chart("controller", sets=("controller.webConfigSecret=page",))
    settings = controller_config.read(_controller_files(objects, tmp_path))
    container = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert str(settings.web_config.parent) in {m["mountPath"] for m in container["volumeMounts"]}
    assert "web.yml" not in one(objects, "ConfigMap", "-controller")["data"]


def test_the_controller_expects_the_name_in_the_agents_certificate(tmp_path: Path) -> None:
    objects = chart("everything", "controller")
    settings = controller_config.read(_controller_files(objects, tmp_path))
    names = one(objects, "Certificate", "-agent")["spec"]["dnsNames"]
    assert [settings.server_name] == names


def test_the_page_s_own_protection_loads(tmp_path: Path) -> None:
    """With certificates where the chart says, made for the names that the chart asks for."""
    objects = chart("controller")
    _controller_files(objects, tmp_path)
    made = Authority(tmp_path, "ca").leaf("controller", "DNS:controller.joulecut.joulecut")
    text = (tmp_path / "web.yml").read_text()
    for name, path in (("tls.crt", made.cert), ("tls.key", made.key)):
        assert f"/etc/joulecut-tls/{name}" in text
        text = text.replace(f"/etc/joulecut-tls/{name}", str(path))
    (tmp_path / "web.yml").write_text(text)
    assert WebConfig(tmp_path / "web.yml", print).context() is not None


def test_the_policy_is_one_and_recommends(tmp_path: Path) -> None:
    """The default without any job, and one with a profile beside it."""
    agents = "controller.agents={node1:9431}"
    keys = ("controller.enabled=true", "tls.enabled=true", "tls.agentSecret=a", agents)
    for n, objects in enumerate(
        (chart("controller"), chart(sets=(*keys, "tls.controllerSecret=b")))
    ):
        folder = tmp_path / str(n)
        folder.mkdir()
        _controller_files(objects, folder)
        done = subprocess.run(
            [str(Path(sys.executable).with_name("joulecut")), "policy", "check",
             str(folder / "policy.yaml")],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "recommend" in done.stdout


def test_the_chart_brings_the_dashboards_and_absolute_runbooks() -> None:
    base = "monitoring.prometheusRule.runbookBaseUrl=https://docs.example.com/x/"
    sets = ("monitoring.dashboards.enabled=true", base)
    objects = chart("everything", sets=sets)
    source = CHART.parents[2] / "grafana" / "dashboards"
    shipped = {}
    for found in objects:
        if found["metadata"].get("labels", {}).get("grafana_dashboard") == "1":
            shipped |= found["data"]
    assert {name: json.loads(text) for name, text in shipped.items()} == {
        path.name: json.loads(path.read_text()) for path in source.glob("*.json")
    }
    urls = [
        rule["annotations"]["runbook_url"]
        for group in one(objects, "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert urls
    assert all(url.startswith("https://docs.example.com/x/docs/runbook.md#") for url in urls)


def test_a_prometheus_with_its_secret_reaches_the_controller(tmp_path: Path) -> None:
    config, token = "controller.config", tmp_path / "token"
    token.write_text("secret")
    sets = (
        f"{config}.prometheus.url=https://prometheus.monitoring.svc:9091",
        f"{config}.prometheus.bearer_token_file={token}",
        f"{config}.links.grafana=https://grafana.example/d/joulecut-job?var-job={{job}}",
        "controller.prometheusSecret=reader",
        "monitoring.podMonitor.cluster=east",
        "logFormat=json",
    )
    objects = chart("controller", sets=sets)
    found = controller_config.read(_controller_files(objects, tmp_path)).prometheus
    assert found is not None
    assert "prometheus.monitoring.svc:9091" in str(found)
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
    volume = next(v for v in pod["volumes"] if v["name"] == mounts["/etc/joulecut-prometheus"])
    assert volume["secret"] == {"secretName": "reader"}
    assert pod["containers"][0]["args"][-2:] == ["--log-format", "json"]
    [policy] = [
        each["spec"]
        for each in objects
        if each["kind"] == "NetworkPolicy"
        and "Egress" in each["spec"]["policyTypes"]
        and each["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        == "controller"
    ]
    assert {"port": 9091, "protocol": "TCP"} in [
        p for rule in policy["egress"] for p in rule["ports"]
    ]
    monitors = [each for each in objects if each["kind"] == "PodMonitor"]
    assert len(monitors) == 2
    for monitor in monitors:
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        assert {"targetLabel": "cluster", "replacement": "east"} in endpoint["relabelings"]
