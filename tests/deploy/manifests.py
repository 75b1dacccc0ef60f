"""What the chart and the plain manifests come to, as Kubernetes would get them.

from manifests import chart, kustomized, pods
"""

import copy
import functools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "joulecut"
VALUES = Path(__file__).with_name("values")
CRDS = {
    json_file.stem: json.loads(json_file.read_text())
    for json_file in Path(__file__).with_name("crds").glob("*.json")
}
HELM = Path(sys.executable).with_name("helm")
NEWEST = Path(sys.prefix) / "kubernetes"  # helm 4 and kubectl of Kubernetes 1.37 (tools/setup)
Object = dict[str, Any]


def helm(*argv: str | Path, program: Path = HELM) -> subprocess.CompletedProcess[str]:
    if not program.exists():
        pytest.skip(f"no {program}: make setup-dev")
    argv = (str(program), *map(str, argv))
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def chart(*values: str, sets: tuple[str, ...] = (), folder: Path = CHART) -> list[Object]:
    """Every object of the chart with the named values files, hooks too."""
    made = _kept if folder == CHART else _made
    return copy.deepcopy(made(values, sets, folder))


def _made(values: tuple[str, ...], sets: tuple[str, ...], folder: Path) -> list[Object]:
    done = _template(values, sets, folder)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.load_all(done.stdout, yaml.CSafeLoader) if found]


_kept = functools.cache(_made)  # the shipped chart: rendered once for each choice of values


def refusal(*values: str, sets: tuple[str, ...] = (), folder: Path = CHART) -> str:
    """What the chart says against these values; fails where it takes them."""
    done = _template(values, sets, folder)
    assert done.returncode != 0, f"taken: {values} {sets}"
    return done.stderr


def _template(
    values: tuple[str, ...], sets: tuple[str, ...], folder: Path
) -> subprocess.CompletedProcess[str]:
    files = [part for name in values for part in ("--values", VALUES / f"{name}.yaml")]
    given = [part for one in sets for part in ("--set", one)]
    return helm("template", "joulecut", folder, "--namespace", "joulecut", *files, *given)


def kustomized(overlay: str) -> list[Object]:
    return copy.deepcopy(_kustomized(overlay))


@functools.cache
def _kustomized(overlay: str) -> list[Object]:
    kubectl = NEWEST / "kubectl" if NEWEST.exists() else shutil.which("kubectl")
    if not kubectl:
        pytest.skip("no kubectl: kustomize overlays are not built")
    done = subprocess.run(
        [kubectl, "kustomize", str(ROOT / "deploy" / "kubernetes" / "overlays" / overlay)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.load_all(done.stdout, yaml.CSafeLoader) if found]


def one(objects: list[Object], kind: str, name: str = "") -> Object:
    """The only object of a kind (whose name ends so)."""
    found = [o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(name)]
    assert len(found) == 1, (kind, name, [o["metadata"]["name"] for o in found])
    return found[0]


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Every pod specification, with the name of what makes the pods."""
    for o in objects:
        if o["kind"] in {"DaemonSet", "Deployment", "Job"}:
            yield o["metadata"]["name"], o["spec"]["template"]["spec"]


def containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def check(objects: list[Object], version: str) -> None:
    """Against the schemas of one Kubernetes version. Raises on anything they do not know."""
    for o in objects:
        kind = o["kind"].lower()
        if kind in CRDS:
            jsonschema.validate(o["spec"], CRDS[kind])
            assert set(o) == {"apiVersion", "kind", "metadata", "spec"}
        else:
            kubernetes_validate.validate(o, version, strict=True)


def versions() -> list[str]:
    """Every Kubernetes minor version from 1.28 that there are schemas of."""
    folder = Path(kubernetes_validate.__file__).with_name("kubernetes-json-schema")
    found = {m[1] for p in folder.iterdir() if (m := re.match(r"v(1\.\d+)\.0-local$", p.name))}
    return sorted((v for v in found if int(v[2:]) >= 28), key=lambda v: int(v[2:]))
