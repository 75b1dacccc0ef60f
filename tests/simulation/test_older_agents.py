"""Agents and keepers of the version before work beside this controller."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_cluster import Cluster, get, job_of, until

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "457f3c28"  # until there is a release
NODES_RUN = ("agent", "client", "engine", "protos", "sim")


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Two nodes with agents, keepers and a simulated job of that version."""
    with tempfile.TemporaryDirectory(prefix="jc") as folder:
        packed = subprocess.run(
            ["git", "-C", str(ROOT), "archive", BEFORE, *NODES_RUN],
            check=False,
            capture_output=True,
        )
        if packed.returncode:
            pytest.skip(f"this checkout has no commit {BEFORE}")
        tree = Path(folder) / "tree"
        tree.mkdir()
        subprocess.run(["tar", "-x", "-C", str(tree)], input=packed.stdout, check=True)
        made = Cluster(Path(folder))
        try:
            with monkeypatch.context() as before:
                before.setenv("PYTHONPATH", ":".join(str(tree / name) for name in NODES_RUN))
                made.up()
            yield made
        finally:
            made.down()


@pytest.mark.long
@pytest.mark.smoke
def test_this_controller_enforces_and_restores_on_agents_of_the_version_before(
    older: Cluster,
) -> None:
    older.policy("recommend")
    process, url, _ = older.controller()
    until(lambda: (job_of(url).get("decision") or {}).get("actions"), "no plan was recommended")
    assert not any(older.locks_mhz())

    older.policy("enforce")
    until(lambda: any(older.locks_mhz()), "nothing was enforced")
    assert all(mhz == 0 or mhz >= 900 for mhz in older.locks_mhz())
    assert 'joulecut_controller_mode{mode="enforce"' in get(f"{url}/metrics")

    process.child.kill()
    until(lambda: not any(older.locks_mhz()), "the leases did not end")

    second, _, _ = older.controller()
    until(lambda: any(older.locks_mhz()), "the second controller did not enforce")
    second.child.terminate()
    assert second.child.wait(120.0) == 0
    assert not any(older.locks_mhz()), "it restores before it goes"
