"""What is generated is compared with its source, so that it cannot be edited or forgotten."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_metrics_page_is_what_the_table_says() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "metrics-doc"))["page"]
    assert (ROOT / "docs" / "metrics.md").read_text() == page(), "run make docs"
