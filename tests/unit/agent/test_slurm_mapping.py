"""The mapping files of a Slurm prolog: read as other exporters read them, whatever they hold."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.jobs.inventory import Inventory
from joulecut_agent.jobs.owner import JOB_CHARS_MAX, Claims
from joulecut_agent.jobs.slurm import OWNERS_MAX, MappingDirectory

HERE = Inventory({0: "GPU-a", 1: "GPU-b"})


def _jobs(claims: Claims) -> dict[str, list[str]]:
    return {uuid: [owner.job for owner in owners] for uuid, owners in claims.items()}


def test_one_file_a_gpu_and_one_job_a_line(tmp_path: Path) -> None:
    folder = MappingDirectory(tmp_path)
    assert _jobs(folder.poll(HERE)) == {}
    (tmp_path / "0").write_text("4711\n")
    (tmp_path / "1.3").write_text("4712\n4713\n")
    (tmp_path / "README").write_text("4714\n")
    (tmp_path / "9").write_text("4715\n")
    claims = folder.poll(HERE)
    assert _jobs(claims) == {"GPU-a": ["4711"], "GPU-b": ["4712", "4713"]}
    assert not claims["GPU-a"][0].sliced
    assert claims["GPU-b"][0].sliced
    (tmp_path / "0").write_text("4799\n")
    assert _jobs(folder.poll(HERE))["GPU-a"] == ["4799"]
    (tmp_path / "0").write_text("")
    (tmp_path / "1.3").unlink()
    assert _jobs(folder.poll(HERE)) == {"GPU-a": []}
    (tmp_path / "0").unlink()
    assert folder.poll(HERE) == {}


def test_a_name_and_a_user_after_the_job_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("45916256 262563\r\n")
    assert _jobs(MappingDirectory(tmp_path).poll(HERE)) == {"GPU-a": ["45916256"]}


def test_a_directory_that_comes_goes_and_comes_again(tmp_path: Path) -> None:
    home = tmp_path / "map"
    folder = MappingDirectory(home)
    for job in ("1", "2"):
        assert folder.poll(HERE) == {}
        home.mkdir()
        (home / "0").write_text(job)
        assert _jobs(folder.poll(HERE)) == {"GPU-a": [job]}
        (home / "0").unlink()
        home.rmdir()


def test_a_directory_that_everybody_writes_is_not_believed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "0").write_text("4711\n")
    tmp_path.chmod(0o777)
    folder = MappingDirectory(tmp_path)
    assert folder.poll(HERE) == folder.poll(HERE) == {}
    assert capfd.readouterr().err.count("world-writable") == 1
    tmp_path.chmod(0o755)
    assert folder.poll(HERE)


def test_links_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("4711\n")
    home = tmp_path / "map"
    home.mkdir()
    (home / "0").symlink_to(secret)
    os.mkfifo(home / "1")
    (home / "0.1").mkdir()
    assert MappingDirectory(home).poll(HERE) == {}


@given(st.dictionaries(st.sampled_from(["0", "1", "1.2", "0.x", "GPU-a", "-1"]), st.binary()))
def test_any_bytes_are_read(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory(prefix="jc") as home:
        folder = MappingDirectory(Path(home))
        for name, raw in files.items():
            (Path(home) / name).write_bytes(raw)
        for owners in folder.poll(HERE).values():
            assert len(owners) <= 3 * OWNERS_MAX
            for owner in owners:
                assert owner.job.isprintable()
                assert 0 < len(owner.job) <= JOB_CHARS_MAX


def test_a_huge_file_and_a_crowd_are_cut(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("".join(f"{n}\n" for n in range(100_000)))
    assert len(MappingDirectory(tmp_path).poll(HERE)["GPU-a"]) == OWNERS_MAX
    for number in range(400):
        (tmp_path / f"other{number}").write_text("1")
    MappingDirectory(tmp_path).poll(HERE)
