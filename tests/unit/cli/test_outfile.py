"""Files that flags ask for: all of them or none, and what was there stays until then."""

import os
from pathlib import Path

import pytest

from joulecut_cli.outfile import checked, replacing
from joulecut_wire.errors import BadInput

NOBODY_IS_BARRED = os.geteuid() == 0  # root may write anywhere


def test_an_error_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    kept = tmp_path / "plan.html"
    kept.write_text("before")

    def half(path: Path) -> None:
        with replacing(path) as spare, spare.open("w") as file:
            file.write("half of")
            raise OSError(28, "No space left on device")

    for path in (kept, tmp_path / "new.html"):
        with pytest.raises(OSError, match="No space left"):
            half(path)
    assert kept.read_text() == "before"
    assert os.listdir(tmp_path) == ["plan.html"]


def test_what_is_whole_takes_its_place(tmp_path: Path) -> None:
    old, link, new = (tmp_path / name for name in ("old.json", "link.json", "new.json"))
    old.write_text("before")
    old.chmod(0o640)
    link.symlink_to(old)
    for path in (link, new):
        with replacing(path) as spare:
            spare.write_text("after")
    assert old.read_text() == new.read_text() == "after"
    assert link.is_symlink()
    assert old.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link.json", "new.json", "old.json"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.html"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with replacing(pipe) as spare:
            spare.write_text("page")
        assert os.read(reader, 100) == b"page"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["folder", "nowhere/a.html"])
def test_a_place_that_takes_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match=r"--plot: .*folder"):
        checked("--plot", tmp_path / name)
    assert checked("--plot", tmp_path / "a.html") == tmp_path / "a.html"


@pytest.mark.skipif(NOBODY_IS_BARRED, reason="root may write anywhere")
def test_a_file_that_is_not_ours(tmp_path: Path) -> None:
    barred = tmp_path / "a.html"
    barred.touch(0o444)
    with pytest.raises(BadInput, match="cannot be written"):
        checked("--plot", barred)


@pytest.mark.parametrize("name", ["loop", "n" * 300])
def test_a_name_that_takes_no_file_is_refused_before_the_computation(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadInput):
        checked("--plot", tmp_path / name)
    assert os.listdir(tmp_path) == ["loop"]
