"""`joulecut doctor` without a job: broken installations, each started for real and each named."""

import http.server
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import boards
import commands
import pytest
from driven_agent import agent_on, fake_driver
from job_states import changed
from running_agent import RunningAgent, eventually
from serving import Serving

from joulecut_wire import card_facts
from joulecut_wire.card_facts import CardFacts

COMMAND = str(Path(sys.executable).with_name("joulecut"))
Steps = dict[str, dict[str, Any]]


def _doctor(*words: str | Path, env: dict[str, str] | None = None) -> Steps:
    """The steps by name. Every one that fails names its next step. With `env` a process of its own,
    which loads the libraries that it names.
    """
    argv = ["doctor", "--json", *map(str, words)]
    if env is None:
        done = commands.run(*argv)
    else:
        done = subprocess.run(
            [COMMAND, *argv], env=env, capture_output=True, text=True, check=False
        )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout, done.stderr
    found: Steps = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
    wrong = [step for step in found.values() if not step["done"]]
    assert done.returncode == bool(wrong)
    assert all(step["mend"] for step in wrong)
    return found


def _wrong(steps: Steps) -> set[str]:
    return {name for name, step in steps.items() if not step["done"]}


@pytest.fixture
def node() -> Iterator[RunningAgent]:
    with RunningAgent(cards=1) as agent:
        yield agent


def test_a_sound_node_lacks_nothing(node: RunningAgent) -> None:
    node.start()
    steps = _doctor("--config", node.write_config())
    assert _wrong(steps) == set(), steps


def test_no_keeper(node: RunningAgent) -> None:
    node.config["keeper"] = str(node.state_dir / "keeper.sock")
    node.start()
    steps = _doctor("--config", node.write_config())
    assert "no keeper at" in steps["keeper"]["found"]
    assert steps["keeper"]["mend"] == "systemctl enable --now joulecut-keeper"


@contextmanager
def _late_clock() -> Iterator[str]:
    """A controller's answers, dated ten minutes ago."""
    dated_s = time.time() - 600.0
    with Serving(boards.board()) as server:
        body = urllib.request.urlopen(f"{server.url}/api/v1/board").read()

    class Late(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            self.send_header("date", formatdate(dated_s, usegmt=True))
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Late) as late:
        threading.Thread(target=late.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{late.server_port}"
        finally:
            late.shutdown()


def test_clock_skew() -> None:
    with _late_clock() as url:
        steps = _doctor("--controller", url)
    assert "ahead of the controller's" in steps["clock"]["found"]


def test_unreachable_controller() -> None:
    steps = _doctor("--controller", "http://127.0.0.1:1")
    assert _wrong(steps) == {"controller"}


def test_locks_of_nvidia_smi() -> None:
    with fake_driver(1, load={0: 1.0}) as driver, agent_on(driver) as node:
        driver.set_site_lock(0, 900)
        node.start()
        eventually("the lock is seen", lambda: not node.describe().gpus[0].controllable)
        steps = _doctor("--config", node.write_config(), env=driver.environment())
        assert "ran at 900 MHz under load" in steps["control"]["found"]
        assert "nvidia-smi -rgc" in steps["control"]["mend"]


def test_ecc_pending_and_an_old_driver() -> None:
    with fake_driver(1) as driver, agent_on(driver) as node:
        driver.set_driver_version(470)
        driver.set_ecc_change_pending(0, True)
        node.start()
        steps = _doctor("--config", node.write_config(), env=driver.environment())
        assert {"driver", "ECC"} <= _wrong(steps)  # other agents of this machine may run beside
        assert "470.0.0" in steps["driver"]["found"]
        assert "0 of 1 GPUs on measured values" in steps["measured"]["found"]


def test_measured_and_assumed_values_are_told_apart() -> None:
    with fake_driver(2) as driver, agent_on(driver) as node:
        facts = CardFacts(
            driver.uuids[1], "580.0.0-fake", "00.00.00.00.00", "A100", time.time() - 9e4
        )
        card_facts.save(node.home / "facts.json", [facts])
        node.config["measured"] = "facts.json"
        steps = _doctor("--config", node.write_config(), env=driver.environment())
        assert steps["measured"]["done"]
        assert "1 of 2 GPUs on measured values" in steps["measured"]["found"]


def test_a_gpu_that_is_counted_and_does_not_open_is_named() -> None:
    """By doctor and selftest, which goes on with the others; the driver is loaded."""
    with fake_driver(2) as driver, agent_on(driver) as node:
        driver.set_error("nvmlDeviceGetHandleByIndex_v2", 999, gpu=1)
        step = _doctor("--config", node.write_config(), env=driver.environment())["driver"]
        assert step["found"] == "1 of 2 GPUs open: GPU 1: open: unknown"
        assert step["mend"].startswith("restart the container")
        words = [COMMAND, "selftest", "--minutes", "0.02", "--gpu", "all"]
        done = subprocess.run(
            words, env=driver.environment(), capture_output=True, text=True, check=False
        )
        assert "GPU 1: open: unknown: counted, and not tested" in done.stdout
        assert "GPU 0" in done.stdout
        assert done.returncode == 1


def test_a_policy_that_matches_nothing_and_a_job_without_a_rate() -> None:
    board = boards.board()
    job = board.jobs[0]
    silent = changed(job.view, report_age_s=float("inf"), baseline=None)
    shown = replace(board, jobs=(replace(job, view=silent, timing=None),))
    with Serving(shown) as server:
        steps = _doctor("--controller", server.url)
    assert "gpt3-175b has no rate" in steps["rates"]["found"]
    empty = changed(job.view, stages=(), loads=(), complaint="no GPU matches")
    with Serving(replace(board, jobs=(replace(job, view=empty),))) as server:
        steps = _doctor("--controller", server.url)
    assert "gpt3-175b matches no GPU" in steps["policy"]["found"]


def test_nothing_to_examine_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text("a: 1\n")
    done = subprocess.run(
        [COMMAND, "doctor", "--config", str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_two_configurations_of_one_role_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("device: nvml\n")
    words = [COMMAND, "doctor", "--config", "a.yaml", "--config", "b.yaml"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "a.yaml and b.yaml are of the same role; allowed: one each" in done.stderr
