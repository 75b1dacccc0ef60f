"""What each container may do: exactly what the documentation says, whatever the values."""

import re
from typing import Any

import pytest
import yaml
from manifests import Object, chart, check, containers, kustomized, one, pods, refusal, versions

WRITERS = {"keeper", "restore"}  # the only ones with a capability
ROOTS = WRITERS | {"prepare"}
SETS: dict[str, list[Object]] = {}


def _installs() -> dict[str, list[Object]]:
    if not SETS:
        SETS.update(
            {
                "defaults": chart(),
                "keeper": chart("keeper"),
                "everything": chart("everything"),
                "controller": chart("controller"),
                "all together": chart("everything", "controller"),
            }
        )
    return SETS


INSTALLS = ("defaults", "keeper", "everything", "controller", "all together")


@pytest.fixture(params=[*INSTALLS, "overlay metrics-only", "overlay control"])
def objects(request: pytest.FixtureRequest) -> list[Object]:
    kind, _, overlay = str(request.param).partition(" ")
    return kustomized(overlay) if kind == "overlay" else _installs()[request.param]


def test_nobody_is_privileged_or_shares_the_node_s_namespaces(objects: list[Object]) -> None:
    for name, pod in pods(objects):
        for key in ("hostNetwork", "hostIPC", "shareProcessNamespace"):
            assert not pod.get(key), (name, key)
        for c in containers(pod):
            assert not c["securityContext"].get("privileged"), c["name"]
            assert "procMount" not in c["securityContext"]


def test_capabilities_are_exactly_these(objects: list[Object]) -> None:
    for _, pod in pods(objects):
        for c in containers(pod):
            held = c["securityContext"]["capabilities"]
            assert held["drop"] == ["ALL"]
            assert held.get("add", []) == (["SYS_ADMIN"] if c["name"] in WRITERS else []), c["name"]


def test_users_and_file_systems(objects: list[Object]) -> None:
    resources = any(
        v["name"] == "pod-resources" for _, pod in pods(objects) for v in pod.get("volumes", [])
    )
    for _, pod in pods(objects):
        whole = pod["securityContext"]
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
        for c in containers(pod):
            own = {**whole, **c["securityContext"]}
            root = c["name"] in ROOTS or (resources and c["name"] == "agent")
            assert own["readOnlyRootFilesystem"] is True
            assert own["runAsUser"] == (0 if root else 65532), c["name"]
            assert root or own["runAsNonRoot"] is True
            if c["name"] not in WRITERS:
                assert own["allowPrivilegeEscalation"] is False, c["name"]


def test_directories_of_the_node_are_these() -> None:
    paths = {
        name: {
            v["hostPath"]["path"] for _, pod in pods(o) for v in pod["volumes"] if "hostPath" in v
        }
        for name, o in _installs().items()
    }
    own = {"/var/lib/joulecut", "/var/lib/joulecut-agent", "/run/joulecut-keeper"}
    assert paths["defaults"] == set()
    assert paths["keeper"] == own | {"/run/joulecut"}
    assert paths["controller"] == own
    assert paths["everything"] == {
        "/srv/joulecut", "/srv/joulecut-agent", "/run/joulecut-keeper", "/run/joulecut",
        "/var/lib/kubelet/pod-resources",
    }  # fmt: skip


def test_the_agent_can_change_nothing_that_the_keeper_trusts(objects: list[Object]) -> None:
    for _, pod in pods(objects):
        for c in pod["containers"]:
            if c["name"] != "agent":
                continue
            for mount in c["volumeMounts"]:
                assert mount["name"] != "journal"
                if mount["name"] in {"state", "config", "tls", "web", "pod-resources", "token"}:
                    assert mount["readOnly"] is True


def test_who_speaks_to_the_api_server_and_for_what(objects: list[Object]) -> None:
    """The withdrawal; and the agent where it was asked to, but not the keeper beside it."""
    for name, pod in pods(objects):
        assert pod["automountServiceAccountToken"] is name.endswith("-withdraw")
    asks = any(v["name"] == "token" for _, pod in pods(objects) for v in pod["volumes"])
    cluster = [o["rules"] for o in objects if o["kind"] == "ClusterRole"]
    assert cluster == ([[{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]] * asks)
    for role in (o for o in objects if o["kind"] == "Role"):
        assert role["rules"] == [
            {
                "apiGroups": ["apps"],
                "resources": ["daemonsets"],
                "resourceNames": ["joulecut-agent"],
                "verbs": ["get", "patch"],
            },
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        ]


def test_the_token_is_the_agent_s_alone(objects: list[Object]) -> None:
    for _, pod in pods(objects):
        for c in containers(pod):
            holds = any(m["name"] == "token" for m in c["volumeMounts"])
            assert not holds or c["name"] == "agent"


def test_no_gpu_is_taken_from_a_job(objects: list[Object]) -> None:
    for _, pod in pods(objects):
        for c in containers(pod):
            assert set(c["resources"]["limits"]) == {"memory"}
            assert set(c["resources"]["requests"]) == {"cpu", "memory"}


def test_probes_never_touch_a_device(objects: list[Object]) -> None:
    """Answered from memory, or by a script that reads /proc alone: no other program is started,
    as one of ours could ask the driver.
    """
    probed = set()
    for _, pod in pods(objects):
        for c in containers(pod):
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe := c.get(kind):
                    probed.add(c["name"])
                    assert "grpc" not in probe
                    if "exec" in probe:
                        assert (c["name"], kind) == ("keeper", "livenessProbe")
                        assert probe["exec"]["command"][0] == "keeper-alive"
                        continue
                    wanted = "/readyz" if kind == "readinessProbe" else "/healthz"
                    path = probe.get("httpGet", {"path": wanted})["path"]
                    assert path == wanted or c["name"] == "controller"
    assert probed >= {"agent"}


@pytest.mark.parametrize(
    ("values", "scheme"),
    [
        ((), ("HTTP", "HTTPS")),
        (("agent.webConfigSecret=web", "controller.webConfigSecret=web"), ("HTTPS", "HTTPS")),
        (("agent.webConfigSecret=web", "agent.webConfigProbe=HTTP"), ("HTTP", "HTTPS")),
    ],
)
def test_probes_ask_for_health_over_tls_too(
    values: tuple[str, ...], scheme: tuple[str, str]
) -> None:
    """With TCP, where a client certificate is required, they see the port alone."""
    objects = chart("controller", sets=values)
    for kind, name, wanted in zip(
        ("DaemonSet", "Deployment"), ("agent", "controller"), scheme, strict=True
    ):
        (probed,) = (
            c
            for c in one(objects, kind)["spec"]["template"]["spec"]["containers"]
            if c["name"] == name
        )
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert probed[probe]["httpGet"].get("scheme", "HTTP") == wanted, (name, probe)
    alone = ("agent.webConfigSecret=web", "agent.webConfigProbe=TCP")
    pod = one(chart("controller", sets=alone), "DaemonSet")["spec"]["template"]["spec"]
    (agent,) = (c for c in pod["containers"] if c["name"] == "agent")
    assert agent["livenessProbe"]["tcpSocket"] == {"port": "metrics"}
    assert "webConfigProbe" in refusal(sets=("controller.webConfigProbe=HTTP",))


def test_a_driver_upgrade_may_end_the_pods(objects: list[Object]) -> None:
    pod = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.deploy.client": "true"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    update = one(objects, "DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"]
    assert update == {"maxUnavailable": "5%"}
    if any(c["name"] == "keeper" for c in pod["containers"]):
        assert pod["terminationGracePeriodSeconds"] >= 30


def test_what_is_left_over_is_restored_before_anything_starts(objects: list[Object]) -> None:
    for _, pod in pods(objects):
        names = [c["name"] for c in pod["containers"]]
        if "keeper" in names:
            init = [c["name"] for c in pod["initContainers"]]
            assert init == ["prepare", "restore"]
            keeper = pod["containers"][names.index("keeper")]
            assert "restore" in keeper["lifecycle"]["preStop"]["exec"]["command"]


def test_networks_are_closed_but_for_what_is_asked(objects: list[Object]) -> None:
    policy = one(objects, "NetworkPolicy", "-agent")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    asks = any(o["kind"] == "ClusterRole" for o in objects)
    assert [p["port"] for rule in policy["egress"] for p in rule["ports"]] == [443, 6443][
        : 2 * asks
    ]
    ports = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    agent = one(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]
    assert ports == {port["name"] for port in agent["ports"]}
    assert all(rule["from"] for rule in policy["ingress"])


def test_images_name_no_host() -> None:
    """Where a cluster pulls from is its operator's word."""
    for objects in _installs().values():
        for _, pod in pods(objects):
            for c in containers(pod):
                first = c["image"].split("/")[0] if "/" in c["image"] else ""
                assert not re.search(r"[.:]", first), c["image"]


def _shape(objects: list[Object]) -> dict[str, Any]:
    """What counts of a plain install, without what only one of the two tools adds."""
    daemonset = one(objects, "DaemonSet")["spec"]
    pod = daemonset["template"]["spec"]
    for volume in pod["volumes"]:
        if "configMap" in volume:
            volume["configMap"]["name"] = "joulecut-agent"
    files = next(
        o["data"] for o in objects if o["kind"] == "ConfigMap" and "agent.yaml" in o["data"]
    )
    pod["volumes"] = sorted(pod["volumes"], key=lambda v: v["name"])
    for c in containers(pod):
        c["volumeMounts"] = sorted(c["volumeMounts"], key=lambda m: m["name"])
    pod["containers"] = sorted(pod["containers"], key=lambda c: c["name"])
    return {
        "pod": pod,
        "update": daemonset["updateStrategy"],
        "selector": daemonset["selector"],
        "network": one(objects, "NetworkPolicy")["spec"],
        "files": {name: yaml.safe_load(text) for name, text in files.items()},
    }


@pytest.mark.parametrize(
    ("overlay", "sets"), [("metrics-only", ()), ("control", ("keeper.enabled=true",))]
)
def test_overlays_and_chart_are_the_same_install(overlay: str, sets: tuple[str, ...]) -> None:
    assert _shape(kustomized(overlay)) == _shape(chart(sets=sets))


def test_overlays_validate_everywhere() -> None:
    for overlay in ("metrics-only", "control"):
        for version in (versions()[0], versions()[-1]):
            check(kustomized(overlay), version)
