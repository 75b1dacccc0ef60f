"""What properties draw: the same in every run, and again from the seed of a fresh run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PROPERTY = """
import json, pathlib, {imported}
from hypothesis import given, strategies as st

drawn = []

@given(st.integers(), st.text(max_size=5))
def test_property(number, text):
    drawn.append([number, text])

def test_what_was_drawn():
    pathlib.Path("drawn").write_text(json.dumps(drawn))
"""


def _drawn(
    folder: Path, *options: str, imported: str = "json", env: dict[str, str] | None = None
) -> tuple[list[object], str]:
    """Every example of a property in a file alone, under the settings of these tests; and the
    words of the run."""
    (folder / "test_it.py").write_text(PROPERTY.format(imported=imported))
    words = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", *options]
    given = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*words, "test_it.py"], cwd=folder, capture_output=True, text=True, check=False,
        env={**given, "PYTHONPATH": f"{TESTS}{os.pathsep}{folder}", **(env or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "drawn").read_text()), done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a module full of constants, of which a property knows nothing."""
    (tmp_path / "constants.py").write_text(f"ALL = {list(range(10**6, 10**6 + 500))}\n")
    return tmp_path


def test_every_run_draws_the_same_whatever_is_set_or_was_imported(folder: Path) -> None:
    usual, _ = _drawn(folder, env={"CI": ""})
    assert len(usual) >= 30  # of the profile `fixed`
    assert _drawn(folder, imported="constants", env={"CI": "1"})[0] == usual


@pytest.mark.nightly  # where runs are fresh
def test_the_seed_of_a_fresh_run_repeats_it_with_the_file_alone(folder: Path) -> None:
    fresh, said = _drawn(folder, "--hypothesis-profile=fresh", imported="constants")
    (seed,) = re.findall(r"--hypothesis-seed=\d+", said)
    assert _drawn(folder, seed)[0] == fresh
