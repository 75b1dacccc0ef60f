"""The configuration file: what is taken, and the one line for everything else."""

import re
from pathlib import Path

import pytest

from joulecut_controller import main, process
from joulecut_controller.config import read
from joulecut_controller.sources.agents import (
    AgentsByName,
    FileOfAgents,
)
from joulecut_wire.errors import BadInput

GOOD = """\
agents: [127.0.0.1:9431, "localhost:9432", "[::1]:9433"]
policy: policy.yaml
store: sqlite:///state/controller.db
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "controller.yaml"
    path.write_text(text)
    return path


def test_the_smallest_form_and_its_defaults(tmp_path: Path) -> None:
    config = read(write(tmp_path, GOOD))
    assert config.agents.addresses() == ("127.0.0.1:9431", "localhost:9432", "[::1]:9433")
    assert config.policy == tmp_path / "policy.yaml"
    assert config.store == f"sqlite:///{tmp_path}/state/controller.db"
    assert config.http == ("127.0.0.1", 9440)
    assert config.interval_s == 5.0
    assert config.ttl_s is None


def test_everything_given(tmp_path: Path) -> None:
    more = "listen: {http: 127.0.0.1:0}\ninterval_s: 0.5\nlease: {ttl_s: 2}\n"
    config = read(write(tmp_path, GOOD + more))
    assert (config.http, config.interval_s, config.ttl_s) == (("127.0.0.1", 0), 0.5, 2.0)


PG = "postgresql://joulecut@db.example:5432/joulecut?sslrootcert=ca.crt"


def with_store(store: str, more: str = "") -> str:
    return GOOD.replace("sqlite:///state/controller.db", store) + more


def test_a_store_on_postgresql_and_its_defaults(tmp_path: Path) -> None:
    config = read(write(tmp_path, with_store(PG)))
    assert config.store == PG
    assert config.base == tmp_path
    assert config.store_password_file is None
    assert (config.timing.check_s, config.timing.hold_s, config.timing.timeout_s) == (1, 8, 2)
    assert read(write(tmp_path, GOOD)).timing.hold_s == float("inf")


def test_the_address_and_the_password_may_lie_in_files(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(PG + "\n")
    text = with_store("{url_file: url, password_file: secrets/password, timeout_s: 0.5}")
    config = read(write(tmp_path, text + "leader: {check_s: 0.5, hold_s: 4.5}\n"))
    assert config.store == PG
    assert config.store_password_file == tmp_path / "secrets" / "password"
    assert (config.timing.check_s, config.timing.hold_s, config.timing.timeout_s) == (0.5, 4.5, 0.5)


def test_a_short_lease_shortens_the_wait_for_the_store(tmp_path: Path) -> None:
    config = read(write(tmp_path, with_store(PG, "interval_s: 0.5\nlease: {ttl_s: 3}\n")))
    assert config.timing.timeout_s == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (with_store("{}"), ":3: store: names no store; allowed: one of url and url_file"),
        (with_store(f"{{url: '{PG}', url_file: url}}"), "one of url and url_file"),
        (with_store("{url_file: none}"), "store.url_file: No such file"),
        (with_store("{url_file: damaged}"), "store.url_file: not one printable line"),
        (with_store("{url: 'sqlite:///x', password_file: y}"), "store.password_file: a file has"),
        (with_store("{url: 'sqlite:///x', timeout_s: 1}"), "store.timeout_s: means nothing"),
        (with_store("sqlite:///x", "leader: {hold_s: 9}\n"), "leader.hold_s: means nothing"),
        (with_store(PG.replace("joulecut@", "")), "store: names no user"),
        (with_store(PG, "leader: {hold_s: 6}\n"), ":4: leader.hold_s: 6 s is too short"),
        (with_store(PG, "leader: {check_s: 4}\n"), "leader.hold_s: 8 s is too short"),
        (
            with_store(f"{{url: '{PG}', timeout_s: 2}}", "lease: {ttl_s: 3}\n"),
            ":3: store.timeout_s: 2 s is longer than a heartbeat may be late; allowed: at most",
        ),
    ],
)
def test_a_store_that_cannot_be_is_one_line(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "damaged").write_bytes(b"\xff")
    with pytest.raises(BadInput) as caught:
        read(write(tmp_path, text))
    assert expected in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.run(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == "joulecut-controller 0.1.0\n"


TLS = "tls: {cert: a, key: b, ca: c}\n"


def found(source: str, tls: str = TLS) -> str:
    return re.sub("agents: .*\n", f"agents: {source}\n", GOOD) + tls


def test_agents_are_found_in_each_documented_way(tmp_path: Path) -> None:
    for source, expected in {
        "{file: agents.txt}": FileOfAgents(tmp_path / "agents.txt", encrypted=True),
        "{dns: {name: agents.svc}}": AgentsByName("agents.svc", 9431),
    }.items():
        assert read(write(tmp_path, found(source))).agents == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (found("{}"), "names no source"),
        (found("{file: x, dns: {name: x}}"), "2 sources; allowed: one of"),
        (found("{srv: {name: x}}"), "agents.srv: unknown key"),
        (found("{dns: {name: x}}", tls=""), "agents.dns: agents without encryption"),
        (found("{kubernetes: {service: x}}"), "agents.kubernetes: unknown key; allowed: file, dns"),
        (found("{slurm: {partition: gpu}}"), "agents.slurm: unknown key; allowed: file, dns"),
    ],
)
def test_a_source_that_cannot_be_asked_is_one_line(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(expected)):
        read(write(tmp_path, text))


def test_a_controller_waits_for_its_first_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "agents.txt"
    waits = iter(["", "# none yet\n", "127.0.0.1:9431\n"])
    monkeypatch.setattr(process.time, "sleep", lambda _: listed.write_text(next(waits)))
    assert process._first_agents(FileOfAgents(listed, encrypted=False)) == ("127.0.0.1:9431",)
    assert capsys.readouterr().err.count("waiting for agents") == 2  # absent, then empty


def test_links_are_addresses_a_browser_may_follow(tmp_path: Path) -> None:
    base = "agents: [127.0.0.1:9431]\npolicy: p.yaml\nstore: sqlite:///s.db\nlinks: "
    file = tmp_path / "controller.yaml"
    file.write_text(base + "{grafana: 'https://g.example/d/x?var-job={job}'}\n")
    assert read(file).links.grafana == "https://g.example/d/x?var-job={job}"
    for bad in ("{grafana: 'javascript:alert(1)'}", "{runbook: /docs}", "{other: http://x}"):
        file.write_text(base + bad + "\n")
        with pytest.raises(BadInput, match="links"):
            read(file)
