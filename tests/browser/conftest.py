"""A headless Chromium, the system's own; without one these tests are skipped."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

# As root in a container, and without asking anything of the network.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip


def _chromium() -> str | None:
    found = shutil.which("chromium")
    return found or ("/usr/bin/chromium" if Path("/usr/bin/chromium").is_file() else None)


# Of one module, not of the session: while Playwright's synchronous interface is open, its
# event loop counts as running in this thread, and no other test could use asyncio.run.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = _chromium()
    if path is None:
        pytest.skip("no browser: install the Debian package chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield chromium
        chromium.close()
