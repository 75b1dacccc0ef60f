"""The mapping files of a Slurm prolog: read as other exporters read them, whatever they hold."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.jobs.inventory import Inventory
from joulecut_agent.jobs.owner import JOB_CHARS_MAX, Claims
from joulecut_agent.jobs.slurm import OWNERS_MAX, MappingDirectory
from joulecut_wire.slurm import SlurmJob, of_labels, of_record

SCRIPTS = Path(__file__).resolve().parents[3] / "deploy" / "slurm"
HERE = Inventory({0: "GPU-a", 1: "GPU-b"})


def _jobs(claims: Claims) -> dict[str, list[str]]:
    return {uuid: [owner.job for owner in owners] for uuid, owners in claims.items()}


def test_one_file_a_gpu_and_one_job_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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
    assert f"{tmp_path}: 9: no GPU of this node has that number" in capfd.readouterr().err
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


def _scripted(folder: Path, script: str, squeue: str | None = "", **words: str) -> str:
    """Runs a script as slurmd does; `squeue` is what slurmctld answers, None: nothing for a
    minute. Returns its stderr.
    """
    command = folder / "bin" / "squeue"
    command.parent.mkdir(exist_ok=True)
    answers = f"cat <<'END'\n{squeue}\nEND\n" if squeue else "exit 1\n"
    command.write_text("#!/bin/sh\n" + ("exec sleep 60\n" if squeue is None else answers))
    command.chmod(0o755)
    env = {
        "PATH": f"{command.parent}:{os.environ['PATH']}", "JOULECUT_SLURM_DIR": f"{folder}/slurm",
        "SLURM_JOB_ID": "4711", "SLURM_JOB_GPUS": "0", "JOULECUT_STATE_DIR": str(folder),
        "SLURM_JOB_USER": "alice", "SLURM_JOB_PARTITION": "gpu", "JOULECUT_ASK_S": "5", **words,
    }  # fmt: skip
    path = SCRIPTS / f"{script}.d" / "50-joulecut.sh"
    return subprocess.run([path], env=env, check=True, capture_output=True, text=True).stderr


def test_a_record_is_written_and_removed_by_the_scripts_that_slurm_runs(tmp_path: Path) -> None:
    _scripted(tmp_path, "prolog", "4711|4711_N/A|phys|gpt")
    mapping = MappingDirectory(tmp_path / "slurm")
    ((owner,),) = mapping.poll(HERE).values()
    assert owner.labels["slurm_job_id"] == "4711"
    _scripted(tmp_path, "epilog")
    assert mapping.poll(HERE) == {}
    assert [*(tmp_path / "slurm").iterdir(), *(tmp_path / "slurm-jobs").iterdir()] == []


@pytest.mark.parametrize(
    ("answer", "given", "expected"),
    [
        ("4711|4711_N/A|phys|a | b", {}, ("a | b", "phys", "")),
        ("4710|4710_1|x|x\n4711|4710_2|phys|n", {}, ("n", "phys", "4710_2")),
        ("", {}, ("", "", "")),  # slurmctld does not answer
        ("4711|4711_N/A|phys|own\nuser root", {"SLURM_JOB_ACCOUNT": "bio"}, ("own", "bio", "")),
        ("4711|4711_N/A|x|a\x0buser root", {"SLURM_JOB_COMMENT": "b\nuser root"}, ("", "x", "")),
        ("4711|4711_N/A|x|n", {"SLURM_JOB_NAME": "c\x85d"}, ("", "x", "")),
    ],
)
def test_a_record_has_what_slurm_says_and_no_word_of_the_job_for_it(
    tmp_path: Path, answer: str, given: dict[str, str], expected: tuple[str, str, str]
) -> None:
    said = _scripted(tmp_path, "prolog", answer, **given)
    assert ("does not name" in said) is (not answer)
    ((owner,),) = MappingDirectory(tmp_path / "slurm").poll(HERE).values()
    found = of_labels(owner.labels)
    assert (found.id, found.user, found.partition) == ("4711", "alice", "gpu")
    assert (found.name, found.account, found.array_id) == expected


def test_a_prolog_waits_no_longer_for_slurmctld_than_it_may(tmp_path: Path) -> None:
    said = _scripted(tmp_path, "prolog", None, JOULECUT_ASK_S="0.2")
    assert "does not name job 4711" in said
    ((owner,),) = MappingDirectory(tmp_path / "slurm").poll(HERE).values()
    assert of_labels(owner.labels) == SlurmJob("4711", user="alice", partition="gpu")


def test_no_node_asks_slurmctld_unless_its_site_says_so(tmp_path: Path) -> None:
    """Its script would answer: thousands of nodes that start a job at once would wait for it."""
    said = _scripted(tmp_path, "prolog", "4711|4711_N/A|phys|gpt", JOULECUT_ASK_S="")
    ((owner,),) = MappingDirectory(tmp_path / "slurm").poll(HERE).values()
    assert (said, of_labels(owner.labels).name) == ("", "")


@pytest.mark.parametrize("planted", ["slurm", "slurm-jobs"])
@pytest.mark.parametrize("kind", ["link", "dangling", "file", "writable", "foreign"])
def test_root_writes_nowhere_that_the_agents_user_chose(
    tmp_path: Path, planted: str, kind: str
) -> None:
    """The directory above is writable for the agent, who can plant what is missing there."""
    victim, place = tmp_path / "victim", tmp_path / planted
    victim.mkdir()
    (victim / "4711").write_text("keep")
    (victim / "0").write_text("keep")
    if kind == "link":
        place.symlink_to(victim)
    elif kind == "dangling":
        place.symlink_to(tmp_path / "new")
    elif kind == "file":
        place.write_text("")
    else:
        place.mkdir()
        place.chmod(0o777 if kind == "writable" else 0o755)
        if kind == "foreign":
            if os.getuid() != 0:
                pytest.skip("needs root, to give a directory to another user")
            os.chown(place, 65534, 65534)
    assert "is not a directory of this user alone" in _scripted(tmp_path, "prolog")
    _scripted(tmp_path, "epilog")
    assert {one.name: one.read_text() for one in victim.iterdir()} == {"4711": "keep", "0": "keep"}
    assert not (tmp_path / "new").exists()
    assert not place.is_dir() or place == victim or kind == "link" or not [*place.iterdir()]


def test_an_epilog_waits_for_no_pipe_in_the_place_of_the_agents_file(tmp_path: Path) -> None:
    _scripted(tmp_path, "prolog")
    os.mkfifo(tmp_path / "owners")
    _scripted(tmp_path, "epilog")
    assert [*(tmp_path / "slurm").iterdir()] == []


@given(st.text())
def test_any_record_is_read(text: str) -> None:
    job = of_record("4711", f"joulecut-slurm-job 1\n{text}")
    assert job.id == "4711"
    assert all(word.isprintable() for word in job.labels().values())
    assert of_record("4711", text.replace("joulecut", "")) == SlurmJob("4711")


def test_a_record_is_read_only_from_where_root_alone_writes(tmp_path: Path) -> None:
    _scripted(tmp_path, "prolog", "4711|4711_N/A|phys|gpt")
    mapping = MappingDirectory(tmp_path / "slurm")
    (tmp_path / "slurm-jobs").chmod(0o777)
    ((owner,),) = mapping.poll(HERE).values()
    assert owner.labels == {"slurm_job_id": "4711"}
    (tmp_path / "slurm-jobs").chmod(0o755)
    ((owner,),) = mapping.poll(HERE).values()
    assert owner.labels["slurm_job_name"] == "gpt"
