"""`joulecut doctor` without a job: broken installations, each started for real and each named."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import pytest
from driven_agent import agent_on, fake_driver
from running_agent import RunningAgent, eventually

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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--config", "odd.yaml"), "odd.yaml"),
        (("--controller", "http://127.0.0.1:9440"), "joulecut status shows a controller"),
        (("job", "--config", "odd.yaml"), "--config with a JOB"),
    ],
)
def test_nothing_to_examine_is_one_line(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.yaml").write_text("agents: [localhost:9431]\n")
    monkeypatch.chdir(tmp_path)
    done = commands.run("doctor", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
