"""The report of a self-test: one screen, and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from joulecut_agent.selftest import judge
from joulecut_agent.selftest.evidence import Evidence
from joulecut_wire.card_facts import CardFacts

Json = dict[str, Any]
MARKS = {judge.OK: "ok", judge.WRONG: "!!", judge.NOTE: " i", judge.UNANSWERED: " -"}


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
                "changes": [asdict(one) for one in card.seen.changes],
                "samples": len(card.seen.samples),
            }
            for card in cards
        ],
    }
