"""Puts the simulator, which a checkout has beside this folder, into wheel and sdist."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Simulator(BuildHookInterface):
    """An sdist has the simulator in itself; an editable installation finds it in its place."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        beside = Path(self.root).parent / "sim" / "joulecut_sim"
        if version != "editable" and beside.is_dir():
            build_data["force_include"][str(beside)] = "joulecut_sim"
