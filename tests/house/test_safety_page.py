"""The page of promises and faults names tests that CI runs and steps that exist."""

import ast
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROMISE = re.compile(r"^\| (S\d+) \|.*\|$", re.MULTILINE)
FAULT = re.compile(r"^\| (.*?) \| .* \| .* \| (.*?) \| (`tests/.*) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py::\w+)`( \(night\))?")
PROMISES = 20
Marked = list[tuple[str, set[str]]]


def _written(files: list[str]) -> Marked:
    """Every test in files and its marks, and once more for each parameter with marks of its own:
    read from the source, for pytest would import all of it."""
    found: Marked = []
    for file in files:
        body = ast.parse((ROOT / file).read_text()).body
        assigned = [n for n in body if isinstance(n, ast.Assign)]
        of_file = [n.value for n in assigned if ast.unparse(n.targets[0]) == "pytestmark"]
        inside = [one for n in body if isinstance(n, ast.ClassDef) for one in n.body]
        for test in (n for n in (*body, *inside) if isinstance(n, ast.FunctionDef)):
            marks = _marks([*of_file, *test.decorator_list])
            calls = [n for d in test.decorator_list for n in ast.walk(d) if isinstance(n, ast.Call)]
            given = [k.value for call in calls for k in call.keywords if k.arg == "marks"]
            found += [(f"{file}::{test.name}", marks | _marks([one])) for one in given]
            found.append((f"{file}::{test.name}", marks))
    return found


def _marks(given: list[ast.expr]) -> set[str]:
    each = [one for node in given for one in (node.elts if isinstance(node, ast.List) else [node])]
    found = [re.match(r"pytest\.mark\.(\w+)", ast.unparse(one)) for one in each]
    return {mark[1] for mark in found if mark}


def _chosen(words: list[str], written: Marked) -> set[str]:
    """Of them those that `-m` chooses: the last one counts, that of pyproject.toml else."""
    usual = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    said = [*usual["addopts"], *words]
    wanted = [said[i + 1] for i, word in enumerate(said) if word == "-m"][-1]
    rule = compile(wanted, "-m", "eval")
    return {
        test
        for test, marks in written
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
    written = _written(sorted({test.partition("::")[0] for test in named}))
    ci = set[str]().union(*(_chosen(words, written) for words in _words_of_ci()))
    at_night = {test for test, night in named.items() if night}
    assert named.keys() - at_night <= ci
    assert at_night <= {test for test, _ in written} - ci
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
