"""Calls a function when a module has been imported: now, where it is imported already.

Other finders load the module as always; only the end of its execution is noticed. A function that
fails is left out, and the import goes on.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def when_imported(name: str, action: Callable[[Any], None]) -> None:
    module = sys.modules.get(name)
    if module is not None:
        _call(action, module)
        return
    finder = next((one for one in sys.meta_path if isinstance(one, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.actions.setdefault(name, []).append(action)


class _Finder:
    """First in `sys.meta_path`; asks the finders behind it."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Callable[[Any], None]]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        actions = self.actions.pop(name, None)
        if actions is None:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                with contextlib.suppress(Exception):
                    _notice(spec, actions)
                return spec
        return None


def _notice(spec: importlib.machinery.ModuleSpec, actions: list[Callable[[Any], None]]) -> None:
    """Its loader calls the actions after it has executed the module."""
    loader: Any = spec.loader
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        for action in actions:
            _call(action, module)

    loader.exec_module = exec_module


def _call(action: Callable[[Any], None], module: ModuleType) -> None:
    with contextlib.suppress(Exception):
        action(module)
