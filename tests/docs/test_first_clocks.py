"""From a script to lower clocks, and from a run to its profile, typed as the pages print them."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import commands
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
    due_s, chance = time.monotonic(), random.Random(1)
    while True:
        model(torch.randn(8, 64)).square().mean().backward()
        due_s += {ITERATION_S} * chance.gauss(1.0, 0.01)
        time.sleep(max(0.0, due_s - time.monotonic()))
        optimizer.step()
"""
# Operations also wait as long as the clock of their GPU would make them: simulated.
PIPELINE = """
    import os, time, torch, torch.distributed as dist
    from pathlib import Path
    import own_clock
    from fixture import FakeNvml
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    gpus = FakeNvml(Path(os.environ["STATE"]), gpus=None)
    class Work(torch.autograd.Function):
        @staticmethod
        def wait(base_s):
            clock_mhz = (gpus.locks()[rank] or (0, 1410))[1]
            time.sleep(base_s * (1.0 + 0.1 * rank) * (0.4 + 0.6 * 1410 / clock_mhz))
        @staticmethod
        def forward(context, values):
            Work.wait(0.008)
            return values.clone()
        @staticmethod
        def backward(context, gradient):
            Work.wait(0.016)
            return gradient
    class Part(torch.nn.Linear):
        def forward(self, values):
            return Work.apply(super().forward(values))
    part = Part(64, 64)
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 8, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    batch = torch.randn(32, 64)
    while True:
        optimizer.zero_grad()
        schedule.step(*[batch] * (rank == 0), **({"target": batch} if rank == size - 1 else {}))
        optimizer.step()
"""
ENTRY = """jobs:
  - {name: gpt3-175b, mode: enforce, match: {gpus: [n1/0-3]}, clocks: {min_mhz: 900},
     slo: {max_slowdown: 5%, rate: hook}}
"""
POLICY = "apiVersion: joulecut/v1\nkind: Policy\n"
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def _section() -> str:
    page = (ROOT / "docs" / "integrations.md").read_text()
    return page.partition("## From a script to lower clocks\n")[2].partition("\n## ")[0]


@pytest.fixture
def agent() -> Iterator[tuple[FakeNvml, RunningAgent]]:
    with fake_driver(4, load=dict.fromkeys(range(4), 0.9)) as driver, agent_on(driver) as made:
        yield driver, made.start()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.down()


def _env(node: RunningAgent, driver: FakeNvml, folder: Path) -> dict[str, str]:
    return {
        **os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "CLOCKS": str(folder),
        "JOULECUT_SOCKET": str(node.home / "jobs.sock"), "GPUS": ",".join(driver.uuids),
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}/tests/fake_nvml", "OMP_NUM_THREADS": "1",
        "STATE": str(driver.path),
    }  # fmt: skip


@contextlib.contextmanager
def _training(script: str, start: str, env: dict[str, str]) -> Iterator[None]:
    """The job runs, as `start` starts it."""
    folder = Path(env["CLOCKS"])
    (folder / "own_clock.py").write_text(OWN_CLOCK)
    (folder / "train.py").write_text(textwrap.dedent(script))
    with (folder / "train.log").open("w") as log:
        job = subprocess.Popen(
            ["bash", "-c", f"exec {start}"], cwd=folder, env=env, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        os.killpg(job.pid, signal.SIGTERM)
        job.wait(PATIENCE_S)


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
    cluster.agents.append(node.address)
    _, url, _ = cluster.controller()

    env = _env(node, driver, tmp_path)

    def type_in(typed: str) -> str:
        here = re.sub(r"(doctor|explain) (\S+)", rf"\1 \2 --controller {url}", typed)
        return subprocess.run(
            ["bash", "-c", here], cwd=tmp_path, env=env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False,
        ).stdout  # fmt: skip

    start, _, doctor = begin.partition("&\n")
    with _training(SCRIPT, start, env):
        advice = type_in(doctor)
        assert f"add to {policy}: - {{name: gpt3-175b, slo:" in advice
        policy.write_text(f"{POLICY}{entry}\n")
        waits = set[str]()

        def lower() -> bool:
            missing = re.search(
                r"^  !!  (?:reports|baseline|evidence) +(.*)$", type_in(doctor), re.MULTILINE
            )
            waits.update([missing[1]] if missing else ())
            return all(driver.locks()[:2])

        eventually("lower clocks", lower, LIMIT_S)
        said = type_in(ask)
        assert "fine (1 job" in said
        assert re.search(r"ok  enforced +plan \d+ is in force", said), said
        assert re.search(r"Baseline +.*measured at default clocks, \d+ iterations", said), said
    eventually("default clocks without the job", lambda: not any(driver.locks()))
    rows = [NUMBER.sub("N", row) for row in _section().splitlines() if row.startswith("| ")]
    for wait in waits:
        assert any(NUMBER.sub("N", wait) in row for row in rows), wait
    assert len({NUMBER.sub("N", wait) for wait in waits}) >= 3, waits


@pytest.mark.long
def test_a_pipeline_that_runs_gives_a_profile_that_plans(
    agent: tuple[FakeNvml, RunningAgent], cluster: Cluster, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    driver, node = agent
    page = (ROOT / "docs/predictors.md").read_text()
    page = page.partition("### The profile of a running job")[2]
    profile, plan = (
        shlex.split(re.sub(r"\[.*?\]", "", line))[1:] for line in page.splitlines()[2:4]
    )
    (tmp_path / "policy.yaml").write_text(POLICY + ENTRY)
    cluster.agents.append(node.address)
    _, url, _ = cluster.controller()
    begin = "joulecut run -- torchrun --nproc-per-node 4 train.py"
    flags = ("--controller", url, "--output", "gpt3.csv")

    def measured() -> bool:
        time.sleep(1.0)  # the command takes time that the job needs
        return commands.run(*profile, *flags, cwd=tmp_path).returncode == 0

    with _training(PIPELINE, f"env JOULECUT_JOB=gpt3-175b {begin}", _env(node, driver, tmp_path)):
        eventually("a profile", measured, LIMIT_S)
    planned = commands.run(*plan, "--max-slowdown", "1%", cwd=tmp_path)
    assert re.search(r"^plan .* -\d+\.\d %", planned.stdout, re.MULTILINE), planned
    assert (tmp_path / "gpt3.csv").read_text().count("backward") >= 4 * 3
