"""The page of promises and faults names tests that CI runs and steps that exist."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROMISE = re.compile(r"^\| (S\d+) \|.*\|$", re.MULTILINE)
FAULT = re.compile(r"^\| (.*?) \| .* \| .* \| (.*?) \| (`tests/.*) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py::\w+)`( \(night\))?")
PROMISES = 20


# Prints each test, without its parameters, and its marks.
COLLECTS = """
import sys, pytest
class Printed:
    def pytest_collection_finish(self, session):
        for one in session.items:
            marks = {mark.name for mark in one.iter_markers()}
            print("::", f"{one.location[0]}::{one.originalname}", *marks)
pytest.main(["--collect-only", "-qq", "-m", "", "-n", "0", *sys.argv[1:]], plugins=[Printed()])
"""
Marked = list[tuple[str, set[str]]]


def _collected(files: list[str]) -> Marked:
    """Every test that pytest finds in files, with its marks."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTS, *files],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith(":: ")]
    assert found, done.stdout + done.stderr
    return [(test, set(marks)) for test, *marks in found]


def _chosen(words: list[str], collected: Marked) -> set[str]:
    """Of them those that `-m` chooses: the last one counts, that of pyproject.toml else."""
    usual = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    said = [*usual["addopts"], *words]
    wanted = [said[i + 1] for i, word in enumerate(said) if word == "-m"][-1]
    rule = compile(wanted, "-m", "eval")
    return {
        test
        for test, marks in collected
        if eval(rule, {name: name in marks for name in rule.co_names})
    }


def _words_of_ci() -> list[list[str]]:
    """What the targets that CI tests pass to pytest."""
    targets = re.findall(r"^tests ([\w-]+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    said = [
        subprocess.check_output(
            ["make", "--dry-run", "--no-print-directory", target], cwd=ROOT, text=True
        )
        for target in targets
    ]
    assert said
    return [shlex.split(text.rpartition("-m pytest")[2]) for text in said]


def test_what_the_page_names_runs_in_ci_or_at_night_as_it_says() -> None:
    """And each promise, and each fault, has a test that CI runs."""
    page = (ROOT / "docs/safety.md").read_text()
    rows = [NAMED.findall(line) for line in page.splitlines() if NAMED.search(line)]
    named = {test: bool(night) for row in rows for test, night in row}
    collected = _collected(sorted({test.partition("::")[0] for test in named}))
    ci = set[str]().union(*(_chosen(words, collected) for words in _words_of_ci()))
    at_night = {test for test, night in named.items() if night}
    assert named.keys() - at_night <= ci
    assert at_night <= {test for test, _ in collected} - ci
    assert not [row for row in rows if all(night for _, night in row)]


def _steps_of_walks() -> set[str]:
    """The faults that walks know, read from their source: it is not imported here."""
    module = ast.parse((ROOT / "tests/walks/steps.py").read_text())
    tables = [n for n in module.body if isinstance(n, ast.AnnAssign | ast.Assign) and n.value]
    return {
        key.value
        for table in tables
        if isinstance(table.value, ast.Dict)
        and getattr(getattr(table, "target", None), "id", "") in {"FAULTS", "COMMAND_DRAWS"}
        for key in table.value.keys
        if isinstance(key, ast.Constant)
    }


def test_each_promise_names_tests() -> None:
    rows = {row[1]: row[0] for row in PROMISE.finditer((ROOT / "docs/safety.md").read_text())}
    assert list(rows) == [f"S{n}" for n in range(1, PROMISES + 1)]
    assert all(NAMED.search(row) for row in rows.values())


def test_each_fault_names_a_test_and_each_fault_of_a_walk_is_on_the_page() -> None:
    page, _, _ = (ROOT / "docs/safety.md").read_text().partition("## Promises")
    rows = FAULT.findall(page)
    assert len(rows) == page.count("| `tests/"), "a row that this test cannot read"
    assert all(NAMED.search(tests) for _, _, tests in rows)
    steps = {name for _, names, _ in rows for name in re.findall(r"`(\w+)`", names)}
    known = _steps_of_walks()
    assert steps <= known
    assert known - steps <= {"renew", "again", "refused"}, "commands, no faults"
