"""Held-out clocks and unseen work on the public GPT-3 stages: who predicts them how well."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_engine.estimate.evidence import Evidence, Work
from prediction import scores
from prediction.learners import LEARNERS, Learner, product
from prediction.scores import Predicted, Score
from prediction.sweeps import applications, at, card, stages

PROBES = {
    ("A100", 5): (1410, 1275, 1140, 990, 855),
    ("A100", 3): (1410, 1140, 855),
    ("A40", 5): (1740, 1515, 1290, 1080, 855),
    ("A40", 3): (1740, 1290, 855),
}
# The same five with the inner ones elsewhere, so that no lucky set is mistaken for skill.
SHIFTS_MHZ = (-60, -30, 30, 60)
NAMED = "Joulecut, card named"
SURE = "Joulecut, card named, upper edge of its band"


@dataclass(frozen=True, slots=True)
class Case:
    """A protocol: which clocks of which work are known, and what else was swept."""

    name: str
    taught: tuple[Evidence, ...]
    truth: tuple[Evidence, ...]
    probes: tuple[tuple[int, ...], ...]  # one set; or several, of which the mean counts
    cards: tuple[str | None, str | None] = (None, None)  # of the truth and of what is taught


def judged(case: Case) -> Iterator[tuple[str, Score]]:
    """Every learner on one case; the product also knowing the card, and also as it enforces."""
    for name, learner in LEARNERS.items():
        yield name, judge(case, learner)
    yield NAMED, judge(case, product, named=True)
    yield SURE, judge(case, product, named=True, sure=True)


def ours(case: Case, *, named: bool = False, sure: bool = False) -> Score:
    return judge(case, product, named=named, sure=sure)


def judge(case: Case, learner: Learner, *, named: bool = False, sure: bool = False) -> Score:
    here, there = case.cards if named else (None, None)
    taught = [_on(one, there) for one in case.taught]
    asked = [one.sweep.clocks_mhz for one in case.truth]
    found = []
    for probes in case.probes:
        probed = [at(one, probes, here) for one in case.truth]
        said: list[Predicted] = learner(taught, probed, asked)
        found.append(scores.score(case.truth, probed, said, sure=sure))
    return scores.mean(found)


def _on(one: Evidence, name: str | None) -> Evidence:
    return Evidence(one.work, one.sweep, None if name is None else card(name))


def held_out(name: str) -> tuple[Case, ...]:
    """Only some clocks of every curve of a card are known."""
    truth = stages(name)
    swept = [int(clock) for clock in truth[0].sweep.clocks_mhz]
    five, three = PROBES[name, 5], PROBES[name, 3]
    shifted = tuple(
        (five[0], *(clock + shift for clock in five[1:-1]), five[-1]) for shift in SHIFTS_MHZ
    )
    kinds = (
        ("5 clocks", (five,)),
        ("5 clocks, inner ones shifted", shifted),
        ("3 clocks", (three,)),
        ("every second clock", (tuple(swept[::-1][::2]),)),
    )
    return tuple(Case(f"{name}, {kind}", (), truth, sets, (name, None)) for kind, sets in kinds)


def unseen_card(known: str, unseen: str) -> tuple[Case, ...]:
    """Swept on one card, one or two probes on another."""
    taught, truth = stages(known, f"gpt3 on {known}"), stages(unseen, f"gpt3 on {unseen}")
    return _few_probes(f"{known} to {unseen}", taught, truth, (unseen, known))


def unseen_kind(name: str, kind: str) -> tuple[Case, ...]:
    """One kind of operation was swept on this card; of the other there are one or two probes."""
    everything = stages(name)
    taught = tuple(_renamed(one, "known") for one in everything if one.work.kind != kind)
    truth = tuple(_renamed(one, "unseen") for one in everything if one.work.kind == kind)
    return _few_probes(f"{name}, {kind} unseen", taught, truth, (name, name))


def _renamed(one: Evidence, workload: str) -> Evidence:
    return Evidence(Work(workload, one.work.stage, one.work.kind), one.sweep)


def _few_probes(
    name: str,
    taught: tuple[Evidence, ...],
    truth: tuple[Evidence, ...],
    cards: tuple[str, str],
) -> tuple[Case, ...]:
    clocks = truth[0].sweep.clocks_mhz
    lowest, highest = int(clocks[0]), int(clocks[-1])
    sets = {"1 probe": (highest,), "2 probes": (highest, lowest)}
    return tuple(
        Case(f"{name}, {said}", taught, truth, (probes,), cards) for said, probes in sets.items()
    )


def unseen_applications(probes: int) -> tuple[Score, ...]:
    """One application after another: all others swept, of this one so many probes.

    A card never named: Ali's A100 draws 476 W, which no data sheet allows.
    """
    pieces = tuple(
        Evidence(Work(name, 0, "forward"), sweep) for name, sweep in applications().items()
    )
    found = []
    for one in pieces:
        others = tuple(other for other in pieces if other is not one)
        clocks = one.sweep.clocks_mhz
        places = np.linspace(0, clocks.size - 1, probes).round().astype(int) if probes > 1 else [-1]
        known = at(one, tuple(int(clocks[i]) for i in places))
        said = product(others, (known,), (clocks,))
        found.append(scores.score((one,), (known,), said))
    return tuple(found)


def median(found: Sequence[Score]) -> tuple[float, float, float]:
    """Median error of time, power and energy over applications."""
    time, power, energy = np.median([one.error for one in found], axis=0)
    return float(time), float(power), float(energy)
