"""The configuration file: what is taken, and the one line for everything else."""

from pathlib import Path

import pytest

from joulecut_controller.config import read
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
    assert config.agents == ("127.0.0.1:9431", "localhost:9432", "[::1]:9433")
    assert config.policy == tmp_path / "policy.yaml"
    assert config.store == f"sqlite:///{tmp_path}/state/controller.db"
    assert config.http == ("127.0.0.1", 9440)
    assert config.interval_s == 5.0
    assert config.ttl_s is None


def test_everything_given(tmp_path: Path) -> None:
    more = "listen: {http: 127.0.0.1:0}\ninterval_s: 0.5\nlease: {ttl_s: 2}\n"
    config = read(write(tmp_path, GOOD + more))
    assert (config.http, config.interval_s, config.ttl_s) == (("127.0.0.1", 0), 0.5, 2.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "intervall_s: 5\n", ":4: intervall_s: unknown key"),
        (GOOD + "listen: {grpc: 127.0.0.1:1}\n", "listen.grpc: unknown key"),
        (GOOD + "lease: {ttl: 5}\n", "lease.ttl: unknown key"),
        (GOOD + "interval_s: 0\n", ":4: interval_s: 0; allowed: seconds from 0.1 to 300"),
        (GOOD + "interval_s: .nan\n", "interval_s: nan"),
        (GOOD + "interval_s: true\n", "interval_s: True"),
        (GOOD + "lease: {ttl_s: 1e9}\n", "lease.ttl_s"),
        (GOOD + "listen: {http: 0.0.0.0:9440}\n", "0.0.0.0 without encryption"),
        (GOOD + "listen: {http: 127.0.0.1:99999}\n", "port 0 to 65535"),
        (GOOD + "listen: []\n", "listen: not a mapping"),
        (GOOD.replace("127.0.0.1:9431", "10.0.0.7:9431"), "10.0.0.7 without encryption"),
        (GOOD.replace("127.0.0.1:9431", "localhost:9432"), "given twice"),
        (GOOD.replace("127.0.0.1:9431", "127.0.0.1:0"), "port 1 to 65535"),
        (GOOD.replace("127.0.0.1:9431", "7"), "7 is not a text"),
        (GOOD.replace('[127.0.0.1:9431, "localhost:9432", "[::1]:9433"]', "[]"), "not a list"),
        (GOOD.replace("sqlite:///", "postgres://"), "allowed: sqlite:///FILE"),
        (GOOD.replace("policy: policy.yaml\n", ""), "key policy is missing"),
        ("", "not a mapping"),
        ("[1]", "not a mapping"),
        ("agents: &a [1]\npolicy: *a\n", "aliases"),
    ],
)
def test_what_is_wrong_is_one_line_with_a_place(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(write(tmp_path, text))
    line = str(caught.value)
    assert "controller.yaml" in line
    assert expected in line
    assert "\n" not in line


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read(tmp_path / "none.yaml")
