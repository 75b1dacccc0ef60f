"""Profiles beside the policy and in a folder: found and followed."""

from pathlib import Path

import pytest

from joulecut_controller.sources.policy_file import PolicyFile
from joulecut_wire.errors import BadInput

POLICY = """\
apiVersion: joulecut/v1
kind: Policy
jobs:
  - name: a
    slo: {max_slowdown: 2%}
    pipeline: {schedule: 1f1b, stages: 1, microbatches: 4, profile: a.csv, blocking_power_w: 80}
"""


def profile(time_s: float) -> str:
    rows = f"0,forward,1410,{time_s},24\n0,backward,1410,0.09,44\n"
    return f"stage,instruction,frequency,time,energy\n{rows}"


@pytest.fixture
def policy(tmp_path: Path) -> PolicyFile:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "policy.yaml").write_text(POLICY)
    return PolicyFile(tmp_path / "policy.yaml", profiles=tmp_path / "profiles")


def forward_s(policy: PolicyFile) -> float:
    loaded = policy.load().jobs[0].profile
    return loaded.options[0, "forward"][0].time_s


def test_each_place_is_found_and_the_file_beside_the_policy_wins(
    tmp_path: Path, policy: PolicyFile
) -> None:
    with pytest.raises(BadInput, match="No such file"):
        policy.load()
    assert not policy.changed()
    digests = set()
    for n, place in enumerate((tmp_path / "profiles/a.csv", tmp_path / "a.csv"), 1):
        for time_s in (0.01 * n, 0.011 * n):
            place.write_text(profile(time_s))
            assert policy.changed(), time_s
            assert forward_s(policy) == time_s
            digests.add(policy.load().digest)
            assert not policy.changed()
    assert len(digests) == 4
    (tmp_path / "a.csv").unlink()
    assert policy.changed()
    assert forward_s(policy) == 0.011
    (tmp_path / "profiles/a.csv").unlink()
    assert policy.changed()
    with pytest.raises(BadInput, match="No such file"):
        policy.load()


def test_a_path_in_another_folder_is_that_file_alone(tmp_path: Path, policy: PolicyFile) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY.replace("a.csv", "../a.csv"))
    (tmp_path / "profiles/a.csv").write_text(profile(0.01))
    with pytest.raises(BadInput, match="No such file"):
        policy.load()
