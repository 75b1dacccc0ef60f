"""Seeded random walks over real agents and keepers, judged from outside (`README.md`).

5,000 steps in a run of CI, 100,000 at night: a walk on each kind of site, side by side. The seed is
drawn, except in CI, and printed; `JOULECUT_WALK_SEED` chooses one.
"""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Of the steps of a run; the controllers of the last site act once in half a second.
SITES = {"child": 0.245, "unit": 0.245, "locked": 0.245, "capped": 0.245, "led": 0.02}
STEPS, STEPS_NIGHTLY = 5_000, 100_000
SHRINK_S = 120


def _walk(site: str, steps: int) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: it compiles the fake NVML library")
    drawn = 1 if os.environ.get("CI") else random.randrange(2**31)
    seed = os.environ.get("JOULECUT_WALK_SEED", str(drawn))
    command = [sys.executable, str(Path(__file__).parent), "--site", site, "--seed", seed]
    done = subprocess.run(
        [*command, "--steps", str(steps), "--shrink-s", str(SHRINK_S)],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("site", SITES)
def test_no_promise_is_broken(site: str) -> None:
    _walk(site, round(STEPS * SITES[site]))


@pytest.mark.nightly
@pytest.mark.parametrize("site", SITES)
def test_no_promise_is_broken_in_a_night(site: str) -> None:
    _walk(site, round(STEPS_NIGHTLY * SITES[site]))
