"""The shipped systemd units: two users with exactly what each needs; restored at every end."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"


def directives(unit: str) -> dict[str, list[str]]:
    """Values by key, in order."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / f"joulecut-{unit}.service").read_text().splitlines():
        if re.match(r"\w+=", line):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


AGENT, KEEPER = directives("agent"), directives("keeper")


@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_systemd_finds_nothing_to_complain_about(unit: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here (Debian package systemd)")
    # The binaries are not installed where tests run; everything else is judged as shipped.
    text = (UNITS / unit).read_text().replace("/opt/joulecut/bin/", "/bin/")
    for command in ("joulecut-agent", "joulecut-controller"):
        text = text.replace(f"/bin/{command}", "/bin/true")
    (tmp_path / unit).write_text(text)
    judged = subprocess.run(
        [analyze, "verify", str(tmp_path / unit)], capture_output=True, text=True, check=False
    )
    ours = [line for line in judged.stderr.splitlines() if unit in line]
    assert judged.returncode == 0, judged.stderr
    assert not ours


def test_the_keeper_restores_whatever_ended_it() -> None:
    (start,), (after,) = KEEPER["ExecStart"], KEEPER["ExecStopPost"]
    assert after == start.replace(" keeper ", " restore --keep-power-limits ")
    assert KEEPER["Restart"] == ["always"]
    assert KEEPER["RuntimeDirectoryPreserve"] == ["yes"], "the journal outlives the process"


def test_both_report_to_systemd_and_a_stopped_keeper_is_killed() -> None:
    for unit in (AGENT, KEEPER):
        assert (unit["Type"], unit["NotifyAccess"]) == (["notify"], ["main"])
    assert AGENT["WatchdogSec"] == ["30"]
    assert int(KEEPER["WatchdogSec"][0]) <= 5, "its leases do not run out meanwhile"
    assert KEEPER["WatchdogSignal"] == ["SIGKILL"], "a stopped process reacts to no other"


EXPOSURE_TENTHS = {"agent": 20, "keeper": 20, "controller": 20}


@pytest.mark.parametrize("unit", sorted(EXPOSURE_TENTHS))
def test_a_unit_is_hardly_exposed(unit: str) -> None:
    """As `systemd-analyze security` counts it, from 0 to 10; it fails above the threshold."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here (Debian package systemd)")
    most, path = f"--threshold={EXPOSURE_TENTHS[unit]}", UNITS / f"joulecut-{unit}.service"
    judged = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", most, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Overall exposure level" in judged.stdout, judged.stderr
    assert judged.returncode == 0, judged.stdout


def test_agent_and_keeper_are_different_users() -> None:
    assert (AGENT["User"], AGENT["CapabilityBoundingSet"]) == (["joulecut-agent"], [""])
    assert (KEEPER["User"], KEEPER["CapabilityBoundingSet"]) == (["root"], ["CAP_SYS_ADMIN"])
    assert (KEEPER["PrivateNetwork"], KEEPER["RestrictAddressFamilies"]) == (["yes"], ["AF_UNIX"])
    for unit in (AGENT, KEEPER):
        assert unit["NoNewPrivileges"] == ["yes"]
        assert not unit.keys() & {"AmbientCapabilities"}
    users = (UNITS / "joulecut.sysusers").read_text()
    assert "u joulecut-agent " in users
    groups = {*AGENT["SupplementaryGroups"][0].split(), *KEEPER["Group"]}
    assert groups == {"joulecut", "joulecut-keeper"}
    assert all(f"g {group} " in users for group in groups)


@pytest.mark.parametrize("unit", [AGENT, KEEPER])
def test_the_driver_stays_within_reach(unit: dict[str, list[str]]) -> None:
    """Settings that look harmless and shut the devices out: a list of devices that lacks them,
    as ProtectClock= alone begins one, and views of /proc without the driver.
    """
    assert unit["DeviceAllow"] == ["char-nvidia* rw"]
    assert not unit.keys() & {
        "PrivateDevices", "PrivateUsers", "ProcSubset", "MemoryDenyWriteExecute",
    }  # fmt: skip
    assert not AGENT.keys() & {"PrivateNetwork", "ProtectProc"}, "it sees the jobs' processes"


def test_both_may_ask_for_a_shorter_slice_and_for_no_other_share() -> None:
    """Lines are worked off one by one: what a later one names alone is allowed again."""
    denied = "~@privileged @resources @keyring @aio"
    assert KEEPER["SystemCallFilter"] == ["@system-service", denied]
    assert AGENT["SystemCallFilter"] == ["@system-service", denied, "@chown"]
    assert AGENT["RestrictRealtime"] == KEEPER["RestrictRealtime"] == ["yes"]
