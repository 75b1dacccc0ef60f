"""The chart with a leader and a standby on one PostgreSQL database."""

from pathlib import Path

import pytest
import yaml
from manifests import Object, chart, check, one, refusal, versions

from joulecut_controller import config as controller_config


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return chart("controller", "two-controllers")


@pytest.mark.parametrize("version", [versions()[0], versions()[-1]])
def test_every_version_takes_them(objects: list[Object], version: str) -> None:
    check(objects, version)


def test_two_pods_and_no_volume_that_only_one_could_mount(objects: list[Object]) -> None:
    deployment = one(objects, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["type"] == "RollingUpdate"
    assert not [o for o in objects if o["kind"] == "PersistentVolumeClaim"]
    pod = deployment["template"]["spec"]
    assert not [v for v in pod["volumes"] if "persistentVolumeClaim" in v]
    (term,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    wanted = term["podAffinityTerm"]["labelSelector"]["matchLabels"]
    labels = deployment["template"]["metadata"]["labels"]
    assert wanted.items() <= labels.items()
    assert wanted["app.kubernetes.io/component"] == "controller"


def test_the_database_is_reached_and_its_secret_is_in_no_map(
    objects: list[Object], tmp_path: Path
) -> None:
    data = one(objects, "ConfigMap", "-controller")["data"]
    text = yaml.safe_load(data["controller.yaml"])
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    mounts = {m["name"]: m for m in pod["containers"][0]["volumeMounts"]}
    assert mounts["store"]["readOnly"]
    folder = mounts["store"]["mountPath"]
    assert text["store"] == {"url_file": f"{folder}/url", "password_file": f"{folder}/password"}
    assert {"name": "store", "secret": {"secretName": "joulecut-store"}} in pod["volumes"]

    egress = one(objects, "NetworkPolicy", "-controller")["spec"]["egress"]
    assert {"ports": [{"port": 6432, "protocol": "TCP"}]} in egress

    # The controller reads what the pod would find there.
    (tmp_path / "url").write_text(
        "postgresql://joulecut@db.example:6432/joulecut?sslrootcert=ca.crt\n"
    )
    for name, content in data.items():
        (tmp_path / name).write_text(content.replace(folder, str(tmp_path)))
    settings = controller_config.read(tmp_path / "controller.yaml")
    assert settings.store.startswith("postgresql://joulecut@db.example:6432/")
    assert settings.store_password_file == tmp_path / "password"
    assert settings.timing.hold_s == 9


def test_one_controller_stays_on_its_volume() -> None:
    objects = chart("controller")
    deployment = one(objects, "Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert one(objects, "PersistentVolumeClaim")
    assert "affinity" not in deployment["template"]["spec"]


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("controller.replicas=2",), "controller.replicas: more than 1 needs controller.store"),
        (("controller.config.leader.hold_s=9",), "controller.config.leader: needs"),
        (("controller.replicas=0",), "replicas"),
        (("controller.store.secret=UPPER",), "secret"),
        (("controller.store.url=postgresql://x",), "url"),
        (("controller.config.leader.hold_s=1",), "hold_s"),
    ],
)
def test_what_cannot_be_is_refused(sets: tuple[str, ...], said: str) -> None:
    assert said in refusal("controller", sets=sets)
