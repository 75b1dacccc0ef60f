"""The page of promises names tests that exist, and forgets no promise."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (S\d+) \|.*\|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_each_promise_names_tests_that_exist() -> None:
    rows = {
        row[1]: NAMED.findall(row[0]) for row in ROW.finditer((ROOT / "docs/safety.md").read_text())
    }
    assert list(rows) == [f"S{n}" for n in range(1, 16)]
    for promise, tests in rows.items():
        assert tests, promise
        for path, name in tests:
            assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text(), re.MULTILINE), name
