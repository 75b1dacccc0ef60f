"""Lower bounds of dependencies: no version with a known fault is admitted."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
# The newest version with the fault, by package.
FAULTS = {
    "h11": ("0.14.0", "CVE-2025-43859"),
    "pg8000": ("1.31.4", "CVE-2025-61385"),
    "protobuf": ("5.29.4", "CVE-2025-4565"),
    "starlette": ("0.49.0", "CVE-2025-62727"),
    "torch": ("2.5.1", "CVE-2025-32434"),
}


def _required() -> list[Requirement]:
    every = []
    for file in ("pyproject.toml", "lab/pyproject.toml"):
        project = tomllib.loads((ROOT / file).read_text())["project"]
        every += project["dependencies"]
        every += [x for one in project["optional-dependencies"].values() for x in one]
    return [Requirement(text) for text in every]


@pytest.mark.parametrize("name", FAULTS)
def test_no_version_with_a_known_fault_is_admitted(name: str) -> None:
    version, fault = FAULTS[name]
    asked = [one for one in _required() if one.name == name]
    assert asked, f"{name} is not required any more: its row goes"
    assert not any(one.specifier.contains(version) for one in asked), fault
