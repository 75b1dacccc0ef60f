"""Every source of agents: addresses once each, in one form; failures are one line."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from joulecut_controller.sources.agents import (
    AGENTS_MAX,
    AgentsByName,
    AgentSource,
    FileOfAgents,
    ListedAgents,
)
from joulecut_wire.errors import BadInput, JoulecutError, Unavailable

PORT = 9431
# What a source is made of: a folder, and the hosts that it shall know.
Make = Callable[[Path, tuple[str, ...], pytest.MonkeyPatch], AgentSource]


def listed(_: Path, hosts: tuple[str, ...], __: pytest.MonkeyPatch) -> AgentSource:
    return ListedAgents(tuple(f"{host}:{PORT}" for host in hosts))


def in_file(folder: Path, hosts: tuple[str, ...], _: pytest.MonkeyPatch) -> AgentSource:
    lines = ["# agents", "", *(f"{host}:{PORT}  # a node" for host in hosts)]
    (folder / "agents.txt").write_text("\n".join(lines))
    return FileOfAgents(folder / "agents.txt", encrypted=True)


def by_name(_: Path, hosts: tuple[str, ...], patch: pytest.MonkeyPatch) -> AgentSource:
    def answer(name: str, port: int, **_: object) -> list[object]:
        if not hosts:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts * 2]

    patch.setattr(socket, "getaddrinfo", answer)
    return AgentsByName("agents.example", PORT)


MADE = pytest.mark.parametrize("make", [listed, in_file, by_name])
MOVING = pytest.mark.parametrize("make", [in_file, by_name])
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


@MADE
def test_each_agent_is_named_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = make(tmp_path, HOSTS, monkeypatch).addresses()
    assert sorted(found) == [f"{host}:{PORT}" for host in HOSTS]


@MOVING
def test_what_changes_is_seen_at_the_next_question(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make(tmp_path, HOSTS, monkeypatch)
    assert source.moves
    assert len(source.addresses()) == 3
    make(tmp_path, HOSTS[:2], monkeypatch)
    assert len(source.addresses()) == 2


@MOVING
def test_no_agent_at_all_is_a_failure_of_one_line(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unavailable) as told:
        make(tmp_path, (), monkeypatch).addresses()
    assert "\n" not in str(told.value)


@MOVING
def test_more_than_can_be_followed_are_refused(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = tuple(f"10.{i // 65536}.{i // 256 % 256}.{i % 256}" for i in range(AGENTS_MAX + 1))
    with pytest.raises(BadInput, match=str(AGENTS_MAX)):
        make(tmp_path, many, monkeypatch).addresses()


@pytest.mark.parametrize(
    "line", ["node1", "node1:0", "node1:70000", ":9431", "node1:94x", "node1:9431"]
)
def test_a_wrong_line_of_a_file_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "agents.txt").write_text(f"127.0.0.1:9431\n{line}\n")
    with pytest.raises(BadInput, match=r"agents\.txt:2"):
        FileOfAgents(tmp_path / "agents.txt", encrypted=False).addresses()


def test_a_socket_in_a_file_is_relative_to_it_as_in_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "agents.txt").write_text("unix:state/agent.sock\nunix:/run/agent.sock\n")
    found = FileOfAgents(tmp_path / "agents.txt", encrypted=False).addresses()
    assert found == (f"unix:{tmp_path}/state/agent.sock", "unix:/run/agent.sock")


@pytest.mark.parametrize(
    "source",
    [
        FileOfAgents(Path("/nonexistent/agents"), encrypted=True),
        FileOfAgents(Path(os.devnull), encrypted=True),
    ],
)
def test_a_source_that_is_away_is_unavailable(source: AgentSource) -> None:
    with pytest.raises(JoulecutError) as told:
        source.addresses()
    assert "\n" not in str(told.value)


def test_a_host_of_two_address_families_is_one_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET6, "fd00::1"), (socket.AF_INET, "10.0.0.1")]

    def answer(name: str, port: int, **_: object) -> list[object]:
        return [(family, socket.SOCK_STREAM, 6, "", (host, port)) for family, host in found]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    assert AgentsByName("agents.example", PORT).addresses() == ("10.0.0.1:9431",)
    found.pop()
    assert AgentsByName("agents.example", PORT).addresses() == ("[fd00::1]:9431",)
