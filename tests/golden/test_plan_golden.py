"""What `joulecut plan` and `joulecut frontier` print for people, as text to be read."""

import re
from pathlib import Path

import pytest
from golden_text import same_as_golden

from joulecut_cli.main import dispatch

KEPT = Path(__file__).parent / "plan"
HEADER = "stage,instruction,frequency,time,energy\n"
# Three stages; the last is heavier, as the one with the head is. Rounded physics.
CLOCKS = ((1410, 1.00, 1.00), (1305, 1.04, 0.91), (1200, 1.10, 0.82), (1050, 1.21, 0.75))
STAGES = (1.0, 1.0, 1.15)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    rows = [
        f"{stage},{kind},{clock},{0.05 * work * time:.6f},{24 * work * energy:.4f}"
        for stage, heavy in enumerate(STAGES)
        for kind, work in (("forward", heavy), ("backward", 1.9 * heavy))
        for clock, time, energy in CLOCKS
    ]
    (tmp_path / "profile.csv").write_text(HEADER + "\n".join(rows) + "\n")
    (tmp_path / "job.yaml").write_text(
        "pipeline: {schedule: 1f1b, stages: 3, microbatches: 6}\n"
        "profile: profile.csv\n"
        "blocking_power_w: 80\n"
    )
    monkeypatch.chdir(tmp_path)
    return "job.yaml"


CASES = {
    "plan": ("plan",),
    "plan-slower": ("plan", "--max-slowdown", "5%"),
    "plan-gpu": ("plan", "--max-slowdown", "5%", "--granularity", "gpu"),
    "plan-changes": ("plan", "--max-slowdown", "5%", "--granularity", "changes"),
    "frontier": ("frontier", "--points", "8"),
    "frontier-gpu": ("frontier", "--points", "6", "--granularity", "gpu"),
    "frontier-all": ("frontier", "--points", "12", "--granularity", "all"),
}


@pytest.mark.parametrize("case", CASES)
def test_text(case: str, job: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, *flags = CASES[case]
    assert dispatch([command, job, *flags]) == 0
    # How long it took is the one thing that differs.
    same_as_golden(
        KEPT / f"{case}.txt", re.sub(r"in \d+\.\d\d s", "in T s", capsys.readouterr().out)
    )
