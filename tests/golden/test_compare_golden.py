"""What `joulecut compare` prints for people, as text to be read."""

import re
from pathlib import Path

import pytest
from golden_text import same_as_golden
from jobs import write_job

from joulecut_cli.main import dispatch

KEPT = Path(__file__).parent / "compare"
CASES: dict[str, tuple[str, ...]] = {
    "compare": (),
    "compare-all": ("--max-slowdown", "2,5", "--straggler", "1.1,1.3", "--kwh", "0.3"),
}


@pytest.mark.parametrize("case", CASES)
def test_text(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert dispatch(["compare", "job.yaml", *CASES[case]]) == 0
    # How long it took is the one thing that differs.
    text = re.sub(r" +\d+\.\d\d s$", "  T s", capsys.readouterr().out, flags=re.MULTILINE)
    same_as_golden(KEPT / f"{case}.txt", re.sub(r" +took$", "  took", text, flags=re.MULTILINE))
