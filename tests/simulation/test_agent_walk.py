"""Thousands of steps over all that may befall a keeper, its promises checked from outside.

No GPU stays locked or limited by us without a live lease for longer than the restores may be
spread; none is written that no command named; no intent is missing on disk when a write comes.
The keeper is the real one, its time and world are not (`faulty_node`). The check knows what was
promised by accepted answers, and what stands on the cards; never what the keeper believes.
"""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from keeper_walk import Walk

from joulecut_agent.keeper import keeper as module

STEPS = int(os.environ.get("JOULECUT_WALK_STEPS", "1000"))
CAP_MW = 180_000
SITES: dict[str, dict[str, Any]] = {
    "plain": {},
    "spread": {"restore_jitter_s": 10.0},
    "capped": {"power_safe": CAP_MW, "site_default": (0, 1410)},
    "kept": {"power_safe": "keep", "restore_jitter_s": 3.0},
    "apart": {"journal_dir": "memory"},
}


@pytest.mark.parametrize("steps", [STEPS, pytest.param(40 * STEPS, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("site", SITES)
def test_no_gpu_is_left_locked_and_none_is_touched_outside_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: str, steps: int
) -> None:
    seed = 1 + 1000 * list(SITES).index(site)
    print(f"seed {seed}, site {site}")
    monkeypatch.setattr(module, "BOOT_ID", tmp_path / "boot_id")
    walk = Walk(tmp_path, SITES[site], seed)
    monkeypatch.setattr(time, "monotonic", lambda: walk.clock.now_s)
    monkeypatch.setattr(time, "time", lambda: walk.clock.wall_s)
    monkeypatch.setattr(time, "sleep", walk.clock.sleep)
    for name in ("write", "fsync", "rename"):
        monkeypatch.setattr(os, name, getattr(walk.disk, name))
    try:
        walk.begin()
        for _ in range(steps):
            walk.step()
    except BaseException:
        print(f"seed {seed}, site {site}: {walk.counts}", *walk.history, sep="\n")
        raise
    counts = walk.counts
    print(counts)
    assert counts["accepted"] > steps / 20, "a walk in which nothing is locked shows nothing"
    assert counts["held"] > steps / 5
    assert counts["stepped"] > steps / 100
