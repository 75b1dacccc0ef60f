"""The page in a real browser: what it says, that it lives, and that it talks to nobody else.

Boards are made up (tests/boards). Screenshots land in artifacts/ to be looked at.
"""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import boards
import pytest
from held_port import held_port
from job_states import changed
from opened_page import PATIENCE_MS, opened_page
from playwright.sync_api import Browser, Page, expect
from serving import Serving

from joulecut_controller.board import Board
from joulecut_controller.plan.plan import Band
from joulecut_controller.plan.veto import Veto

pytestmark = pytest.mark.browser

SHOTS = Path(__file__).resolve().parents[2] / "artifacts"
JOB = "/#/job/gpt3-175b"
NARROW = "\u202f"  # between number and unit
MINUS = "\u2212"

expect.set_options(timeout=PATIENCE_MS)


opened = partial(opened_page, path=JOB)


def shot(page: Page, name: str, *, whole: bool = True) -> None:
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / f"page-{name}.png", full_page=whole, animations="disabled")


def said(page: Page, selector: str) -> str:
    """What a person reads there, with plain spaces."""
    return " ".join(page.locator(selector).first.inner_text().replace(NARROW, " ").split())


def test_an_enforced_job_is_told_whole(browser: Browser) -> None:
    with (
        Serving(boards.board(), metrics=lambda _: b"x 1\n") as served,
        opened(browser, served) as page,
    ):
        expect(page.locator("#live-text")).to_contain_text("live, pass 128")
        expect(page).to_have_title(re.compile("gpt3-175b saves 14.7"))
        assert said(page, "#mode") == "enforcing"
        assert said(page, "#simulated") == "simulated GPUs"
        assert "epoch 7" in said(page, "#facts")
        assert "Applied under leases." in said(page, ".reason")
        tiles = [said(page, f".tiles .tile >> nth={n}") for n in range(4)]
        assert tiles[0].startswith("Iteration time now, measured 3.278 s +1.2 %")
        assert "baseline measured 3.238 s" in tiles[0]
        assert "plan predicted 3.271 s" in tiles[0]
        assert f"7.120 kJ {MINUS}14.7 %" in tiles[1]
        assert f"2.172 kW {MINUS}15.7 %" in tiles[2]
        assert "gpu 14.9 %" in tiles[3]
        assert "computation 17.1 %" in tiles[3]
        assert "bloat before the plan predicted 312 W intrinsic, 0 W extrinsic, 41.0 W" in tiles[3]
        assert "W intrinsic, 0 W extrinsic, 0 W variability" in tiles[3]  # what is left
        key = said(page, ".key")
        assert "baseline measured 3.238 s, 8.347 kJ" in key
        assert "plan 42 predicted 3.271 s, 7.078 kJ" in key
        assert "deadline max_slowdown 2 % 3.303 s" in key
        shot(page, "enforcing")


@pytest.mark.long
def test_phases_work_and_every_veto_are_told(browser: Browser) -> None:
    whole = boards.board()
    job = whole.jobs[0]
    baseline = job.view.measured.baseline
    assert baseline is not None
    varied = replace(baseline, work_sd_ratio=0.12)
    against = (Veto("command", "paused by a person"), Veto("phase", "the job evaluates"))
    band = Band(0.003, 0.07, 0.061, 0.257)
    plan = replace(job.decision, forecast=replace(job.decision.forecast, band=band))
    job = replace(job, view=changed(job.view, baseline=varied), vetoes=against, decision=plan)
    with Serving(replace(whole, jobs=(job,))) as served, opened(browser, served) as page:
        states = page.locator(".states li")
        expect(states).to_have_count(6)  # money has two lines
        phase = "Phase train; so far 4 min of evaluate, 2 h of train"
        assert said(page, ".states li >> nth=0") == phase
        assert said(page, ".states li >> nth=1").startswith("Work varies by 12")
        within = said(page, ".states li >> nth=2").replace("\u202f", " ")
        assert "nine in ten stay within +0.3 % to +7.0 % time and \u221225.7 % to " in within
        assert "the job evaluates" in said(page, ".states li >> nth=5")


@pytest.mark.long
def test_no_plan_lies_below_the_lines_drawn(browser: Browser) -> None:
    """Bound and frontier go through the plan's own time, wherever the frontier's points are."""
    whole = boards.board()
    job = whole.jobs[0]
    plan_s = job.decision.forecast.iteration_time_s
    far = tuple(one for one in job.frontier if abs(one.iteration_time_s / plan_s - 1.0) > 0.03)
    assert job.frontier[0].iteration_time_s < plan_s
    far = (job.frontier[0], *far)  # the plan is far below a straight line between these two
    with Serving(replace(whole, jobs=(replace(job, frontier=far),))) as served:  # noqa: SIM117
        with opened(browser, served) as page:
            mark = page.locator(".frontier .mark.plan circle").first
            x, y = (float(mark.get_attribute(name) or "nan") for name in ("cx", "cy"))
            for line in ("bound", "curve"):
                drawn = page.locator(f".frontier .{line}").first.evaluate(
                    "(path, x) => { for (let at = 0; ; at += 0.5) {"
                    " const { x: left, y } = path.getPointAtLength(at);"
                    " if (left >= x || at > path.getTotalLength()) return y; } }",
                    x,
                )
                assert drawn >= y - 0.5, line  # downwards is less energy


@pytest.mark.long
def test_fleet_leases_and_decisions(browser: Browser) -> None:
    with Serving(boards.board()) as served, opened(browser, served) as page:
        expect(page.locator(".fleet tbody tr")).to_have_count(8)
        row = said(page, ".fleet tbody tr >> nth=0")
        assert row.startswith("node1/0 0 1200 MHz 1200 MHz 261 W 1")
        assert "applications clocks setting" in row
        first = page.locator(".fleet tbody tr >> nth=0 >> .meter.lease span")
        before = first.evaluate("node => parseFloat(node.style.width)")
        of_job = [event for event in boards.EVENTS if event.job]
        expect(page.locator(".decisions li")).to_have_count(len(of_job))
        assert said(page, ".decisions li >> nth=2").startswith("11:58:27 apply 7 GPUs lowered")
        page.wait_for_function(
            "before => parseFloat(document.querySelector('.meter.lease span').style.width)"
            " < before",
            arg=before,
        )  # the lease runs on between two passes


@pytest.mark.long
@pytest.mark.smoke
def test_the_page_follows_each_pass(browser: Browser) -> None:
    with Serving(boards.board("recommend", passes=5)) as served, opened(browser, served) as page:
        expect(page.locator("#live-text")).to_contain_text("pass 5")
        assert said(page, "#mode") == "recommending, no command is sent"
        expect(page.locator(".reason")).to_contain_text("Not applied: only recommended.")
        assert said(page, ".clocks li >> nth=0") == "0 node1/0 1200 default 1410"
        page.evaluate("document.querySelector('.clocks li').dataset.mine = 'kept'")
        shot(page, "recommending")
        served.publish(boards.board("enforce", passes=6))
        expect(page.locator("#live-text")).to_contain_text("pass 6")
        expect(page.locator("#mode")).to_have_text("enforcing")
        expect(page.locator(".clocks li").first).not_to_contain_text("default")
        assert said(page, ".clocks li >> nth=0") == "0 node1/0 1200 1200 1200"
        assert page.evaluate("document.querySelector('.clocks li').dataset.mine") == "kept"
        expect(page.locator(".spark path")).to_have_count(3)


@pytest.mark.long
def test_a_new_plan_brings_a_new_timeline(browser: Browser) -> None:
    first = boards.board(passes=1, microbatches=12)
    [job] = first.jobs
    assert job.decision is not None
    second = replace(
        first, pass_number=2, jobs=(replace(job, decision=replace(job.decision, generation=43)),)
    )
    with Serving(first) as served, opened(browser, served) as page:
        expect(page.locator(".timeline-card .lead")).to_contain_text("Plan 42")
        asked: list[str] = []
        page.on("request", lambda r: asked.append(r.url))
        for number in range(3, 8):  # the same plan: nothing to fetch
            served.publish(replace(first, pass_number=number))
            expect(page.locator("#live-text")).to_contain_text(f"pass {number},")
        assert [url for url in asked if "timeline" in url] == []
        served.publish(second)
        expect(page.locator(".timeline-card .lead")).to_contain_text("Plan 43")


def test_a_lost_controller_is_said_and_its_return_noticed(browser: Browser) -> None:
    with (
        held_port() as port,
        Serving(boards.board(passes=128), port=port) as served,
        opened(browser, served, allowed="net::ERR") as page,
    ):
        expect(page.locator("#live-text")).to_contain_text("live")
        banner = page.locator("#lost")
        expect(banner).to_be_hidden()
        served.stop()
        expect(banner).to_contain_text(re.compile(r"Controller lost, last seen \d+\s*s ago"))
        expect(banner).to_contain_text("returns to default clocks")
        shot(page, "lost", whole=False)
        with Serving(boards.board(passes=1), port=port):
            expect(banner).to_be_hidden()
            expect(page.locator("#live-text")).to_contain_text("pass 1,")


EMPTY: list[tuple[str, Board | None, list[str]]] = [
    ("waiting", None, ["Waiting for the controller\u2019s first pass.", "connected, no pass yet"]),
    (
        "empty",
        boards.empty(),
        [
            "No jobs in the policy.",
            "127.0.0.1:9431 agent lost (connection refused)",
            "No decision yet",
        ],
    ),
    (
        "measuring",
        boards.measuring(),
        [
            "Measuring the baseline (12 of 30 iterations).",
            "not measured yet",
            "No frontier yet: it follows the baseline.",
            "No timeline while there is no plan.",
            "2.966\u202fkW",  # the GPUs' own readings, before a window is complete
            "Unknown while there is no plan.",
        ],
    ),
    (
        "computing",
        replace(boards.board(), jobs=(replace(boards.job(), frontier=()),)),
        ["The frontier is being computed."],
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "board", "sentences"), EMPTY, ids=[e[0] for e in EMPTY])
def test_what_is_empty_says_why(
    browser: Browser, name: str, board: Board | None, sentences: list[str]
) -> None:
    path = "/" if name == "empty" else JOB
    unready = "" if board else "503"  # what a browser says of an answer before the first pass
    with Serving(board) as served, opened(browser, served, path=path, allowed=unready) as page:
        for sentence in sentences:
            expect(page.locator("body")).to_contain_text(sentence)
        assert not re.search(r"NaN|undefined|Infinity|\bnull\b|[Pp]lan 0", said(page, "body"))
        shot(page, name)


@pytest.mark.long
def test_trouble_is_shown(browser: Browser) -> None:
    with Serving(boards.straggling()) as served, opened(browser, served, scheme="dark") as page:
        expect(page.locator("#policy-error")).to_contain_text("is not in force")
        expect(page.locator("#policy-error")).to_contain_text("max_slowdown: -3%")
        expect(page.locator("#sentence")).to_have_text(
            "2 faults need a person. 1 job: 1 enforced. 1 job waits for a straggler."
        )
        expect(page.locator(".job-sentence")).to_contain_text("Waits for a slower sibling")
        assert said(page, ".fleet tbody tr >> nth=6").endswith("silent")
        assert "sibling pipeline reported 3.671 s" in said(page, ".key")
        shot(page, "straggler-dark")


@pytest.mark.long
def test_a_job_is_named_as_text_and_its_address_lasts(browser: Browser) -> None:
    whole = boards.board(microbatches=12)
    [first] = whole.jobs
    name = "llama <b>&amp; 70%"
    policy = replace(first.view.policy, name=name, mode="recommend")
    second = replace(first, view=replace(first.view, policy=policy), mode="recommend", applied=None)
    with (
        Serving(replace(whole, jobs=(first, second))) as served,
        opened(browser, served, path="/") as page,
    ):
        expect(page.locator("#mode")).to_have_text("enforcing 1 of 2 jobs")
        page.locator("a", has_text="llama").first.click()
        expect(page.locator(".job-name")).to_have_text(name)  # as text, not as markup
        expect(page.locator(".timeline-card .lead")).to_contain_text("Plan 42")
        page.reload()
        expect(page.locator(".job-name")).to_have_text(name)
        page.goto(f"{served.url}/#gpt3-175b")  # as the page before named it
        expect(page.locator(".job-name")).to_have_text("gpt3-175b")


def test_the_page_asks_for_nothing_it_does_not_have(browser: Browser) -> None:
    with Serving(boards.board()) as served:
        missing: list[str] = []
        with opened(browser, served) as page:
            page.on("response", lambda r: missing.append(r.url) if r.status >= 400 else None)
            page.reload()
            expect(page.locator(".timeline-card .lead")).to_contain_text("Plan 42")
        assert missing == []
