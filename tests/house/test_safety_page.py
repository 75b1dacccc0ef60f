"""The pages of promises and faults name tests and steps that exist, and forget none."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROMISE = re.compile(r"^\| (S\d+) \|.*\|$", re.MULTILINE)
FAULT = re.compile(r"^\| (.*?) \| .* \| .* \| (.*?) \| (`tests/.*`) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PROMISES = 20


def _exist(text: str) -> bool:
    """Whether it names tests, and each exists."""
    named = NAMED.findall(text)
    for path, name in named:
        assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text(), re.MULTILINE), name
    return bool(named)


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


def test_each_promise_names_tests_that_exist() -> None:
    rows = {row[1]: row[0] for row in PROMISE.finditer((ROOT / "docs/safety.md").read_text())}
    assert list(rows) == [f"S{n}" for n in range(1, PROMISES + 1)]
    assert all(_exist(row) for row in rows.values())


def test_each_fault_names_a_test_and_each_fault_of_a_walk_is_on_the_page() -> None:
    page, _, _ = (ROOT / "docs/safety.md").read_text().partition("## Promises")
    rows = FAULT.findall(page)
    assert len(rows) == page.count("| `tests/"), "a row that this test cannot read"
    assert all(_exist(tests) for _, _, tests in rows)
    steps = {name for _, names, _ in rows for name in re.findall(r"`(\w+)`", names)}
    known = _steps_of_walks()
    assert steps <= known
    assert known - steps <= {"renew", "again", "refused"}, "commands, no faults"
