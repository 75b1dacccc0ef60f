"""What a health check reads about a GPU that is slow on purpose."""

import json
from dataclasses import replace
from pathlib import Path

from joulecut_agent.control.slowdown_notice import SlowdownNoticeFile, notice_of
from joulecut_wire.messages import Lease

LEASE = Lease("demo", 1, 1, 0, 1200, 20.0)


def test_no_kernel_loses_more_than_its_clock() -> None:
    assert notice_of(LEASE, "slack", 1980, 1000.0).max_slowdown_ratio == 0.65
    assert notice_of(replace(LEASE, clock_max_mhz=1980), "", 1980, 0.0).max_slowdown_ratio == 0.0
    limited = replace(LEASE, power_limit_w=400.0)
    assert notice_of(limited, "", 1980, 0.0).max_slowdown_ratio is None


def test_a_heartbeat_makes_no_new_series_and_seldom_a_new_file() -> None:
    first, second = (notice_of(LEASE, "slack", 1980, now_s) for now_s in (7200.0, 7203.0))
    assert first.until_unix_s >= 7220.0
    assert second.until_unix_s - first.until_unix_s in {0.0, 10.0}


def test_the_file_is_replaced_whole_and_only_for_news(tmp_path: Path) -> None:
    file = SlowdownNoticeFile(tmp_path / "intent.json")
    slowdown_notices = {"GPU-0": notice_of(LEASE, "x" * 999, 1980, 0.0)}
    file.write(slowdown_notices)
    told = json.loads((tmp_path / "intent.json").read_text())["gpus"]["GPU-0"]
    assert (told["job"], len(told["reason"]), told["until_unix_s"]) == ("demo", 160, 20.0)
    inode = (tmp_path / "intent.json").stat().st_ino
    file.write(dict(slowdown_notices))
    assert (tmp_path / "intent.json").stat().st_ino == inode
    file.write({})
    assert json.loads((tmp_path / "intent.json").read_text()) == {"gpus": {}}
    assert [path.name for path in tmp_path.iterdir()] == ["intent.json"]
    file.remove()
    file.remove()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_gone_is_said_and_survived(tmp_path: Path) -> None:
    file = SlowdownNoticeFile(tmp_path / "gone" / "intent.json")
    file.write({"GPU-0": notice_of(LEASE, "", 1980, 0.0)})
    (tmp_path / "gone").mkdir()
    file.write({"GPU-0": notice_of(LEASE, "", 1980, 0.0)})
    assert (tmp_path / "gone" / "intent.json").exists(), "tried again until it is there"
