"""First code of every Python process under `joulecut run`: loads the hooks, then the site's own.

Only the package `joulecut` comes from its installation; nothing else there shadows the job's
packages. What fails here must not stop the job, and is said once.
"""

import importlib.machinery
import importlib.util
import os
import sys

PYTHON_MIN = (3, 8)
SAID = "JOULECUT_SAID"


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


def _say(why: str) -> None:
    """In one process of a job: its children inherit the variable."""
    if not os.environ.get(SAID):
        os.environ[SAID] = "1"
        sys.stderr.write(f"joulecut: this job's iterations are not reported: {why}\n")


try:
    if sys.version_info < PYTHON_MIN:
        _say(f"Python {sys.version.split()[0]}; allowed: 3.8 or newer")
    else:
        _load_hooks()
except Exception as error:
    _say(f"{type(error).__name__}: {error}")
_run_own()
