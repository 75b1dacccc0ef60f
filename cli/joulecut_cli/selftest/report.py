"""The report of a self-test: one screen, JSON, and one self-contained page with plots."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import pairwise
from typing import Any

import msgspec

from joulecut_agent.keeper.evidence import BUSY_RATIO
from joulecut_agent.selftest import judge
from joulecut_agent.selftest.evidence import Evidence
from joulecut_agent.selftest.observations import latencies_s, quantile
from joulecut_cli.page import document, table
from joulecut_cli.plot import require
from joulecut_engine.panel import WIDTH, Line, Panel, Point, html
from joulecut_wire.card_facts import CardFacts

Json = dict[str, Any]
MARKS = {judge.OK: "ok", judge.WRONG: "!!", judge.NOTE: " i", judge.UNANSWERED: " -"}
STYLE = ".wrong{color:var(--due);font-weight:600}td{vertical-align:top}"
HEAD = ("ASSUMPTION", "VERDICT", "MEASURED", "ASSUMED", "WHAT FOLLOWS")


@dataclass(frozen=True, slots=True)
class CardReport:
    """One card: what was seen, what follows, and what replaces the assumptions."""

    seen: Evidence
    findings: tuple[judge.Finding, ...]
    facts: CardFacts

    @property
    def wrong(self) -> tuple[judge.Finding, ...]:
        return tuple(one for one in self.findings if one.verdict == judge.WRONG)


def screen(cards: Sequence[CardReport]) -> Iterator[str]:
    for card in cards:
        first = card.seen.first
        yield f"GPU {first.index}  {card.seen.model}  {first.uuid}: measured [assumed]"
        width = max(len(one.name) for one in card.findings)
        for one in card.findings:
            said = f"{one.measured} [{one.assumed}]"
            if one.verdict == judge.UNANSWERED:
                said = f"not answered: {one.measured}"
            yield f"  {MARKS[one.verdict]}  {one.name:<{width}}  {said}"
            if one.follows:
                yield f"      {'':<{width}}  so: {one.follows}"
    wrong = sum(len(card.wrong) for card in cards)
    unanswered = sum(one.verdict == judge.UNANSWERED for card in cards for one in card.findings)
    yield f"{wrong or 'No'} assumption{'' if wrong == 1 else 's'} wrong, {unanswered} not answered."


def to_json(cards: Sequence[CardReport], *, simulated: bool) -> Json:
    """Everything but single samples; `basis` is simulated over the fake driver."""
    return {
        "basis": "simulated" if simulated else "measured",
        "wrong": sum(len(card.wrong) for card in cards),
        "cards": [
            {
                "identity": asdict(card.seen.first),
                "model": card.seen.model,
                "findings": [asdict(one) for one in card.findings],
                "facts": msgspec.to_builtins(card.facts),
                "calls_s": {
                    name: {
                        "p50": quantile(taken, 0.5),
                        "p99": quantile(taken, 0.99),
                        "count": len(taken),
                    }
                    for name, taken in sorted(card.seen.calls_s.items())
                },
                "changes": [asdict(one) for one in card.seen.changes],
                "samples": len(card.seen.samples),
            }
            for card in cards
        ],
    }


def page(cards: Sequence[CardReport], *, simulated: bool) -> str:
    """Raises Unavailable without matplotlib."""
    require()
    basis = "Simulated: over the fake driver." if simulated else "Measured on this machine."
    body = [f"<p>{basis} Nothing was uploaded.</p>"]
    for card in cards:
        first = card.seen.first
        rows = [(o.name, o.verdict, o.measured, o.assumed, o.follows) for o in card.findings]
        plain = f"<td class=text>{judge.WRONG}</td>"
        marked = plain.replace("text", '"text wrong"')
        shown = table(HEAD, rows, range(1, len(HEAD))).replace(plain, marked)
        body.append(
            f"<section><h2>GPU {first.index}: {escape(card.seen.model)}</h2>"
            f"<p>{escape(first.uuid)}, driver {escape(first.driver)}, VBIOS {escape(first.vbios)}"
            f"</p>{shown}</section>"
        )
        body += [f"<section>{html(one, width=WIDTH)}</section>" for one in _plots(card)]
    return document("joulecut selftest", body, rules=STYLE)


def _plots(card: CardReport) -> Iterator[Panel]:
    seen = card.seen
    known_ms = sorted(1e3 * one for one in latencies_s(seen))
    if known_ms:
        shares = tuple((ms, (k + 1) / len(known_ms)) for k, ms in enumerate(known_ms))
        yield Panel("Latency of a lock", "ms", "share of changes", (Line("", "ours", shares),))
    loaded = [
        (one.clock_mhz, one.instant_w if one.instant_w is not None else one.average_w)
        for one in seen.samples
        if one.lock is not None and (one.busy_ratio or 0.0) >= BUSY_RATIO
    ]
    points = sorted((float(mhz), float(watts)) for mhz, watts in loaded if mhz and watts)
    if points:
        dots = Line("", "ours", tuple(points), "dots")
        yield Panel("Power against clock, under load", "MHz", "W", (dots,))
    if lines := _counted(seen):
        yield Panel("Energy counter against integrated power", "s", "J", lines)


def _counted(seen: Evidence) -> tuple[Line, ...]:
    first = next((one for one in seen.samples if one.energy_j is not None), None)
    if first is None:
        return ()
    integral_j, counted, integrated = 0.0, list[Point](), list[Point]()
    for a, b in pairwise(seen.samples):
        power_w = a.average_w if a.instant_w is None else a.instant_w
        if power_w is None or b.energy_j is None:
            continue
        integral_j += power_w * (b.at_s - a.at_s)
        counted.append((b.at_s - first.at_s, b.energy_j - (first.energy_j or 0.0)))
        integrated.append((b.at_s - first.at_s, integral_j))
    both = ("counter", "ours", counted), ("integrated power", "gpu", integrated)
    return tuple(Line(name, colour, tuple(points)) for name, colour, points in both if points)
