"""What `joulecut fit` prints for people, as text to be read."""

from pathlib import Path

import pytest
from golden_text import same_as_golden

from joulecut_cli.main import dispatch

KEPT = Path(__file__).parent / "fit"
HEADER = "stage,instruction,frequency,time,energy\n"
# Two stages on a card of which nothing is known; rounded physics, power in watts.
CLOCKS = ((1500, 1.0, 400), (1400, 1.05, 360), (1300, 1.11, 315), (1200, 1.18, 280))
LOWER = ((1100, 1.26, 250), (1000, 1.36, 235), (900, 1.48, 220))


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, scale in (("sweep.csv", 1.0), ("other.csv", 3.0)):
        rows = [
            f"{stage},{kind},{clock},{0.05 * work * time:.6f},{0.05 * work * time * power:.4f}"
            for stage in (0, 1)
            for kind, work in (("forward", scale), ("backward", 1.9 * scale))
            for clock, time, power in (*CLOCKS, *LOWER)
        ]
        (tmp_path / name).write_text(HEADER + "\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)


CASES = {
    "five": ("--probes", "1500,1300,1200,1000,900"),
    "two-and-others": ("--probes", "1500,900", "--also", "other.csv"),
    "one": ("--probes", "1500"),
}


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize("case", CASES)
def test_text(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["fit", "sweep.csv", *CASES[case]]) == 0
    same_as_golden(KEPT / f"{case}.txt", capsys.readouterr().out)
