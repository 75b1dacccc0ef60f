"""The shipped systemd units say what systemd understands, and restore after every end."""

import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"


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


def test_the_agent_restores_whatever_ended_it() -> None:
    text = (UNITS / "joulecut-agent.service").read_text()
    start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    after = next(line for line in text.splitlines() if line.startswith("ExecStopPost="))
    assert after == start.replace("ExecStart=", "ExecStopPost=").replace(" run ", " restore ")


def test_the_agent_tells_systemd_how_it_is() -> None:
    lines = (UNITS / "joulecut-agent.service").read_text().splitlines()
    assert {"Type=notify", "NotifyAccess=main", "WatchdogSec=30"} <= set(lines)


EXPOSURE_TENTHS = {"joulecut-agent.service": 25, "joulecut-controller.service": 25}


@pytest.mark.parametrize("unit", sorted(EXPOSURE_TENTHS))
def test_a_unit_is_hardly_exposed(unit: str) -> None:
    """As `systemd-analyze security` counts it, from 0 to 10; it fails above the threshold."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here (Debian package systemd)")
    most = f"--threshold={EXPOSURE_TENTHS[unit]}"
    judged = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", most, str(UNITS / unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Overall exposure level" in judged.stdout, judged.stderr
    assert judged.returncode == 0, judged.stdout


def test_the_driver_stays_within_reach_of_the_agent() -> None:
    """Settings that look harmless and shut the devices out: a list of devices that lacks them,
    as ProtectClock= alone begins one, and views of /proc without the driver or other processes.
    """
    lines = set((UNITS / "joulecut-agent.service").read_text().splitlines())
    assert "DeviceAllow=char-nvidia* rw" in lines
    assert "CapabilityBoundingSet=CAP_SYS_ADMIN" in lines
    barred = {"PrivateDevices", "PrivateUsers", "PrivateNetwork", "ProcSubset", "ProtectProc"}
    assert not {line.partition("=")[0] for line in lines} & {*barred, "MemoryDenyWriteExecute"}


def test_the_agent_may_ask_for_a_shorter_slice_and_for_no_other_share() -> None:
    """Lines are worked off one by one: what a later one names alone is allowed again."""
    lines = (UNITS / "joulecut-agent.service").read_text().splitlines()
    filters = [line.partition("=")[2] for line in lines if line.startswith("SystemCallFilter=")]
    assert filters == ["@system-service", "~@resources", "sched_setattr"]
    assert "RestrictRealtime=yes" in lines
