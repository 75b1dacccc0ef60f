"""Seeded random walks over real agents and keepers, judged from outside (`README.md`).

400 steps in a run of CI, 5,000 in `make test-long`, 100,000 at night: a walk on each kind of site,
side by side. At night the seed is drawn; it is printed in any case.
"""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Of the steps of a run; the controllers of the last site act once in half a second.
SITES = {"child": 0.245, "unit": 0.245, "locked": 0.245, "capped": 0.245, "led": 0.02}
STEPS_CI, STEPS_LONG, STEPS_NIGHTLY = 400, 5_000, 100_000
SHRINK_S = 120
SEED_CI = 1
FOUND = sorted(Path(__file__).parent.glob("found/*.json"))  # SITE-WORDS: walks that broke a promise


def _walk_everywhere(steps: int, seed: int = SEED_CI) -> None:
    """One walk a site, all at once: they wait more than they compute."""
    asked = ["--seed", str(seed), "--shrink-s", str(SHRINK_S)]
    _all_pass(
        [
            [*asked, "--site", site, "--steps", str(round(steps * share))]
            for site, share in SITES.items()
        ]
    )


def _all_pass(walks: list[list[str]]) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: it compiles the fake NVML library")
    running = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).parent), *walk],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for walk in walks
    ]
    said = [walk.communicate()[0] for walk in running]
    print("".join(said))
    broken = [text for walk, text in zip(running, said, strict=True) if walk.returncode]
    assert not broken, "".join(broken)


@pytest.mark.long
@pytest.mark.first  # takes minutes and little processor time
@pytest.mark.parametrize("steps", [pytest.param(STEPS_CI, marks=pytest.mark.smoke), STEPS_LONG])
def test_no_promise_is_broken(steps: int) -> None:
    _walk_everywhere(steps)


@pytest.mark.long
@pytest.mark.smoke
@pytest.mark.parametrize("steps", FOUND, ids=lambda file: file.stem)
def test_what_once_broke_a_promise_breaks_none(steps: Path) -> None:
    site = steps.stem.partition("-")[0]
    _all_pass([["--shrink-s", "0", "--site", site, "--replay", str(steps)]])


@pytest.mark.nightly
def test_no_promise_is_broken_in_a_night() -> None:
    _walk_everywhere(STEPS_NIGHTLY, random.randrange(2**31))
