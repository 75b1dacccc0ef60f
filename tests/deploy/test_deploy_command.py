"""`joulecut deploy`: the files of the release, whole and usable where they are written."""

import os
import resource
import subprocess
from pathlib import Path

import pytest
from manifests import ROOT, chart

from joulecut_cli.deploy import KINDS, run, write
from joulecut_wire.errors import BadInput


@pytest.mark.parametrize("what", KINDS)
def test_every_kind_is_written_whole_and_only_once(what: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    assert run([what, str(folder)]) == 0
    source = ROOT / KINDS[what][0]
    for path in folder.rglob("*"):
        if path.is_file():
            origin = source / path.relative_to(folder)
            assert path.read_bytes() == origin.read_bytes()
            assert os.access(path, os.X_OK) == os.access(origin, os.X_OK), path
    with pytest.raises(BadInput, match="is not empty"):
        run([what, str(folder)])


def test_the_written_chart_is_the_chart(tmp_path: Path) -> None:
    write(KINDS["helm"][0], tmp_path / "joulecut")
    assert chart("keeper", folder=tmp_path / "joulecut") == chart("keeper")


def test_the_written_installer_installs_outside_a_checkout(tmp_path: Path) -> None:
    write(KINDS["systemd"][0], tmp_path / "units")
    (tmp_path / "root").mkdir()
    words = ("--package", "none", "--root", str(tmp_path / "root"))
    done = subprocess.run(
        [tmp_path / "units/install", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "root").rglob("joulecut-keeper.service"))


def test_an_unknown_kind_and_a_file_in_the_way_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="systemd, helm, kustomize"):
        run(["docker-compose", str(tmp_path / "a")])
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for place in ("file", "file/below", "new/../file", "new/..", f"new/{'n' * 300}", "loop"):
        with pytest.raises(BadInput):
            run(["helm", str(tmp_path / place)])
    assert {path.name for path in tmp_path.rglob("*")} == {"file", "loop"}


def test_a_disk_that_takes_no_more_leaves_nothing_and_is_named(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    (tmp_path / "empty").mkdir()
    for name in ("new", "new/below", "empty"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
        try:
            with pytest.raises(BadInput, match="File too large"):
                run(["helm", str(tmp_path / name)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_the_files_go_into_an_empty_directory_that_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["grafana", "."]) == 0
    assert (tmp_path / "prometheus.yaml").is_file()
