"""A page of a server in a headless browser: without script errors, and without other servers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from playwright.sync_api import Browser, Page
from serving import Serving

PATIENCE_MS = 90_000  # for a machine that stands still now and then; met early on every other


@contextmanager
def opened_page(
    browser: Browser,
    served: Serving,
    *,
    scheme: Literal["light", "dark"] = "light",
    width: int = 1280,
    height: int = 800,
    allowed: str = "",
    path: str = "/",
) -> Iterator[Page]:
    """The page; at the end, no script error and no request to anybody else but the server.

    `allowed`: console errors with this in them are expected (a lost connection).
    """
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, timezone_id="UTC"
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    errors: list[str] = []
    foreign: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    own = served.url
    page.on("request", lambda r: None if r.url.startswith(own) else foreign.append(r.url))
    try:
        page.goto(served.url + path)
        yield page
    finally:
        context.close()
    assert foreign == []
    assert [text for text in errors if not allowed or allowed not in text] == []
