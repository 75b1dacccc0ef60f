"""Settings of every test: no deadline on examples, seeds of properties, tests that fork.

Examples of properties are the same on every run in CI (CI=1), so that CI judges the change and
not the draw. Elsewhere each run draws a fresh seed and prints it; `--hypothesis-seed=N` repeats
the run. A seed that fails becomes an `@example` of its test.
"""

import os
import random
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


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its option, and before workers start
def pytest_configure(config: pytest.Config) -> None:
    if config.option.hypothesis_seed is None and not settings().derandomize:
        config.option.hypothesis_seed = str(random.randrange(2**32))


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.option.hypothesis_seed
    return "properties: the seed of CI" if seed is None else f"properties: --hypothesis-seed={seed}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `first` begin the run: they wait for minutes, beside which others compute."""
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if terminalreporter.stats.get("failed") and config.option.hypothesis_seed is not None:
        terminalreporter.line(
            f"properties drew with --hypothesis-seed={config.option.hypothesis_seed}"
        )


def _own_environment() -> dict[str, str]:
    """The environment without the variables that mark a worker of pytest-xdist."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test marked `alone` in a process of its own where gRPC has started threads in this
    one. Such a test forks without exec, as the keeper does with its single thread.
    """
    marked = pyfuncitem.get_closest_marker("alone") is not None
    if not marked or "grpc" not in sys.modules or "JOULECUT_ALONE" in os.environ:
        return None
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env={**_own_environment(), "JOULECUT_ALONE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return True
