"""Settings of every test: what properties draw, no deadline on examples, tests that fork.

Properties draw the same examples in every run and on every machine, so that a run judges the
change and not the draw. `make nightly` draws fresh ones (profile `fresh`) and prints their seed;
`--hypothesis-seed=N` repeats them, also with one file alone. A seed that fails becomes an
`@example` of its test.
"""

import contextlib
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from _pytest.pathlib import import_path
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# A shell's job in the background ignores Ctrl-C, and so would every command that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis would draw constants out of the source of every module that is imported, so that draws
# depended on the tests before. `tests/house/test_draws.py` holds this.
providers._get_local_constants = lambda: providers._local_constants

# A busy machine draws slowly: that is no fault of a test.
unhurried = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fixed", derandomize=True, print_blob=True, max_examples=30, **unhurried)
settings.register_profile("fresh", database=None, print_blob=True, **unhurried)
settings.load_profile("fixed")


MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30  # what a run leaves there at once is below 1 GB


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its options, and before workers start
def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    # Journals and stores sync thousands of times; no test cuts the power, so memory shows the same.
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    if option.hypothesis_seed is not None:
        option.hypothesis_profile = "fresh"  # a fixed draw has no seed
    elif option.hypothesis_profile == "fresh":
        option.hypothesis_seed = str(random.randrange(2**32))


@pytest.hookimpl(hookwrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What is collected lives until the end, so no garbage collection looks through it: each would
    take a quarter of a second, in every worker.
    """
    gc.disable()
    _share_compiling(session.config)
    yield
    gc.freeze()
    gc.enable()


def _share_compiling(config: pytest.Config) -> None:
    """In a fresh checkout every worker would compile every test file, half a minute each: each
    imports another part of them first, and finds the rest compiled by the others.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    folders = [config.invocation_params.dir / word.partition("::")[0] for word in config.args]
    files = sorted(file for folder in folders for file in folder.rglob("test_*.py"))
    begin = len(files) * number // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for file in (*files[begin:], *files[:begin]):
        # The collection says what is wrong, or skipped.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            import_path(
                file, mode="importlib", root=config.rootpath, consider_namespace_packages=False
            )


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.option.hypothesis_seed
    return f"properties: {'drawn as ever' if seed is None else f'--hypothesis-seed={seed}'}"


SIMULATIONS = Path(__file__).parent / "simulation"


@pytest.hookimpl(trylast=True)  # of what marks have left
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each worker begins with its share of the long files, so that the end of a run waits for none:
    those with a test marked `first`, then simulations. xdist gives each an equal part of the list.
    """
    long: dict[Path, list[pytest.Item]] = {}
    short = []
    for item in sorted(items, key=lambda item: item.get_closest_marker("first") is None):
        if item.path in long or item.get_closest_marker("first") or item.path.parent == SIMULATIONS:
            long.setdefault(item.path, []).append(item)
        else:
            short.append(item)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ordered: list[pytest.Item] = []
    for number in range(workers):
        part = [item for file in list(long.values())[number::workers] for item in file]
        fill = max(0, (len(items) - len(ordered)) // (workers - number) - len(part))
        ordered += part + short[:fill]
        del short[:fill]
    items[:] = ordered + short


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
    """Runs tests marked `alone` in a process of their own, all of a file in one, where gRPC has
    started threads in this one. They fork without exec, as the keeper does with its single thread.
    """
    marked = pyfuncitem.get_closest_marker("alone") is not None
    if not marked or "grpc" not in sys.modules or "JOULECUT_ALONE" in os.environ:
        return None
    if pyfuncitem.path not in ALONE:
        ALONE[pyfuncitem.path] = _run_alone(pyfuncitem)
    if failure := ALONE[pyfuncitem.path][pyfuncitem.name]:
        pytest.fail(failure, pytrace=False)
    return True


ALONE: dict[Path, dict[str, str]] = {}  # by file: what failed of each test, "" where it passed


def _run_alone(asked: pytest.Function) -> dict[str, str]:
    ids = [one.nodeid for one in asked.session.items if one.path == asked.path]
    with tempfile.NamedTemporaryFile(suffix=".xml") as results:
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results.name}"]
        subprocess.run(
            [sys.executable, *words, *ids],
            cwd=asked.config.rootpath,
            env={**_own_environment(), "JOULECUT_ALONE": "1"},
            capture_output=True,
            check=False,
        )
        cases = ElementTree.parse(results.name).iter("testcase")
        return {case.attrib["name"]: "".join(case.itertext()) for case in cases}
