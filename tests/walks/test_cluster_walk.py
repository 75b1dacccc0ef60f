"""Walks of a cluster on a virtual clock, and the judge's own tests: what is planted is found."""

import importlib.util
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
STEPS, STEPS_NIGHTLY = 3_000, 200_000  # half a minute, and forty, of a processor
CONTRACT = {
    "gpus": {"n0": ["a", "b"], "n3": ["z"]},
    "protected": ["n0"],
    "budget_w": 1000.0,
    "liar_w": 50.0,
    "interval_s": 0.5,
    "ttl_s": 12.0,
}


def judged(*events: dict[str, Any]) -> list[str]:
    about = importlib.util.spec_from_file_location("cluster_judge", HERE / "cluster_judge.py")
    judge = importlib.util.module_from_spec(about)
    about.loader.exec_module(judge)
    return judge.violations(
        [{"at_s": float(n), **event} for n, event in enumerate(events)], CONTRACT
    )


STARTED, CALM = {"what": "started"}, {"what": "calm", "on": True}
LIMITS = {"what": "limits", "sum_w": 1500.0, "drawn_w": 800.0, "held": True}
WITHIN = {**LIMITS, "sum_w": 900.0}
DRAWN = {**WITHIN, "drawn_w": 1100.0}
COMMAND = {
    "what": "command", "node": "n0", "epoch": 1, "uuids": ["a"], "clear": False, "reason": "",
}  # fmt: skip
CLEAR = {**COMMAND, "clear": True}
CLAIMS = {"what": "claims", "held": True, "shares": [2, 1]}
SENT = {"what": "sent", "node": "n0", "leads": True, "ttl_s": 9.0}


def test_a_good_walk_breaks_nothing() -> None:
    reload, storm = {"what": "reloaded", "node": "n0"}, {"what": "calm", "on": False}
    memory = [{"what": "memory", "pid": 1, "mib": mib} for mib in (900.0, 100.0, 200.0)]
    assert not judged(
        STARTED, COMMAND, memory[0], LIMITS, CALM, COMMAND, *memory[1:], reload, LIMITS, WITHIN,
        SENT, CLAIMS,
        {**CLEAR, "reason": "default clocks for 12 iterations"}, {**WITHIN, "held": False},
        storm, WITHIN, DRAWN, WITHIN, {"what": "revoked"}, {**SENT, "leads": False},
        reload, *[DRAWN] * 9,
        {"what": "expired", "node": "n0"}, CLEAR,
        {"what": "ended", "wanted": True, "status": -9},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ([{"what": "ended", "wanted": False, "status": 1}], "ended by itself"),
        ([{**COMMAND, "uuids": ["z"]}], "GPUs that it has not"),
        ([{**COMMAND, "epoch": 2}], "epoch 2 after 1 starts"),
        ([{**CLEAR, "reason": "GPU z of n3 has no reading"}], "is cleared: GPU z of n3"),
        ([{**WITHIN, "held": False}] * 60, "not held for 45 s"),
        ([{**SENT, "leads": False}], "does not lead"),
        ([{**CLAIMS, "held": False}] * 20, "not divided for 15 s"),
        ([{**SENT, "ttl_s": 60.0}], "a lease of 60.0 s"),
        ([{"what": "crashed", "text": "ValueError"}], "a part of a controller ended: ValueError"),
        ([{"what": "expired", "node": "n0"}], "ran out while others lie"),
        ([{"what": "unsettled", "after_s": 90.0}], "not held 90 s after"),
        ([LIMITS], "limits of 1500 W"),
        ([{"what": "reloaded", "node": "n0"}, *[LIMITS] * 5], "limits of 1500 W"),
        ([{"what": "calm", "on": False}, LIMITS], "limits of 1500 W"),
        ([DRAWN] * 3, "1100 W, 1000 W allowed"),
        ([{"what": "reloaded", "node": "n0"}, *[DRAWN] * 6], "1100 W, 1000 W allowed"),
        ([{"what": "calm", "on": False}, *[DRAWN] * 3], "1100 W, 1000 W allowed"),
        ([{"what": "memory", "pid": 1, "mib": mib} for mib in (100.0, 600.0)], "600 MiB"),
    ],
)
def test_what_is_planted_is_found(planted: list[dict[str, Any]], said: str) -> None:
    found = judged(STARTED, CALM, COMMAND, *planted)
    assert any(said in text for text in found), found


def test_jobs_that_one_controller_keeps_are_found() -> None:
    assert judged(STARTED, CALM, *[{**CLAIMS, "shares": [3, 0]}] * 80)


def _walk(steps: int, seed: int = 1) -> str:
    """What it printed of itself."""
    script = str(HERE / "cluster_walk.py")
    command = [sys.executable, script, "--seed", str(seed), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_a_seed_repeats_its_walk() -> None:
    assert len({_walk(400, 5).rpartition("digest")[2] for _ in range(2)}) == 1


@pytest.mark.long
@pytest.mark.smoke
def test_no_lie_and_no_fault_reaches_another_node() -> None:
    _walk(STEPS)


@pytest.mark.nightly
def test_no_lie_and_no_fault_reaches_another_node_in_a_night() -> None:
    _walk(STEPS_NIGHTLY, random.randrange(2**31))
