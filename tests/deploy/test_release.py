"""`make release`: what a commit gives, whole and twice the same."""

import hashlib
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from manifests import ROOT

VENV = Path(sys.executable).parents[1]


def _released(checkout: Path) -> dict[str, bytes]:
    """The files of a release by name."""
    done = subprocess.run(
        ["tools/release"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    folder = checkout / done.stdout.splitlines()[-1]
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Of the newest commit, with the environment of these tests."""
    folder = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    (folder / ".venv").symlink_to(VENV)
    with (folder / ".git/info/exclude").open("a") as exclude:
        exclude.write(".venv\n")
    return folder


@pytest.mark.nightly
def test_a_release_is_whole_and_a_commit_gives_it_again(checkout: Path, tmp_path: Path) -> None:
    files = _released(checkout)
    sums = dict(line.split()[::-1] for line in files.pop("SHA256SUMS").decode().splitlines())
    assert sums == {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
    wheel, lab = sorted(name for name in files if name.endswith(".whl"))
    version = wheel.split("-")[1]
    assert files.keys() == {
        wheel, f"joulecut-{version}.tar.gz", lab, f"joulecut_lab-{version}.tar.gz",
        f"joulecut-chart-{version}.tgz", "agent-context.tar.gz", "controller-context.tar.gz",
        "sbom-agent.cdx.json", "sbom-controller.cdx.json", "sbom-lab.cdx.json",
    }  # fmt: skip
    chart = tmp_path / "chart.tgz"
    chart.write_bytes(files[f"joulecut-chart-{version}.tgz"])
    helm = [VENV / "bin" / "helm", "template", "joulecut", chart]
    assert "DaemonSet" in subprocess.check_output(helm, text=True)
    for role in ("agent", "controller"):
        context = tmp_path / role
        (tmp_path / f"{role}.tar.gz").write_bytes(files[f"{role}-context.tar.gz"])
        with tarfile.open(tmp_path / f"{role}.tar.gz") as packed:
            packed.extractall(context, filter="data")
        (root,) = context.iterdir()
        text = (root / f"deploy/docker/{role}.Dockerfile").read_text()
        for needed in re.findall(r"^COPY (?!--)(\S+) ", text, re.MULTILINE):
            assert (root / needed).exists(), needed
    again = _released(checkout)
    assert {n for n in files if files[n] != again[n]} <= {n for n in files if "sbom" in n}


def test_a_checkout_with_changes_gives_none(checkout: Path) -> None:
    (checkout / "README.md").write_text("mine")
    done = subprocess.run(
        ["tools/release"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "a checkout without changes:\n M README.md" in done.stderr
