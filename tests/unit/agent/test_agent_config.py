"""The agent's configuration: defaults, one-line refusals, and warnings that stop nothing."""

from pathlib import Path

import pytest

from joulecut_agent import config
from joulecut_agent.keeper.bounds import Bounds
from joulecut_wire.errors import BadInput

SMALLEST = "device: simulated\n"
COMPLETE = """\
device: simulated
simulated: {cards: 2}
node: n7
listen: {metrics: "0.0.0.0:9430", grpc: "[::1]:0", socket: run/jobs.sock}
state_dir: state
sample_interval_s: 0.5
lease: {ttl_s_max: 20, restore_spread_s: 8}
power: {safe: 350.5}
stop_file: run/stop
journal_dir: run/fast
bounds:
  power_min_w: 200
  power_max_w: 450
  clock_min_mhz: 600
  clock_max_mhz: 1305
  min_dwell_s: 5
  writes_per_minute: 6
  changed_share_per_minute: 0.25
site_default: {clock_min_mhz: 210, clock_max_mhz: 1290}
keeper: run/keeper.sock
"""


def _load(folder: Path, text: str) -> config.Settings:
    (folder / "agent.yaml").write_text(text)
    return config.load(folder / "agent.yaml")


def test_what_is_not_said_has_a_reasoned_default(tmp_path: Path) -> None:
    settings = _load(tmp_path, SMALLEST)
    assert settings.metrics == ("127.0.0.1", 9430)
    assert settings.grpc == ("127.0.0.1", 9431)
    assert settings.socket == "/run/joulecut/jobs.sock"
    assert settings.keeper_mode == "child"
    assert settings.sample_interval_s == 1.0
    assert settings.keeper.bounds == Bounds()
    assert settings.keeper.site_default is None
    assert settings.keeper.state_dir == "/var/lib/joulecut"
    assert settings.keeper.power_safe == "recorded"
    assert settings.keeper.restore_jitter_s == 0.0
    assert settings.keeper.stop_file == "/var/lib/joulecut/stop"
    assert settings.keeper.journal_dir == ""


def test_everything_is_read_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    settings = _load(tmp_path, COMPLETE)
    assert settings.options == {"cards": 2}
    assert settings.node == "n7"
    assert settings.metrics == ("0.0.0.0", 9430)
    assert settings.grpc == ("::1", 0)
    assert settings.socket == str(tmp_path / "run/jobs.sock")
    assert settings.keeper.state_dir == str(tmp_path / "state")
    assert settings.keeper_mode == str(tmp_path / "run/keeper.sock")
    assert settings.keeper.bounds == Bounds(20.0, 600, 1305, 5.0, 6, 0.25, 200.0, 450.0)
    assert settings.keeper.power_safe == 350_500
    assert settings.keeper.restore_jitter_s == 8.0
    assert settings.keeper.stop_file == str(tmp_path / "run/stop")
    assert settings.keeper.journal_dir == str(tmp_path / "run/fast")
    assert settings.keeper.site_default == (210, 1290)


def test_a_folder_that_links_to_itself_is_no_fault_of_reading(tmp_path: Path) -> None:
    """Making it fails, in one line."""
    (tmp_path / "agent.yaml").write_text(f"{SMALLEST}state_dir: loop\n")
    (tmp_path / "loop").symlink_to("loop")
    assert config.load(tmp_path / "agent.yaml").keeper.journal_dir == ""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "agent.yaml:1: no value is not a mapping"),
        ("node: n1", "agent.yaml:1: device: key missing; allowed: device, "),
        ("device: simulated\nnode: 'a b'", 'agent.yaml:2: node: "a b"'),
        ("device: simulated\nlisten: {grpc: 'node7:9431'}", "node7 without encryption"),
        ("device: simulated\nlease: {ttl_s_max: 600}", "a number from 0.1 to 60"),
        ("device: simulated\nbounds: {writes_per_minute: 1.5}", "a whole number from 1 to 600"),
        (
            "device: simulated\nbounds: {clock_min_mhz: 900, clock_max_mhz: 600}",
            "bounds.clock_min_mhz: 900 MHz; allowed: at most 600 MHz",
        ),
        ("device: simulated\nsite_default: {clock_min_mhz: 600}", "site_default: no clock_max_mhz"),
        ("device: simulated\npower: {safe: off}", "power.safe: false is not a number"),
        ("device: simulated\npower: {safe: never}", "recorded, keep, or watts from 1 to 10000"),
        (
            "device: simulated\nbounds: {power_min_w: 400, power_max_w: 300}",
            "bounds.power_min_w: 400 W; allowed: at most 300 W",
        ),
        ("device: simulated\nkeeper: maybe", 'keeper: "maybe"; allowed: child, none, or a path'),
        ("device: simulated\nstate_dir: " + "x" * 120, "state_dir: "),
        ('device: simulated\nlisten: {metrics: "127.0.0.1\\0:1"}', "listen.metrics: "),
        (
            "device: simulated\nlisten: {metrics: 'a b:1'}",
            '"a b:1" is not an address; allowed: host',
        ),
    ],
)
def test_a_wrong_value_is_one_line_with_its_place(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(BadInput) as caught:
        _load(tmp_path, text)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "agent.yaml") in str(caught.value)


def test_an_unknown_key_warns_and_stops_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = _load(
        tmp_path,
        "device: simulated\nlisten: {metric: 'x'}\nlaese: {}\nbounds: {ttl: 3}\nnvml: {}\n",
    )
    assert settings.metrics == ("127.0.0.1", 9430)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "agent.yaml:2: listen.metric: unknown key is ignored" in lines[0]
    assert "agent.yaml:3: laese: unknown key is ignored; allowed: device, " in lines[1]
    assert "agent.yaml:4: bounds.ttl: unknown key is ignored" in lines[2]
    assert settings.keys_ignored == 3
