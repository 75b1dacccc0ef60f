"""Unused GPUs in a policy: what is allowed, and that clocks of theirs are never asked for."""

from pathlib import Path

import pytest

from joulecut_controller.sources.policy_file import load
from joulecut_wire.errors import BadInput


def written(folder: Path, idle: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(f"apiVersion: joulecut/v1\nkind: Policy\nidle: {idle}\n")
    return path


def test_unused_gpus_are_recommended_about_by_default(tmp_path: Path) -> None:
    idle = load(written(tmp_path, "{}")).idle
    assert (idle.after_s, idle.mode) == (300.0, "recommend")
    assert load(written(tmp_path, "{after: 20min, mode: 'off'}")).idle.after_s == 1200.0


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        ("{mode: enforce}", 'idle.mode: "enforce" is not allowed; allowed: recommend | off'),
        ("{after: 5s}", "idle.after: 5 s is out of range; allowed: a time from 1min to 24h"),
        ("{after: 2d}", 'idle.after: "2d" is out of range'),
        ("{before: 5min}", "idle.before: unknown key"),
    ],
)
def test_bad_values_are_refused_by_place(tmp_path: Path, idle: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        load(written(tmp_path, idle))
    assert said in str(refused.value)
