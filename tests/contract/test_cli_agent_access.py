"""`joulecut restore --direct`, `release` and `resume`: certificates, and the socket."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import commands
import pytest
from certificates import Authority, Leaf
from running_agent import RunningAgent

LISTEN = {"metrics": "127.0.0.1:0", "grpc": "127.0.0.1:0", "socket": "jobs.sock",
          "grpc_socket": "agent.sock"}  # fmt: skip


def joulecut(*words: str) -> subprocess.CompletedProcess[str]:
    return commands.run(*words)


@pytest.fixture(scope="module")
def node() -> Iterator[tuple[RunningAgent, Authority]]:
    tls = {"cert": "server.pem", "key": "server.key", "client_ca": "ca.pem"}
    access = {"clear": ["oncall.test"], "release": ["driver.test"]}
    with RunningAgent(cards=2, listen=LISTEN, tls=tls, access=access) as agent:
        ca = Authority(agent.home, "ca")
        ca.leaf("server", "DNS:agent.test")
        yield agent.start(), ca


def restore(address: str) -> list[str]:
    return ["restore", "--direct", "--agents", address, "--all"]


def flags(leaf: Leaf) -> list[str]:
    return [
        "--cert", str(leaf.cert), "--key", str(leaf.key), "--ca", str(leaf.ca),
        "--server-name", "agent.test",
    ]  # fmt: skip


def test_on_call_gives_gpus_back_and_may_do_nothing_else(
    node: tuple[RunningAgent, Authority],
) -> None:
    agent, ca = node
    oncall = ca.leaf("oncall", "DNS:oncall.test")
    address = agent.ready["grpc"]
    words = [*restore(address), "--reason", "paged", *flags(oncall)]
    assert joulecut(*words).stdout.splitlines()[0] == f"{address}: nothing to reset"
    assert agent.apply({0: 1005, 1: 1005})[0].accepted
    done = joulecut(*words)
    assert done.stdout.splitlines()[0] == f"{address}: 2 GPUs reset"
    assert done.returncode == 0
    assert agent.locked() == {}
    refused = joulecut("release", address, "--for", "1m", *flags(oncall))
    assert refused.returncode == 1
    assert "release needs the role release; oncall.test has observe, clear" in refused.stderr


def test_release_by_certificate_and_resume_by_the_socket(
    node: tuple[RunningAgent, Authority],
) -> None:
    agent, ca = node
    driver = ca.leaf("driver", "DNS:driver.test")
    done = joulecut("release", agent.ready["grpc"], "--for", "1m", *flags(driver))
    assert (done.returncode, done.stderr) == (0, "")
    done = joulecut("resume", f"unix:{agent.home}/agent.sock")
    assert (done.returncode, done.stderr) == (0, "")
    done = joulecut("release", agent.ready["grpc"], "--for", "1m", *flags(driver))
    assert (done.returncode, done.stderr) == (0, "")
    done = joulecut("resume", "--agent", f"unix:{agent.home}/agent.sock", "--reason", "done")
    assert (done.returncode, done.stderr) == (0, "")
    done = joulecut("resume", "--all", *flags(driver))
    assert done.returncode == 2
    assert "--cert and --all" in done.stderr


def test_mistakes_are_one_line(node: tuple[RunningAgent, Authority], tmp_path: Path) -> None:
    agent, ca = node
    leaf = ca.leaf("careless", "DNS:careless.test")
    stranger = Authority(tmp_path, "other").leaf("oncall", "DNS:oncall.test")
    shutil.copy(ca.cert, stranger.ca)
    address = agent.ready["grpc"]
    for words, status, sentence in (
        (restore("node1"), 2, "is a remote address without TLS"),
        ([*restore(address), "--cert", str(leaf.cert)], 2, "one without the others"),
        ([*restore(address), *flags(leaf)[:3], str(ca.key), *flags(leaf)[4:]], 2, "not the key of"),
        (restore(address), 1, "does it require --cert?"),
        ([*restore(address), *flags(leaf)[:-2]], 1, "no TLS connection to an agent at"),
        ([*restore(address), *flags(stranger)], 1, "no TLS connection to an agent at"),
        (restore("unix:/nowhere.sock"), 1, "is this its listen.grpc_socket"),
    ):
        done = joulecut(*words)
        said = done.stderr if status == 2 else done.stdout.splitlines()[0]
        assert (done.returncode, len(said.splitlines())) == (status, 1), said
        assert sentence in said
