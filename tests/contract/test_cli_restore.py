"""`joulecut restore` where no controller answers: straight to real agents."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import commands
import pytest
import yaml
from held_port import held_port
from running_agent import RunningAgent


def joulecut(*words: str) -> subprocess.CompletedProcess[str]:
    return commands.run(*words)


@pytest.fixture(scope="module")
def node() -> Iterator[RunningAgent]:
    with RunningAgent(cards=2) as agent:
        yield agent.start()


@pytest.fixture
def nobody() -> Iterator[str]:
    """The URL of a controller that is gone."""
    with held_port() as port:
        yield f"http://127.0.0.1:{port}"


def test_every_gpu_comes_back_without_a_controller(node: RunningAgent, nobody: str) -> None:
    agents = ("--agents", node.address)
    for words in (
        ("restore", "--all", "--controller", nobody, *agents),
        ("restore", "--all", "--direct", *agents),
        ("restore", "demo", "--controller", nobody, *agents),
        ("restore", node.address, "--direct", *agents),
        ("restore", "n1", "--direct", *agents),  # the node's own name
        ("restore", "--node", "n1", "--direct", *agents),
    ):
        assert node.obey({0: 1005, 1: 1005})[0].accepted, words
        assert len(node.locked()) == 2
        done = joulecut(*words)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert node.locked() == {}
        assert f"{node.address}: 2 GPUs reset" in done.stdout
        assert ("no controller answers" in done.stdout) == ("--direct" not in words)


def test_the_controllers_file_tells_where_they_are(
    node: RunningAgent, nobody: str, tmp_path: Path
) -> None:
    config = {"agents": [node.address], "policy": "p.yaml", "store": "sqlite:///c.db"}
    path = tmp_path / "controller.yaml"
    path.write_text(yaml.safe_dump(config))
    assert node.obey({0: 1005})[0].accepted
    done = joulecut("restore", "--all", "--json", "--controller", nobody, "--config", str(path))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["complete"] is True
    assert [agent["gpus"] for agent in told["agents"]] == [[node.gpus.uuids[0]]]
    assert node.locked() == {}

    # Where the controller listens stands in the file too.
    path.write_text(yaml.safe_dump(config | {"listen": {"http": nobody.removeprefix("http://")}}))
    done = joulecut("restore", "--all", "--config", str(path))
    assert done.stdout.startswith(f"no controller answers at {nobody} "), done.stdout


def test_another_job_keeps_its_clocks_and_a_dead_agent_is_named(
    node: RunningAgent, nobody: str
) -> None:
    assert node.obey({0: 1005})[0].accepted
    dead = nobody.removeprefix("http://")
    agents = f"{node.address},{dead}"
    done = joulecut("restore", "other-job", "--direct", "--agents", agents)
    assert done.returncode == 1
    assert f"{dead}: NOT reset: no agent answers" in done.stdout
    assert len(node.locked()) == 1
    done = joulecut("restore", "--all", "--direct", "--agents", agents)
    assert done.returncode == 1
    assert node.locked() == {}, "one that is dead does not keep the others"


def test_a_name_that_nothing_is_held_for_is_not_passed_over(
    node: RunningAgent, nobody: str
) -> None:
    """A typing error in a hurry must not read like success."""
    assert node.obey({0: 1005})[0].accepted
    agents = ("--agents", node.address)
    done = joulecut("restore", "dmeo", "--controller", nobody, *agents)
    assert "Calling 1 agent directly." in done.stdout
    assert "No GPU there is leased to a job named dmeo." in done.stdout
    assert len(node.locked()) == 1
    done = joulecut("restore", "--node", "n2", "--direct", *agents)
    assert done.returncode == 2
    assert "no agent at n2" in done.stderr
    assert joulecut("restore", "--all", "--direct", *agents).returncode == 0
    assert node.locked() == {}
