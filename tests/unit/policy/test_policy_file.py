"""The policy on disk: what counts as a change, and that a broken file changes nothing."""

import os
import time
from pathlib import Path

import pytest

from joulecut_controller.sources.policy_file import SETTLED_NS, PolicyFile, load
from joulecut_wire.errors import BadInput

POLICY = """\
apiVersion: joulecut/v1
kind: Policy
jobs:
  - name: a
    slo: {max_slowdown: 2%}
    pipeline: {schedule: 1f1b, stages: 1, microbatches: 4, profile: sub/p.csv, blocking_power_w: 80}
"""
PROFILE = """\
stage,instruction,frequency,time,energy
0,forward,1410,0.05,24
0,backward,1410,0.09,44
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/p.csv").write_text(PROFILE)
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path / "policy.yaml"


def _settle(file: Path) -> None:
    """Waits until the file is old enough for its times to be trusted."""
    while time.time_ns() - file.stat().st_ctime_ns < SETTLED_NS:
        time.sleep(0.05)


def test_the_newest_policy_is_the_one_before_until_it_changes(file: Path) -> None:
    source = PolicyFile(file)
    before = source.load()
    assert source.newest(before) is before
    file.write_text("jobs: nonsense")
    for _ in range(2):  # of a broken file there is none, however often it is asked for
        with pytest.raises(BadInput):
            source.newest(before)
    file.write_text(POLICY.replace("2%", "3%"))
    assert source.newest(before).digest != before.digest


def test_a_change_of_the_policy_is_seen_and_loaded(file: Path) -> None:
    source = PolicyFile(file)
    before = source.load()
    file.write_text(POLICY.replace("2%", "3%"))  # same size, perhaps within one clock tick
    assert source.changed()
    after = source.load()
    assert after.jobs[0].slo.max_slowdown == pytest.approx(0.03)
    assert after.digest != before.digest
    assert not source.changed()


def test_a_touched_file_is_no_change(file: Path) -> None:
    source = PolicyFile(file)
    before = source.load()
    file.touch()
    assert not source.changed()
    assert source.load().digest == before.digest


def test_a_change_of_a_settled_file_is_seen_too(file: Path) -> None:
    _settle(file)
    source = PolicyFile(file)
    source.load()
    assert not source.changed()
    assert not source.changed(), "also where nothing is read again"
    before = file.stat()
    file.write_text(POLICY.replace("2%", "3%"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as `cp -p` would
    assert source.changed()


def test_a_file_replaced_as_a_config_map_is_seen(file: Path, tmp_path: Path) -> None:
    """Kubernetes mounts a link to a folder and turns the link over."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "one/policy.yaml").write_text("apiVersion: joulecut/v1\nkind: Policy\n")
    (tmp_path / "two/policy.yaml").write_text("apiVersion: joulecut/v1\nkind: Policy\nmode: off\n")
    link = tmp_path / "current"
    link.symlink_to("one")
    source = PolicyFile(link / "policy.yaml")
    assert source.load().mode == "recommend"
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(link)
    assert source.changed()
    assert source.load().mode == "off"


def test_a_broken_file_is_news_once(file: Path) -> None:
    source = PolicyFile(file)
    source.load()
    file.write_text(POLICY.replace("2%", "2"))
    assert source.changed()
    with pytest.raises(BadInput, match="max_slowdown"):
        source.load()
    assert not source.changed()
    file.write_text(POLICY)
    assert source.changed()
    assert source.load().jobs[0].slo.max_slowdown == pytest.approx(0.02)


def test_a_profile_named_twice_is_read_once(file: Path) -> None:
    job = POLICY.split("jobs:\n")[1]
    file.write_text(POLICY + job.replace("name: a", "name: b"))
    first, second = load(file).jobs
    assert first.profile is second.profile


def test_too_much_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    huge = tmp_path / "policy.yaml"
    with huge.open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(BadInput, match="at most 1048576"):
        load(huge)


@pytest.mark.parametrize("what", ["missing", "pipe", "folder", "profile pipe", "endless"])
def test_what_is_no_file_is_refused_without_waiting_for_it(file: Path, what: str) -> None:
    source = PolicyFile(file)
    source.load()
    place = file.parent / "sub/p.csv" if what == "profile pipe" else file
    place.unlink()
    if what == "folder":
        place.mkdir()
    elif what == "endless":
        place.symlink_to("/dev/zero")
    elif what != "missing":
        os.mkfifo(place)
    assert source.changed()
    wrong = r"not a regular file|[Ii]s a directory|No such file"
    with pytest.raises(BadInput, match=wrong) as refused:
        source.load()
    assert len(str(refused.value).splitlines()) == 1
    assert not source.changed()
    if what == "folder":
        place.rmdir()
    else:
        place.unlink(missing_ok=True)
    place.write_text(PROFILE if what == "profile pipe" else POLICY)
    assert source.changed()
    assert source.load().jobs[0].profile is not None
