"""What is generated is compared with its source, so that it cannot be edited or forgotten."""

import json
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "controller" / "joulecut_controller" / "web" / "static"


def test_the_metrics_page_is_what_the_table_says() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "metrics-doc"))["page"]
    assert (ROOT / "docs" / "metrics.md").read_text() == page(), "run make docs"


def test_the_glossary_has_the_words_that_the_page_explains() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "glossary-doc"))["page"]
    assert (ROOT / "docs" / "concepts.md").read_text() == page(), "run make docs"
    words = json.loads((STATIC / "terms.json").read_text())
    scripts = "".join(script.read_text() for script in STATIC.glob("*.js"))
    used = set(re.findall(r'(?:term\(|term: )"([^"]+)"', scripts))
    assert "lease" in used
    assert used <= words.keys()


def test_the_keys_of_the_policy_page_are_those_of_the_schema() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "policy-doc"))["page"]
    text = (ROOT / "docs" / "policy.md").read_text()
    assert text == page(text), "run make docs"


def test_the_pictures_of_the_concepts_are_plans_of_the_solver() -> None:
    """Figures may move in the last digit with another processor; which boxes there are may not."""
    made = runpy.run_path(str(ROOT / "tools" / "pictures"))["pictures"]()
    for name, text in made.items():
        drawn = (ROOT / "docs" / "pictures" / name).read_text()
        assert text.count("<rect") == drawn.count("<rect"), f"{name}: run make docs"
