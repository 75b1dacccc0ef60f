"""What holds for every test: nothing is judged by how fast this machine happens to be.

In CI the examples of properties are the same on every run of the same code, so that it judges
the change and not the draw; on a developer's machine they are drawn anew.
"""

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import settings

# A shell's job in the background ignores Ctrl-C, and so would every command that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("patient", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("patient"), derandomize=True)
# For who runs the tests a hundred times over, as tools/mutants does.
settings.register_profile("quick", parent=settings.get_profile("ci"), max_examples=40)
chosen = os.environ.get("JOULECUT_HYPOTHESIS", "ci" if os.environ.get("CI") else "patient")
settings.load_profile(chosen)


def _own_environment() -> dict[str, str]:
    """Without what tells a process that it is a worker of a test run."""
    return {name: told for name, told in os.environ.items() if not name.startswith("PYTEST_")}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Tests marked `alone` fork a child that goes on without exec, as the keeper does with its one
    thread. Where another test has left threads of gRPC in this process, that is no fork of ours:
    such a test then runs in a process of its own.
    """
    marked = pyfuncitem.get_closest_marker("alone") is not None
    if not marked or "grpc" not in sys.modules or "JOULECUT_ALONE" in os.environ:
        return None
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env={**_own_environment(), "JOULECUT_ALONE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return True
