"""A sweep on a Dask cluster of two local workers finds what one process finds."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import commands
import pytest

pytest.importorskip("distributed")

SWEEP = """\
model: gpt3-175b
system: dgx-a100
run: {gpus: 512, global_batch: 512, sequence: 2048}
sweep: {tensor: all, pipeline: all, chunks: all, microbatch: all, recompute: all,
        sequence_parallel: all, zero: all, clock_mhz: [1410, 1200]}
"""
DEADLINE_S = 60.0


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    dask = [sys.executable, "-m", "dask"]
    port = address.rpartition(":")[2]
    words = (
        ["scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"],
        ["worker", address, "--nworkers", "2", "--nthreads", "1", "--no-dashboard",
         "--host", "127.0.0.1"],
    )  # fmt: skip
    log = (tmp_path / "dask.log").open("wb")
    running = [subprocess.Popen([*dask, *w], stdout=log, stderr=log, cwd=tmp_path) for w in words]
    try:
        until_s = time.monotonic() + DEADLINE_S
        while (tmp_path / "dask.log").read_bytes().count(b"Registered to") < 2:
            assert time.monotonic() < until_s, (tmp_path / "dask.log").read_text()
            time.sleep(0.2)
        yield address
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(30)
        log.close()


@pytest.mark.long
def test_two_workers_find_the_same_front(scheduler: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    command = [sys.executable, "-m", "joulecut_cli.main", "model", "sweep", str(path), "--json"]
    said = subprocess.run([*command, "--scheduler", scheduler], capture_output=True, check=False)
    assert said.returncode == 0, said.stderr
    alone = commands.run("model", "sweep", str(path), "--jobs", "1", "--json")
    assert json.loads(said.stdout)["pareto"] == json.loads(alone.stdout)["pareto"]


@pytest.mark.long
def test_a_cluster_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    said = subprocess.run(
        [sys.executable, "-m", "joulecut_cli.main", "model", "sweep", str(path),
         "--dask", "tcp://127.0.0.1:1"],
        capture_output=True, check=False,
    )  # fmt: skip
    assert said.returncode == 1
    assert said.stderr.count(b"\n") == 1
    assert b"no Dask cluster answers" in said.stderr
