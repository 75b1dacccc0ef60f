"""The wheel, installed by role into clean environments, as its users will have it."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.long

JOB = """\
pipeline: {schedule: 1f1b, stages: 1, microbatches: 2}
profile: profile.csv
blocking_power_w: 50
"""
RUN = "model: gpt2\nsystem: dgx-a100\nrun: {gpus: 8, global_batch: 64, sequence: 1024}\n"
PROFILE = """\
stage,instruction,frequency,time,energy
0,forward,1400,1,300
0,backward,1400,2,600
0,forward,900,1.5,240
0,backward,900,3,480
"""


def _run(*argv: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in argv], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    built = _run(
        sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
        "-w", out, ROOT,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return next(out.glob("joulecut-*.whl"))


class Clean:
    """A clean environment with the wheel and one role's dependencies in it."""

    def __init__(self, folder: Path, wheel: Path, extra: str, constraints: str) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        self.bin = folder / "bin"
        done = _run(
            sys.executable, "-m", "pip", "--python", self.python, "install", "-q",
            "--disable-pip-version-check", "--no-compile", "-c", ROOT / "constraints" / constraints,
            f"{wheel}{extra}",
        )  # fmt: skip
        if done.returncode != 0 and "No matching distribution" in done.stderr:
            pytest.skip(f"no package index within reach for {constraints}")
        assert done.returncode == 0, done.stderr

    def runs(self, code: str) -> subprocess.CompletedProcess[str]:
        return _run(self.python, "-c", code, cwd=self.bin)


def test_bare_is_what_a_training_script_imports(wheel: Path, tmp_path: Path) -> None:
    env = Clean(tmp_path / "bare", wheel, "", "all.txt")
    assert env.runs("import joulecut").returncode == 0
    for command, words, extra in (
        ("joulecut-agent", ["run", "--config", "agent.yaml"], "agent"),
        ("joulecut-controller", ["--config", "controller.yaml"], "controller"),
    ):
        assert _run(env.bin / command, "--help", cwd=env.bin).returncode == 0
        said = _run(env.bin / command, *words, cwd=env.bin)
        assert said.returncode == 1, command
        assert f"modules of the {extra} are missing" in said.stderr
        assert f"whl[{extra}]'" in said.stderr
        assert "Traceback" not in said.stderr
    plan = _run(env.bin / "joulecut", "plan", "job.yaml", cwd=env.bin)
    assert plan.returncode == 1
    assert "whl[engine]'" in plan.stderr
    assert "Traceback" not in plan.stderr


def test_the_engine_role_plans_without_a_web_server(wheel: Path, tmp_path: Path) -> None:
    env = Clean(tmp_path / "engine", wheel, "[engine]", "all.txt")
    for absent in ("grpc", "starlette", "sqlalchemy", "msgspec", "matplotlib"):
        assert env.runs(f"import {absent}").returncode != 0, absent
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "profile.csv").write_text(PROFILE)
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "sweep.yaml").write_text(RUN + "sweep: {tensor: all, zero: all}\n")
    for words in ("plan job.yaml --json", "frontier job.yaml", "compare job.yaml",
                  "fit profile.csv --probes 1400,900", "model run.yaml --json",
                  "model sweep sweep.yaml", "model profile run.yaml --out made"):  # fmt: skip
        done = _run(env.bin / "joulecut", *words.split(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    picture = _run(env.bin / "joulecut", "plan", "job.yaml", "--plot", "a.html", cwd=tmp_path)
    assert picture.returncode == 1
    assert "whl[plot]'" in picture.stderr


def test_the_check_role_is_small_and_checks(wheel: Path, tmp_path: Path) -> None:
    env = Clean(tmp_path / "check", wheel, "[check]", "all.txt")
    for absent in ("numpy", "grpc", "starlette", "sqlalchemy"):
        assert env.runs(f"import {absent}").returncode != 0, absent
    installed = sum(path.stat().st_size for path in (tmp_path / "check/lib").rglob("*.*"))
    assert installed < 30 << 20
    done = _run(env.bin / "joulecut", "policy", "check", ROOT / "examples/policy.yaml")
    assert done.returncode == 0, done.stderr
    done = _run(env.bin / "joulecut", "audit", "--prometheus", "http://127.0.0.1:1")
    assert "no Prometheus answers" in done.stderr  # and nothing is missing to read one
    written = _run(env.bin / "joulecut", "deploy", "helm", tmp_path / "chart")
    assert written.returncode == 0, written.stderr
    assert (tmp_path / "chart/Chart.yaml").exists()


@pytest.mark.parametrize("constraints", ["all.txt", "lowest-agent.txt"])
def test_the_agent_role_is_light_and_starts(wheel: Path, tmp_path: Path, constraints: str) -> None:
    env = Clean(tmp_path / "agent", wheel, "[agent]", constraints)
    for heavy in ("numpy", "scipy", "sklearn", "numba", "fastapi", "torch"):
        assert env.runs(f"import {heavy}").returncode != 0, heavy
    said = _run(env.bin / "joulecut-agent", "run", "--config", "missing.yaml", cwd=env.bin)
    assert said.returncode == 2
    assert "missing.yaml" in said.stderr
    parts = ("control.server", "export.exporter", "keeper.keeper")
    modules = f"import {', '.join('joulecut_agent.' + part for part in parts)}"
    loaded = env.runs(modules)
    assert loaded.returncode == 0, loaded.stderr


@pytest.mark.parametrize("constraints", ["all.txt", "lowest-controller.txt"])
def test_the_controller_role_starts(wheel: Path, tmp_path: Path, constraints: str) -> None:
    if constraints.startswith("lowest") and sys.version_info >= (3, 13):
        pytest.skip("the lowest numpy has no wheel for this Python")
    env = Clean(tmp_path / "controller", wheel, "[controller]", constraints)
    assert env.runs("import pynvml").returncode != 0
    said = _run(env.bin / "joulecut-controller", "--config", "missing.yaml", cwd=env.bin)
    assert said.returncode == 2
    assert "missing.yaml" in said.stderr
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    loaded = env.runs(
        "import joulecut_controller.reconcile.reconciler, joulecut_controller.web.app"
    )
    assert loaded.returncode == 0, loaded.stderr
