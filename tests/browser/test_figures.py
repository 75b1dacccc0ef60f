"""Figures as a reader sees them, in a real browser: all is drawn, and no text lies on another.

The four talks hold every kind of figure there is; what they draw is kept as data, not as pixels.
"""

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from golden_text import same_as_golden
from playwright.sync_api import Browser

from joulecut_cli.page import document
from joulecut_engine.panel import Bars, Line, Mark, Spans, html
from joulecut_lab.exhibit import Exhibit
from joulecut_lab.exhibit import talk as talk_page
from joulecut_lab.model import formula
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.run import Run
from joulecut_lab.model_chart import estimate_panels
from joulecut_lab.talks import bloat, components, efficiency, layers

KEPT = Path(__file__).parent.parent / "golden" / "talks"
# Of each figure: texts that leave it, pairs of texts that overlap, labels on marks, things drawn.
SEEN = """() => [...document.querySelectorAll("svg.chart")].map(svg => {
  const inner = (a, b) => Math.min(Math.min(a.right, b.right) - Math.max(a.left, b.left),
                                   Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top));
  const whole = svg.getBoundingClientRect(), scale = whole.width / svg.viewBox.baseVal.width;
  const box = one => one.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].filter(one => one.textContent.trim());
  const out = texts.filter(one => box(one).left < whole.left - 2 || box(one).top < whole.top - 2
    || box(one).right > whole.right + 2 || box(one).bottom > whole.bottom + 2);
  const over = texts.flatMap((one, i) => texts.slice(i + 1)
    .filter(other => inner(box(one), box(other)) > 3 * scale)
    .map(other => `${one.textContent} on ${other.textContent}`));
  const marks = [...svg.querySelectorAll("[id^='mark-']")];
  const on = [...svg.querySelectorAll("[id^='label-'] text")].flatMap(one => marks
    .filter(mark => inner(box(one), box(mark)) > 3 * scale).map(_ => one.textContent));
  const drawn = [...svg.querySelectorAll("path, use, image")].filter(one => box(one).width > 0);
  return {title: svg.getAttribute("aria-label"), out: out.map(one => one.textContent), over, on,
          drawn: drawn.length, tall: whole.height};
})"""


def looked_at(browser: Browser, page: Path) -> list[dict[str, Any]]:
    """What each figure of a page is, having judged it."""
    with browser.new_context(viewport={"width": 1000, "height": 900}) as context:
        shown = context.new_page()
        shown.goto(page.as_uri())
        found: list[dict[str, Any]] = shown.evaluate(SEEN)
        wider = shown.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0
    for one in found:
        assert one["drawn"] >= 3, one["title"]
        assert one["tall"] > 80, one["title"]
        assert (one["out"], one["over"], one["on"]) == ([], [], []), one["title"]
    return found


QUICK: tuple[Callable[[], Iterator[Exhibit]], ...] = (
    layers.packages, layers.post_dennard_power, layers.timelines, efficiency.demand,
    components.breakdown,
)  # fmt: skip


@pytest.mark.browser
def test_figures_are_legible(browser: Browser, tmp_path: Path) -> None:
    """Of the talks those that take a moment, and the bars of an estimate."""
    exhibits = [one for part in QUICK for one in part()]
    run = Run(gpus=64, tensor=8, pipeline=8, data=1, global_batch=64, recompute="full")
    found = formula.estimate(ARCHITECTURES["gpt3-175b"], SYSTEMS["dgx-a100"], run)
    more = [html(panel) for panel in estimate_panels(found, SYSTEMS["dgx-a100"].hbm_bytes)]
    page = tmp_path / "figures.html"
    page.write_text(document("figures", [*(one.html() for one in exhibits), *more]))
    drawn = looked_at(browser, page)
    assert len(drawn) == sum(len(one.panels) for one in exhibits) + len(more)


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.parametrize("talk", [layers, efficiency, components, bloat])
def test_a_page_holds_every_figure_and_the_data_are_kept(
    talk: Any, browser: Browser, tmp_path: Path
) -> None:
    """The golden is of data: titles, bases, names of what is drawn, numbers beside the talk's."""
    exhibits = [one for part in talk.PARTS for one in part()]
    name = talk.__name__.rpartition(".")[2]
    page = talk_page(tmp_path, name, "t", exhibits)
    text = page.read_text()
    assert not re.search(r"(src|href)=(?!\"#)|url\((?!#)|@import|<script", text)
    assert "nan" not in re.sub(r"<style.*?</style>", "", text)
    with (tmp_path / f"{name}.csv").open(newline="") as file:
        told = {row["exhibit"] for row in csv.DictReader(file)}
    assert told <= {one.title for one in exhibits}
    assert len(told) > len(exhibits) / 2
    same_as_golden(KEPT / f"{name}.txt", "\n".join(_words(exhibits)))
    drawn = looked_at(browser, page)
    titles = [panel.title for one in exhibits for panel in one.panels]
    assert [one["title"] for one in drawn] == titles


def _words(exhibits: list[Exhibit]) -> list[str]:
    """Two digits of a number: the last ones differ between machines."""
    found = []
    for one in exhibits:
        found.append(f"{one.title} [{one.basis}]")
        for panel in one.panels:
            found.append(f"  figure: {panel.title}; {panel.x_label}; {panel.y_label}")
            found += [f"    {_item(item)}" for item in panel.items]
        found += [f"  {c.what}: {c.ours:.2g} / {'' if c.published is None else f'{c.published:g}'}"
                  f" {c.unit} {c.note}".rstrip() for c in one.compared]  # fmt: skip
        found += [f"  {row[0]}" for row in one.rows]
    return found


def _item(item: object) -> str:
    name = getattr(item, "label", "") or getattr(item, "name", "")
    kind = type(item).__name__.lower()
    match item:
        case Line(points=many) | Spans(spans=many):
            return f"{kind} {name}: {len(many)} points"
        case Bars(values=values):
            return f"{kind} {name}: {', '.join(f'{value:.2g}' for value in values)}"
        case Mark():
            return f"{kind} {name}"
    return f"{kind} {name}"
