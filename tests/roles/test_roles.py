"""The wheels, installed by role into clean environments, as their users will have them."""

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
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their folder. The lab's is built from its sdist, as a packager does."""
    out = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    sdist = "from hatchling.build import build_sdist; import sys; build_sdist(sys.argv[1])"
    packed = _run(sys.executable, "-c", sdist, out, cwd=ROOT / "lab")
    assert packed.returncode == 0, packed.stderr
    built = _run(*build, "-w", out, ROOT, next(out.glob("joulecut_lab-*.tar.gz")))
    assert built.returncode == 0, built.stderr
    return out


@pytest.fixture
def wheel(wheels: Path) -> Path:
    return next(wheels.glob("joulecut-*.whl"))


@pytest.fixture
def lab(wheels: Path) -> Path:
    return next(wheels.glob("joulecut_lab-*.whl"))


class Clean:
    """A clean environment with the wheel and one role's dependencies in it."""

    def __init__(self, folder: Path, wheel: Path, extra: str, constraints: str) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        self.bin = folder / "bin"
        pinned = ROOT / "constraints" / constraints
        done = self.pip("install", "--no-compile", "-c", pinned, f"{wheel}{extra}")
        if done.returncode != 0 and "No matching distribution" in done.stderr:
            pytest.skip(f"no package index within reach for {constraints}")
        assert done.returncode == 0, done.stderr

    def pip(self, what: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        pip = (sys.executable, "-m", "pip", "--python", self.python, what, "-q")
        return _run(*pip, "--disable-pip-version-check", *words)

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
    for words in ("plan job.yaml --json", "frontier job.yaml"):
        done = _run(env.bin / "joulecut", *words.split(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    picture = _run(env.bin / "joulecut", "plan", "job.yaml", "--plot", "a.html", cwd=tmp_path)
    assert picture.returncode == 1
    assert "whl[plot]'" in picture.stderr


def test_the_check_role_is_small_and_with_the_lab_audits(
    wheel: Path, lab: Path, tmp_path: Path
) -> None:
    env = Clean(tmp_path / "check", wheel, "[check]", "all.txt")
    assert env.pip("install", "--no-deps", lab).returncode == 0
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
    loaded = env.runs(
        "import joulecut_controller.reconcile.reconciler, joulecut_controller.web.app"
    )
    assert loaded.returncode == 0, loaded.stderr
    for absent in ("joulecut_lab", "joulecut_sim", "matplotlib"):
        assert env.runs(f"import {absent}").returncode != 0, absent
    assert "Lab" not in _run(env.bin / "joulecut", "--help").stdout


def test_the_lab_comes_beside_the_service_and_goes_alone(
    wheel: Path, lab: Path, tmp_path: Path
) -> None:
    env = Clean(tmp_path / "lab", wheel, "", "all.txt")
    joulecut = env.bin / "joulecut"
    lacking = _run(joulecut, "model", "run.yaml")
    assert (lacking.returncode, lacking.stderr.count("\n")) == (1, 1)
    assert "pip install 'joulecut_lab-VERSION-py3-none-any.whl'" in lacking.stderr
    done = env.pip("install", "--no-compile", "-c", ROOT / "constraints/all.txt", lab)
    assert done.returncode == 0, done.stderr
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "profile.csv").write_text(PROFILE)
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "sweep.yaml").write_text(RUN + "sweep: {tensor: all, zero: all}\n")
    for words in ("compare job.yaml", "fit profile.csv --probes 1400,900", "model run.yaml --json",
                  "model sweep sweep.yaml", "model profile run.yaml --out made",
                  "plan job.yaml --plot a.html", "audit --help", "study --help", "demo --help",
                  ):  # fmt: skip
        done = _run(joulecut, *words.split(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    torch = _run(joulecut, "study", "layer", "--device", "cpu", "--out", "made.csv", cwd=tmp_path)
    assert torch.returncode == 1
    assert "pip install 'joulecut_lab-VERSION-py3-none-any.whl[study]'" in torch.stderr
    assert env.pip("uninstall", "-y", "joulecut-lab").returncode == 0
    assert env.runs("import joulecut_sim").returncode != 0
    assert _run(joulecut, "model", "run.yaml").stderr == lacking.stderr
    assert _run(joulecut, "plan", "job.yaml", cwd=tmp_path).returncode == 0
