"""The service runs without the lab; what the lab brings is found by entry point."""

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import commands
import pytest
from packaging.requirements import Requirement

from joulecut_agent import devices
from joulecut_cli import commands as houses
from joulecut_cli.main import main as joulecut
from joulecut_engine import model, readers
from joulecut_lab.commands import COMMANDS as LAB
from joulecut_wire.errors import Unavailable

WITHOUT_LAB = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "joulecut_lab":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
WITHOUT_ENGINE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"numpy", "scipy", "numba", "sklearn", "grpc", "sqlalchemy"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv[1:] = ["policy", "check", sys.argv[1]]
import joulecut_cli.main
sys.exit(joulecut_cli.main.main())
"""
ROOT = Path(__file__).resolve().parents[3]


def without_lab(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_LAB + code], capture_output=True, text=True, check=False
    )


def test_the_daemons_and_every_command_of_the_service_import_nothing_of_the_lab() -> None:
    done = without_lab(
        "import importlib, joulecut_agent.main, joulecut_agent.loop, joulecut_agent.restore\n"
        "import joulecut_controller.main, joulecut_controller.process, joulecut_engine\n"
        "from joulecut_cli.commands import SERVICE\n"
        "for one in (one for group in SERVICE for one in group.commands.values()):\n"
        "    module, _, function = one.target.partition(':')\n"
        "    assert callable(getattr(importlib.import_module(module), function))\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_lab_that_does_not_load_is_one_line() -> None:
    done = without_lab(
        "sys.argv[1:] = ['model', 'x.yaml']\nimport joulecut_cli.main as m\nexit(m.main())"
    )
    assert done.returncode == 1
    assert "entry point lab of joulecut.commands" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [*((name,) for name in LAB.commands), ("help", "model")])
def test_without_the_lab_its_commands_name_the_package(
    words: tuple[str, ...], no_lab: None
) -> None:
    done = commands.run(*words, main=joulecut)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"{words[-1]} is a command of the lab, which is not installed: pip inst" in done.stderr
    assert str(ROOT / "lab") in done.stderr


def test_without_the_lab_what_else_it_brings_names_it(no_lab: None) -> None:
    with pytest.raises(ValueError, match="modelled: joulecut-lab brings it"):
        model("gpt2", "dgx-a100")
    with pytest.raises(Unavailable, match=f"simulated is of the lab.*'{ROOT / 'lab'}'"):
        devices.named("simulated")
    assert LAB.title not in commands.run("--help", main=joulecut).stdout


@pytest.fixture
def no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry points that the service itself brings."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]

    def found(group: str, name: str = "") -> EntryPoints:
        points = own.get(group, {}).items()
        return EntryPoints(EntryPoint(n, v, group) for n, v in points if name in {"", n})

    for module in (houses, devices, readers):
        monkeypatch.setattr(module, "entry_points", found)


def test_the_service_knows_the_names_of_the_labs_commands() -> None:
    assert tuple(LAB.commands) == houses.LAB


def test_each_house_is_a_distribution_and_the_lab_asks_for_this_service() -> None:
    service, lab = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in (".", "lab")
    )
    packages = service["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert not [one for one in packages if one.endswith(("_lab", "_sim"))]
    version = service["project"]["version"]
    assert lab["project"]["version"] == version
    (asked,) = map(Requirement, lab["project"]["dependencies"])
    assert (asked.name, str(asked.specifier)) == ("joulecut", f"=={version}")
    assert asked.extras <= service["project"]["optional-dependencies"].keys()
    assert (ROOT / "lab/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_overview_has_a_group_of_each_house() -> None:
    said = commands.run("--help", main=joulecut).stdout
    service, _, lab = said.partition(LAB.title)
    for group in houses.SERVICE:
        assert group.title in service
        assert all(f"\n  {name} " in service for name in group.commands)
    assert all(f"\n  {name} " in lab for name in LAB.commands)


def test_no_group_takes_a_name_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = EntryPoint("mine", "test_houses:GROUP", houses.ENTRY_POINTS)
    monkeypatch.setattr(EntryPoint, "load", lambda _: GROUP)
    monkeypatch.setattr(houses, "entry_points", lambda group: EntryPoints([mine]))
    found, own = houses.all_commands(), houses.SERVICE[0].commands
    assert found["status"] == own["status"] == houses.find("status")
    assert found["mine"] == GROUP.commands["mine"]


GROUP = houses.Group(
    "Of a plug-in",
    {"status": houses.Command("x:run", "another"), "mine": houses.Command("x:run", "one more")},
)


def test_a_policy_is_checked_where_only_the_extra_check_is_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE, str(ROOT / "examples" / "policy.yaml")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "fine" in done.stdout
