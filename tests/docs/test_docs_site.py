"""The site of the documents builds, with every page, and a link to nothing fails the build."""

import subprocess
import sys
from pathlib import Path

import pytest
from docs_commands import ROOT, pages

TOOL = ROOT / "tools" / "docs-site"


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.long
def test_the_site_builds_with_every_page_and_without_a_broken_link(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    for page in pages():
        place = page.relative_to(ROOT).with_suffix("")
        folder = place.parent if place.name in {"README", "index"} else place
        text = (site / folder / "index.html").read_text()
        assert "//fonts." not in text
    assert "kubernetes" in (site / "search" / "search_index.json").read_text()


@pytest.mark.long
@pytest.mark.parametrize("link", ["nothing.md", "policy.md#no-such-heading"])
def test_a_link_to_nothing_fails_the_build(tmp_path: Path, link: str) -> None:
    page = ROOT / "docs" / "of-this-test.md"
    page.write_text(f"# One\n\n[link]({link})\n")
    try:
        done = build(tmp_path)
    finally:
        page.unlink()
    assert done.returncode != 0
    assert link.rpartition("#")[2] in done.stdout + done.stderr
