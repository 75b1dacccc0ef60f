"""The home page in a real browser: a large fleet, every width, both schemes, keyboard and reader.

One server and one browser for all tests; boards are made up (tests/boards).
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import boards
import large
import pytest
from job_states import changed
from opened_page import PATIENCE_MS, opened_page
from playwright.sync_api import Browser, Page, expect
from serving import Serving

from joulecut_controller.board import Board
from joulecut_controller.cluster.history import COARSE_S, History
from joulecut_controller.store.database import open_store
from joulecut_controller.web.links import Links

pytestmark = pytest.mark.browser

NARROW = "\u202f"
WIDTHS = (390, 1100, 1600)
HISTORY_POINTS = 240
HOME_BYTES_MAX = 16_000  # of the first screen's JSON, whatever the fleet

expect.set_options(timeout=PATIENCE_MS)


def fleet() -> Board:
    """10,000 GPUs, 100 jobs; one of them only recommended and ready, and one agent lost."""
    whole = large.board()
    first, second, *rest = whole.jobs
    policy = replace(first.view.policy, mode="recommend")
    ready = replace(first, mode="recommend", applied=None, view=changed(first.view, policy=policy))
    slow = replace(second, view=changed(second.view, peer_iteration_time_s=4.2))
    lost = replace(whole.view.nodes[7], connected=False, error="no answer for 9 s")
    nodes = (*whole.view.nodes[:7], lost, *whole.view.nodes[8:])
    return replace(whole, jobs=(ready, slow, *rest), view=replace(whole.view, nodes=nodes))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('home') / 'store.db'}")
    history, small, now_s = History(store), boards.board(), time.time()
    for step in range(HISTORY_POINTS):
        at = replace(small, at_unix_s=now_s - COARSE_S * (HISTORY_POINTS - step))
        history.add(at)
    links = Links(
        "https://grafana.example/d/joulecut?var-job={job}", "https://docs.example/runbook"
    )
    with Serving(fleet(), store=store, history=history, links=links) as server:
        yield server
    store.close()


opened = partial(opened_page, width=1600, height=900)


def plain(page: Page, selector: str) -> str:
    return " ".join(page.locator(selector).first.inner_text().replace(NARROW, " ").split())


def table(page: Page, name: str) -> Any:
    return page.get_by_role("region", name=name, exact=True)


def test_the_cluster_is_told_on_one_screen_and_its_tables_have_pages(
    browser: Browser, served: Serving
) -> None:
    assert len(served.get("/api/v1/cluster").body) < HOME_BYTES_MAX
    with opened(browser, served) as page:
        rows = rows_of(page)
        expect(rows).to_have_count(50)
        assert plain(page, "#sentence") == (
            "1 fault needs a person: node0007: agent lost (no answer for 9 s). "
            "100 jobs: 99 enforced, 1 recommended. 1 job waits for a straggler. "
            "1 plan available: -14.9 % energy (recommend)."
        )
        needs = [one.split(" ")[0] for one in page.locator(".needs li").all_inner_texts()]
        assert [one.split("\n")[0] for one in needs] == ["fault", "decide", "note"]
        assert "runbook#joulecutagentlost" in str(
            page.locator(".needs .book").first.get_attribute("href")
        )
        expect(page.locator(".chart canvas")).to_have_count(1)
        stats = [plain(page, f".stat >> nth={n}") for n in range(4)]
        assert "10000 of 10000" in stats[2]
        assert "99 of 100 enforced" in stats[2]
        amounts = (
            "import('/static/format.js').then(({amount}) => [0.0016, -0.25, 12.345].map(amount))"
        )
        assert page.evaluate(amounts) == ["0.0016", "-0.25", "12.35"]
        page.get_by_role("button", name="Next page of Jobs").click()
        expect(rows.first).to_contain_text("job050")
        page.get_by_label("Search Jobs").fill("recommended")
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("ready: set mode: enforce")
        nodes = table(page, "Nodes").locator("tbody tr")
        table(page, "Nodes").get_by_role("button", name="Agent").click()
        page.get_by_label("Search Nodes").fill("node0007")
        expect(nodes).to_have_count(1)
        nodes.get_by_role("link").click()
        gpus = table(page, "GPUs").locator("tbody tr")
        expect(gpus).to_have_count(8)
        gpus.first.get_by_role("link").click()
        expect(page.locator(".job-name")).to_have_text("job000")
        grafana = page.locator(".job-links a").first.get_attribute("href")
        assert grafana == "https://grafana.example/d/joulecut?var-job=job000"
        page.go_back()
        expect(gpus).to_have_count(8)


def test_what_was_chosen_lives_in_the_address_and_a_page_that_is_none_is_named(
    browser: Browser, served: Serving
) -> None:
    with opened(browser, served) as page:
        rows = rows_of(page)
        expect(rows).to_have_count(50)
        table(page, "Jobs").get_by_role("button", name="Job").first.click()
        expect(rows.first).to_contain_text("job099")
        page.get_by_label("Search Jobs").fill("job00")
        expect(rows).to_have_count(10)
        page.get_by_role("button", name="1 h", exact=True).click()
        page.reload()
        expect(rows).to_have_count(10)
        expect(rows.first).to_contain_text("job009")
        expect(page.get_by_label("Search Jobs")).to_have_value("job00")
        expect(page.locator(".spans button[aria-pressed=true]")).to_have_text("1 h")
        assert "NaN" not in page.locator("body").inner_text()
    for path, text in (
        ("/#/jobs", "No page /jobs."),
        ("/#/job/none", "No job none"),
        ("/#/node/none", "No agent of the name none."),
    ):
        allowed = "404" if "job/none" in path else ""
        with opened(browser, served, path=path, allowed=allowed) as page:
            expect(page.locator("#view")).to_contain_text(text)
            page.get_by_role("link", name="All jobs").click()
            expect(rows_of(page)).to_have_count(50)


def rows_of(page: Page) -> Any:
    return table(page, "Jobs").locator("tbody tr")


def test_the_whole_page_works_by_keyboard_alone(browser: Browser, served: Serving) -> None:
    with opened(browser, served) as page:
        expect(table(page, "Jobs").locator("tbody tr")).to_have_count(50)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.get_by_role("region", name="Jobs", exact=True).focus()
        page.keyboard.press("Tab")  # the first heading
        page.keyboard.press("Enter")
        expect(table(page, "Jobs").locator("tbody tr").first).to_contain_text("job099")
        page.keyboard.press("Tab")  # the second: what "State" means is said on focus
        expect(page.locator("#term-tip")).to_contain_text("a plan waits for a person")
        page.keyboard.press("Escape")
        expect(page.locator("#term-tip")).to_be_hidden()
        page.get_by_role("link", name="job099").focus()
        page.keyboard.press("Enter")
        expect(page.locator(".job-name")).to_have_text("job099")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_no_serious_barrier_and_nothing_over_the_edge(
    browser: Browser, served: Serving, scheme: Literal["light", "dark"]
) -> None:
    """axe-core on home and job page; widths by resizing one page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for path, ready in (("/", ".needs li"), ("/#/job/job001", ".timeline-card .lead")):
        with opened(browser, served, scheme=scheme, path=path) as page:
            expect(page.locator(ready).first).to_be_visible()
            expect(page.locator(".paged tbody tr").first).to_be_visible()
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert over <= 0, (path, width)
            found = axe.Axe().run(page).response["violations"]
            serious = [
                (one["id"], [node["target"] for node in one["nodes"]][:3])
                for one in found
                if one["impact"] in ("serious", "critical")
            ]
            assert serious == [], path


@pytest.mark.long
def test_on_a_phone_each_row_of_a_table_is_a_card(browser: Browser, served: Serving) -> None:
    with opened(browser, served, width=390) as page:
        row = table(page, "Jobs").locator("tbody tr").first
        row.wait_for()
        for cell in row.locator("td:visible").all():
            box = cell.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390
        shown = plain(page, ".paged tbody tr td.number:visible")
        assert shown.startswith(("+", "of", "-")), "the value; its head is drawn beside it"
