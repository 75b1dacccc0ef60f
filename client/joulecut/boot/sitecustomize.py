"""First code of every Python process under `joulecut run`: loads the hooks, then the site's own.

Only the package `joulecut` comes from its installation; nothing else there shadows the job's
packages. What fails here must not stop the job.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys


def _load_hooks() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(here)
    spec = importlib.util.spec_from_file_location(
        "joulecut",
        os.path.join(package, "__init__.py"),
        submodule_search_locations=[package],
    )
    if "joulecut" not in sys.modules and spec is not None and spec.loader is not None:
        sys.modules["joulecut"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["joulecut"])
    importlib.import_module("joulecut.auto")


def _run_own() -> None:
    """The sitecustomize that this one hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


with contextlib.suppress(Exception):
    _load_hooks()
_run_own()
