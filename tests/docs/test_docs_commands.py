"""Every command that README and docs show is one that works.

Each is sorted by what it needs. Those that need nothing or one small simulated cluster run here
as they stand, but for names of files, jobs and ports. Those that run for ever have their flags
checked (what they do is tested elsewhere), and so have all that are only mentioned in a sentence.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import commands
import pytest
from docs_cluster import JOB, DocsCluster
from docs_commands import OURS, ROOT, Command, commands_of, pages

from joulecut_agent.main import main as agent
from joulecut_cli.main import main as joulecut
from joulecut_controller.main import main as controller
from joulecut_lab.model_command.command import SUBCOMMANDS as MODEL_COMMANDS

BIN = Path(sys.executable).parent
EVERY = [command for page in pages() for command in commands_of(page)]
MENTIONED = re.compile(r"`((?:joulecut|joulecut-agent|joulecut-controller) [^`]+)`")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
FOREVER = re.compile(
    r"^(joulecut-agent (run|keeper|restore)|joulecut-controller\b)"
    r"|^joulecut (demo|run)\b"
)
LATE = re.compile(r"no controller answers .*nothing within \d+ s")
QUICKSTART = "docs/quickstart.md"  # typed as a whole by test_quickstart.py
# Programs of a cluster that is not here; what the commands name is looked for. tests/deploy renders
# and judges everything that they would install.
ELSEWHERE = ("docker", "helm", "kubectl", "pip", "ssh", "systemctl")
ONLINE = (
    "audit", "doctor", "explain", "pause", "recommend",
    "release", "report", "restore", "resume", "status",
)  # fmt: skip
FAKE = "tests/fake_nvml/control.py"


def _ours(command: Command) -> bool:
    return command.program in OURS


def _online(command: Command) -> bool:
    words = command.words[1:] if _ours(command) else []
    return bool(words) and words[0] in ONLINE


def _kind(command: Command) -> str:
    text = command.text.removeprefix(".venv/bin/")
    if command.page == QUICKSTART:
        return "quickstart"
    if command.is_synopsis or FOREVER.match(text):
        return "flags"
    if text.startswith("joulecut selftest"):  # needs a card; its own tests have a fake one
        return "flags"
    if "ready node=" in text:
        return "output"
    if command.program in ELSEWHERE:
        return "elsewhere"
    if command.program == "make":
        return "make"
    if FAKE in text:
        return "fake"
    if command.program in {"curl", "sed", "deploy/systemd/install"}:
        return "shell"
    if "-m pytest" in text or text.startswith("tools/"):
        return "developer"
    if _online(command):
        return "online"
    if _ours(command) or command.program in {"python", "sh"}:
        return "offline"
    return "unknown"


def _of(kind: str) -> list[Command]:
    return [command for command in EVERY if _kind(command) == kind]


def _id(command: Command) -> str:
    return f"{Path(command.page).stem}:{command.line}"


def test_no_command_is_left_out() -> None:
    assert not [str(command) for command in EVERY if _kind(command) == "unknown"]
    assert len(EVERY) > 40
    assert {command.page for command in EVERY} >= {"README.md", QUICKSTART, "docs/demo.md"}


# -- flags -------------------------------------------------------------------------------------


PROGRAMS = {"joulecut": joulecut, "joulecut-agent": agent, "joulecut-controller": controller}


@cache
def _help(*path: str) -> str:
    said = commands.run(*path[1:], "--help", main=PROGRAMS[path[0]])
    assert said.returncode == 0, said.stderr
    return said.stdout


def _path(words: list[str]) -> tuple[str, ...]:
    """Program and subcommands, as far as --help knows them."""
    if words[0] == "joulecut-controller":
        return (words[0],)
    path = words[:2]
    nested = {"study": (), "policy": (), "model": MODEL_COMMANDS}
    if words[1] in nested and len(words) > 2 and words[2] in (nested[words[1]] or words):
        path = words[:3]
    return tuple(path)


def _mentioned() -> Iterator[tuple[str, str]]:
    for page in pages():
        for found in MENTIONED.finditer(page.read_text()):
            yield str(page.relative_to(ROOT)), " ".join(found[1].split())


def _lines() -> list[tuple[str, str]]:
    shown = [(c.page, " ".join(c.words)) for c in EVERY if _ours(c) and _kind(c) != "output"]
    return sorted({*shown, *_mentioned()})


@pytest.mark.parametrize(("page", "text"), _lines())
def test_commands_and_flags_exist(page: str, text: str) -> None:
    words = text.replace(".venv/bin/", "").split()
    named = [word for word in words[:2] if re.fullmatch(r"[a-z-]+(\|[a-z-]+)*", word)]
    for alternative in named[1].split("|") if len(named) > 1 else [""]:
        path = _path([words[0], alternative, *words[2:]]) if alternative else (words[0],)
        known = _help(*path)
        own = text.partition(" -- ")[0]  # what follows belongs to another command
        for flag in FLAG.findall(own):
            assert flag in known, f"{page}: {text}: {' '.join(path)} knows no {flag}"


# -- run as they stand -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[DocsCluster]:
    with DocsCluster() as made:
        yield made


def _run(text: str, folder: Path, limit_s: float = 1200.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env={"PATH": f"{BIN}:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def _assert_ran(command: Command, done: subprocess.CompletedProcess[str]) -> None:
    found = done.returncode == 1 and "\nNext: " in done.stdout  # of `doctor`: something is missing
    assert done.returncode == 0 or found, f"{command}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr, f"{command}: {done.stderr}"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that offline commands name, as in a checkout."""
    folder = tmp_path_factory.mktemp("desk")
    shutil.copytree(ROOT / "examples", folder / "examples")
    for name in ("grafana", "deploy", "tools"):
        (folder / name).symlink_to(ROOT / name)
    made = _run(
        "python -m joulecut_sim.profile --stages 8 --out examples/gpt3-175b/stage_profile.csv && "
        "joulecut study layer --card a30 --quick --out a30.csv && "
        "joulecut model profile examples/model/gpt3-175b.yaml --out job",
        folder,
    )
    assert made.returncode == 0, made.stderr
    profile = folder / "examples" / "gpt3-175b" / "stage_profile.csv"
    for name in ("gpt3.csv", "PROFILE.csv", "stage_profile.csv"):
        shutil.copy(profile, folder / name)
    shutil.copy(folder / "examples" / "policy.yaml", folder / "policy.yaml")
    job = (folder / "examples" / "gpt3-175b" / "job.yaml").read_text()
    for name in ("job.yaml", "JOB.yaml"):
        (folder / name).write_text(job)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("command", _of("offline"), ids=_id)
def test_offline_commands_run(command: Command, desk: Path) -> None:
    text = command.text.replace(".venv/bin/", "")
    if "study layer" in text and "--quick" not in text:
        text = text.partition("#")[0] + " --quick"
    _assert_ran(command, _run(text, desk))


@pytest.mark.long
@pytest.mark.parametrize("command", _of("online"), ids=_id)
def test_commands_to_a_cluster_run(command: Command, cluster: DocsCluster) -> None:
    """Whatever was paused or released is taken back before the next. A command gives up a
    controller that stands still; where the machine did, it is typed again.
    """
    try:
        for _ in range(5):
            done = _run(cluster.typed(command.text), cluster.folder)
            if not LATE.search(done.stderr):
                break
        _assert_ran(command, done)
    finally:
        cluster.as_before()


@pytest.mark.parametrize("command", _of("make"), ids=_id)
def test_make_knows_the_target(command: Command) -> None:
    asked = subprocess.run(
        ["make", "--dry-run", *command.words[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, f"{command}: {asked.stderr}"


@pytest.mark.parametrize("command", _of("elsewhere"), ids=_id)
def test_files_named_for_other_programs_exist(command: Command) -> None:
    for word in command.words:
        if word.startswith(("deploy/", "grafana/")):
            assert (ROOT / word).exists(), command


@pytest.mark.long
@pytest.mark.parametrize("command", _of("shell"), ids=_id)
def test_shell_lines_run(
    command: Command, cluster: DocsCluster, desk: Path, tmp_path: Path
) -> None:
    text = command.text
    if command.program == "deploy/systemd/install":
        _assert_ran(command, _run(f"{text.partition('#')[0]} --root {tmp_path}", desk))
        return
    folder = desk / "grafana" if command.page.startswith("grafana/") else cluster.folder
    if " old.json" in text:  # a dashboard of the reader's
        folder = tmp_path
        (folder / "old.json").write_text("{}")
    _assert_ran(command, _run(cluster.typed(text), folder))


@pytest.mark.long
def test_the_fake_library_is_played_with_as_told(tmp_path: Path) -> None:
    """The lines of a page share one state file, so they run in order; one of them for ever."""
    told = [command for command in _of("fake") if command.page == "docs/nvml.md"]
    assert len(told) >= 4
    state = tmp_path / "gpus"
    lines = [f'eval "$(python {FAKE} {state} create --gpus 4 --model h100)"']
    for command in told:
        line = command.text.replace("/tmp/gpus", str(state))
        forever = "--every" in line
        lines.append(f"timeout 2 {line} || test $? = 124" if forever else line)
    done = _run("\n".join(lines), ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_cluster_of_these_tests_knows_the_job_of_the_docs() -> None:
    assert any(JOB in command.text for command in EVERY)
