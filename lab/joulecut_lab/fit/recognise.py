"""Which card a sweep was measured on, by its clock and power."""

from collections.abc import Sequence
from dataclasses import replace

from joulecut_engine.estimate.card import CARDS, LIMIT_HELD, Card

# Power above this share of a card's limit belongs to another card or to a raised limit.
LIMIT_RATIO_MAX = 1.25  # A100 SXM with a 500 W limit exist beside those with 400 W
LIMIT_MET = 0.95  # held at the limit; work that pauses is at 3-4 % below it on average
LIMIT_USED_MIN = 0.5  # training draws more than half the limit
SEEN_MIN = 0.9  # of the highest clock; power falls by a fifth down to there


def candidates(clock_max_mhz: float, power_max_w: float) -> tuple[Card, ...]:
    """Cards with this highest clock and a limit that fits the power, smallest limit first."""
    found = [
        card
        for card in CARDS
        if card.clock_max_mhz == clock_max_mhz
        and LIMIT_USED_MIN <= power_max_w / card.power_limit_w <= LIMIT_RATIO_MAX
    ]
    return tuple(sorted(found, key=lambda card: card.power_limit_w))


def recognise(clock_max_mhz: float, power_max_w: float, seen_mhz: float) -> Card | None:
    """The card that a sweep was measured on, or None if that would be a guess.

    `clock_max_mhz` is the highest clock listed, `seen_mhz` the highest measured, and `power_max_w`
    the highest power. Of several candidates: the smallest whose limit was kept, and only if the
    limit was met, because light work on a large card draws as much as heavy work on a small one
    and a wrong limit misleads further than none. Power far below the highest clock is no
    evidence. Cards with the same clock and limit are one chip with different memory: the swept one
    stands for all.
    """
    found = candidates(clock_max_mhz, power_max_w)
    larger = [card for card in found if power_max_w <= LIMIT_HELD * card.power_limit_w]
    found = tuple(larger) or found
    if len(found) > 1 and seen_mhz < SEEN_MIN * clock_max_mhz:
        return None
    met = bool(found) and power_max_w >= LIMIT_MET * found[0].power_limit_w
    if not met and _larger(found, clock_max_mhz):
        return None
    if not found:
        return None
    alike = [card for card in found if card.power_limit_w == found[0].power_limit_w]
    swept = next((card for card in alike if card.knee_mhz is not None), alike[0])
    return replace(swept, name=" or ".join(card.name for card in alike))


def _larger(found: Sequence[Card], clock_max_mhz: float) -> bool:
    """Whether a card with that clock has a larger limit than the first candidate."""
    return any(
        card.clock_max_mhz == clock_max_mhz and card.power_limit_w > found[0].power_limit_w
        for card in CARDS
        if found
    )
