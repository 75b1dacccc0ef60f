"""From a script to lower clocks, typed as docs/integrations.md prints it."""

import os
import re
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_commands import ROOT, blocks
from driven_agent import agent_on, fake_driver
from real_jobs import OWN_CLOCK
from running_agent import PATIENCE_S, RunningAgent, eventually
from running_cluster import BIN, Cluster

from fixture import FakeNvml

ITERATION_S = float(os.environ.get("ITERATION_S", "0.05"))  # the page's figures are at 0.5 s
LIMIT_S = 400.0
SCRIPT = f"""
    import own_clock, random, time, torch
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    due_s = time.monotonic()
    while True:
        model(torch.randn(8, 64)).square().mean().backward()
        due_s += {ITERATION_S} * random.gauss(1.0, 0.01)
        time.sleep(max(0.0, due_s - time.monotonic()))
        optimizer.step()
"""
POLICY = "apiVersion: joulecut/v1\nkind: Policy\n"
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def _section() -> str:
    page = (ROOT / "docs" / "integrations.md").read_text()
    return page.partition("## From a script to lower clocks\n")[2].partition("\n## ")[0]


@pytest.fixture
def agent() -> Iterator[tuple[FakeNvml, RunningAgent]]:
    with fake_driver(2, load={0: 0.9, 1: 0.9}) as driver, agent_on(driver) as made:
        yield driver, made.start()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.down()


@pytest.mark.long
def test_the_page_leads_to_lower_clocks_and_names_what_is_said_on_the_way(
    agent: tuple[FakeNvml, RunningAgent], cluster: Cluster, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    driver, node = agent
    found = [(language, content) for language, _, content in blocks(_section())]
    (begin, ask), (entry,) = (
        [content for language, content in found if language == wanted] for wanted in ("sh", "yaml")
    )
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{POLICY}jobs: []\n")
    (tmp_path / "own_clock.py").write_text(OWN_CLOCK)
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    cluster.agents.append(node.address)
    _, url, _ = cluster.controller()
    env = {
        **os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "CLOCKS": str(tmp_path),
        "JOULECUT_SOCKET": str(node.home / "jobs.sock"), "GPUS": ",".join(driver.uuids),
        "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1",
    }  # fmt: skip

    def type_in(typed: str) -> str:
        here = re.sub(r"(doctor|explain) (\S+)", rf"\1 \2 --controller {url}", typed)
        return subprocess.run(
            ["bash", "-c", here], cwd=tmp_path, env=env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False,
        ).stdout  # fmt: skip

    start, _, doctor = begin.partition("&\n")
    with (tmp_path / "train.log").open("w") as log:
        job = subprocess.Popen(
            ["bash", "-c", f"exec {start}"], cwd=tmp_path, env=env, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        advice = type_in(doctor)
        assert f"add to {policy}: - {{name: gpt3-175b, slo:" in advice
        policy.write_text(f"{POLICY}{entry}\n")
        waits = set[str]()

        def lower() -> bool:
            missing = re.search(
                r"^  !!  (?:reports|baseline|evidence) +(.*)$", type_in(doctor), re.MULTILINE
            )
            waits.update([missing[1]] if missing else ())
            return all(driver.locks())

        eventually("lower clocks", lower, LIMIT_S)
        said = type_in(ask)
        assert "fine (1 job" in said
        assert re.search(r"ok  enforced +plan \d+ is in force", said), said
        assert re.search(r"Baseline +.*measured at default clocks, \d+ iterations", said), said
    finally:
        os.killpg(job.pid, signal.SIGTERM)
        job.wait(PATIENCE_S)
    eventually("default clocks without the job", lambda: not any(driver.locks()))
    rows = [NUMBER.sub("N", row) for row in _section().splitlines() if row.startswith("| ")]
    for wait in waits:
        assert any(NUMBER.sub("N", wait) in row for row in rows), wait
    assert len({NUMBER.sub("N", wait) for wait in waits}) >= 3, waits
