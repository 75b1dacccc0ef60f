"""The controller's end in mutual TLS, against real agents: roles, names, rotation, refusals."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import yaml
from certificates import Authority, Leaf
from running_agent import PATIENCE_S, RunningAgent

from joulecut_controller import config
from joulecut_controller.fleet.grpc_fleet import GrpcFleet
from joulecut_controller.sources.agents import ListedAgents
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import Command, Result, Setting
from joulecut_wire.tls import TlsFiles, rotating

ROLES = {role: ["controller.test"] for role in ("observe", "clear", "apply")}


def install(leaf: Leaf, ca: Path, folder: Path) -> TlsFiles:
    """Puts a certificate where a process looks for it, each file whole."""
    files = TlsFiles(folder / "own.pem", folder / "own.key", folder / "own-ca.pem")
    for source, target in zip((leaf.cert, leaf.key, ca), files.paths, strict=True):
        fresh = target.with_suffix(".new")
        shutil.copy(source, fresh)
        fresh.replace(target)
    return files


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[RunningAgent, Authority]]:
    tls = {"cert": "own.pem", "key": "own.key", "client_ca": "own-ca.pem"}
    with RunningAgent(cards=1, tls=tls, access=ROLES) as agent:
        ca = Authority(tmp_path, "ca")
        install(ca.leaf("agent", "DNS:joulecut-agent.test"), ca.cert, agent.home)
        yield agent.start(), ca


async def until(what: str, probe: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not probe():
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.05)


def run(
    files: TlsFiles,
    node: RunningAgent,
    play: Callable[[GrpcFleet, str], Awaitable[None]],
    server_name: str = "joulecut-agent.test",
    said: list[str] | None = None,
) -> None:
    """`said` takes the complaints about certificates."""
    complain = said.append if said is not None else print

    async def scene() -> None:
        address = node.ready["grpc"]
        fleet = GrpcFleet(
            [address], watch_s=0.1, deadline_s=3.0, silence_s=1.0,
            tls=rotating(files, complain), server_name=server_name,
        )  # fmt: skip
        await fleet.start()
        try:
            await play(fleet, address)
        finally:
            await fleet.stop()

    asyncio.run(scene())


def order(generation: int, uuid: str, mhz: int) -> Command:
    return Command(1, "demo", generation, 30.0, (Setting(uuid, clock_max_mhz=mhz),), "test")


async def answer(fleet: GrpcFleet, address: str, command: Command) -> Result:
    """The agent's word on a command; asked for again where a busy machine was late with it."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        (result,) = await fleet.apply(address, command)
        if "DEADLINE_EXCEEDED" not in result.reason:
            return result
        assert time.monotonic() < end_s, result


def connected(fleet: GrpcFleet) -> bool:
    return all(node.connected for node in fleet.observe(time.monotonic()).nodes)


def test_commands_pass_and_certificates_rotate_under_them(
    node: tuple[RunningAgent, Authority], tmp_path: Path
) -> None:
    agent, ca = node
    home, other = tmp_path / "controller", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    files = install(ca.leaf("controller", "DNS:controller.test"), ca.cert, home)
    fresh = Authority(other, "ca")
    uuid = agent.gpus.uuid(0)

    said: list[str] = []

    async def play(fleet: GrpcFleet, address: str) -> None:
        await until("connected", lambda: connected(fleet))
        result = await answer(fleet, address, order(1, uuid, 1005))
        assert (result.accepted, result.reason) == (True, "")

        # Half of it first: nothing breaks off.
        before = fleet._pem
        (home / "own.pem").write_bytes(b"-----BEGIN CERTIFICATE-----\nMII")
        await until("the complaint", lambda: bool(said))
        assert (await answer(fleet, address, order(2, uuid, 1005))).accepted
        assert fleet._pem is before
        assert not fleet._retired
        await until("connected", lambda: connected(fleet))

        # Then both ends move to another authority.
        install(fresh.leaf("agent", "DNS:joulecut-agent.test"), fresh.cert, agent.home)
        install(fresh.leaf("controller", "DNS:controller.test"), fresh.cert, home)
        generation = 2
        end_s = time.monotonic() + PATIENCE_S
        while True:
            generation += 1
            (result,) = await fleet.apply(address, order(generation, uuid, 1200))
            moved = fleet._pem is not None and fleet._pem.ca == fresh.cert.read_bytes()
            if result.accepted and moved and not fleet._retired:
                break
            assert time.monotonic() < end_s, result
            await asyncio.sleep(0.2)
        await until("connected", lambda: connected(fleet))
        assert agent.locked() == {0: 1200}

    run(files, agent, play, said=said)
    # While both files are exchanged, one may be found that does not belong to the other.
    assert len([line for line in said if "does not load" in line]) == 1
    assert "stay in force" in said[0]


def test_an_agent_that_is_not_who_its_address_says_gets_no_command(
    node: tuple[RunningAgent, Authority], tmp_path: Path
) -> None:
    agent, ca = node
    home = tmp_path / "controller"
    home.mkdir()
    files = install(ca.leaf("controller", "DNS:controller.test"), ca.cert, home)

    async def play(fleet: GrpcFleet, address: str) -> None:
        result = await answer(fleet, address, order(1, agent.gpus.uuid(0), 1005))
        assert not result.accepted
        assert "UNAVAILABLE" in result.reason
        assert not connected(fleet)

    run(files, agent, play, server_name="")  # 127.0.0.1 is not in the certificate
    assert agent.locked() == {}


BASE = {"agents": ["127.0.0.1:1"], "policy": "p.yaml", "store": "sqlite:///s.db"}
TLS = {"cert": "c.pem", "key": "k.pem", "ca": "ca.pem"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"agents": ["node1:9431"]}, "agents[0]: node1 without encryption"),
        ({"tls": {"cert": "c", "key": "k"}}, "tls.ca: key missing"),
        ({"tls": {**TLS, "insecure": True}}, "tls.insecure: unknown key"),
        ({"listen": {"http": "0.0.0.0:9440"}}, "listen.http: 0.0.0.0 without encryption"),
    ],
)
def test_open_doors_are_refused(tmp_path: Path, words: dict[str, object], sentence: str) -> None:
    path = tmp_path / "controller.yaml"
    path.write_text(yaml.safe_dump({**BASE, **words}))
    with pytest.raises(BadInput) as caught:
        config.read(path)
    assert sentence in str(caught.value)


def test_with_tls_agents_may_be_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "controller.yaml"
    agents = ["node1:9431", "[2001:db8::1]:9431", "unix:/run/joulecut/agent.sock"]
    words = {**BASE, "agents": agents, "tls": {**TLS, "server_name": "joulecut-agent.test"}}
    path.write_text(yaml.safe_dump(words))
    read = config.read(path)
    assert read.agents == ListedAgents(tuple(agents))
    assert read.server_name == "joulecut-agent.test"
    assert read.tls == TlsFiles(*(tmp_path / name for name in ("c.pem", "k.pem", "ca.pem")))


def test_a_socket_is_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "controller.yaml"
    path.write_text(yaml.safe_dump({**BASE, "agents": ["unix:run/agent.sock"]}))
    assert config.read(path).agents == ListedAgents((f"unix:{tmp_path}/run/agent.sock",))
    for bad in ("unix:", "unix:a\tb", f"unix:{'a' * 108}"):
        path.write_text(yaml.safe_dump({**BASE, "agents": [bad]}))
        with pytest.raises(BadInput, match=r"unix:PATH of up to 107 bytes|allowed: a text"):
            config.read(path)
