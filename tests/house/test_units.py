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
