"""Unused GPUs in a policy: what is allowed, and that clocks of theirs are never asked for."""

from pathlib import Path

from joulecut_controller.sources.policy_file import load


def written(folder: Path, idle: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(f"apiVersion: joulecut/v1\nkind: Policy\nidle: {idle}\n")
    return path


def test_unused_gpus_are_recommended_about_by_default(tmp_path: Path) -> None:
    idle = load(written(tmp_path, "{}")).idle
    assert (idle.after_s, idle.mode) == (300.0, "recommend")
    assert load(written(tmp_path, "{after: 20min, mode: 'off'}")).idle.after_s == 1200.0
