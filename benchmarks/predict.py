"""Accuracy of the predictors on public measurements, compared with common learners.

    python benchmarks/predict.py [--only clocks,kinds,cards,...] [--out FILE]

The accuracies are the same on every run with the same data, code and processor. Public data is
read in place (listed in `prediction/sweeps.py`); without it the exit status is 1.
benchmarks/results/predictors.md is this program's output:
`python benchmarks/predict.py --out benchmarks/results/predictors.md`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from prediction import clocks, scores
from prediction.clocks import Case
from prediction.scores import BUDGETS, Score
from prediction.sweeps import DATA, STAGES_AT

CARDS = ("A100", "A40")
KINDS = ("forward", "backward")
BOTH_WAYS = (("A100", "A40"), ("A40", "A100"))
HEAD = """# Accuracy of the predictors

This page compares the predictors with common learners on public data. Generated on {date} by
`python benchmarks/predict.py --out benchmarks/results/predictors.md`; do not edit. Every run on one
machine prints the same accuracies.

| data | source |
| --- | --- |
| GPT-3 175B stages on A100-SXM and A40 at every clock | Perseus, SOSP'24 artifact |
| 21 applications on an A100 | Ali et al., "Optimal GPU frequency selection using DNN models" |

There is one sweep of each. Adjacent clocks of the stages differ by 0.13-0.22 % in time and
0.4-0.5 % in power from noise alone. The A40's curves jump by up to 8 %.

Errors are mean absolute percentages at clocks or applications outside the training data. *Regret*
is the energy of the chosen clock over that of the best one within the budget, minus 1. *Overshoot*
is its time over the budget, in points. Both are 0 or more, and means over the distinct curves of a
card.
"""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [list(head), ["---", *["---:"] * (len(head) - 1)], *[list(row) for row in rows]]
    return ["| " + " | ".join(line) + " |" for line in lines]


def judged(cases: Iterable[Case], *, chosen: bool = True) -> list[str]:
    """One table per case; without `chosen` no clocks are chosen."""
    head = ["learner", "time %", "power %", "energy %", "R2 t", "R2 P", "R2 E"]
    if chosen:
        head += [f"regret at {budget:.0%}" for budget in BUDGETS]
        head += [f"overshoot at {budget:.0%}" for budget in BUDGETS]
    head += ["90 % band holds %"]
    lines = []
    for case in cases:
        rows = [
            [name, *_cells(one, chosen=chosen)]
            for name, one in clocks.judged(case)
            if chosen or name != clocks.SURE  # which only differs in what it chooses
        ]
        lines += ["", f"**{case.name}**", "", *table(head, rows)]
    return lines


def _cells(one: Score, *, chosen: bool) -> list[str]:
    cells = [f"{value:.2f}" for value in one.error] + [f"{value:.3f}" for value in one.r2]
    if chosen:
        cells += [f"{value:.2f}" for value in (*one.regret, *one.overshoot)]
    return [*cells, "" if one.covered is None else f"{one.covered:.0f}"]


def held_out_clocks() -> list[str]:
    lines = ["## Clocks that were not probed", ""]
    lines += [
        "Five known clocks are 1410, 1275, 1140, 990, 855 MHz (A100) and 1740, 1515, 1290, 1080,",
        "855 MHz (A40). Three are the highest, one in the middle and the lowest. *Shifted* is the",
        "mean of four sets with the inner clocks moved by -60, -30, 30 and 60 MHz. *Card named*",
        "adds data sheets and public fits of the card. The fits of voltage and static power come",
        "from these sweeps, so the row above is the fair one. *Upper edge* keeps the budget with",
        "the upper edge of the band, as the controller does in mode enforce; all others use the",
        "mean.",
    ]
    for card in CARDS:
        lines += judged(clocks.held_out(card))
    return lines


def unseen_cards() -> list[str]:
    lines = ["## GPT-3 on another card", ""]
    lines += [
        "Known are a sweep on one card, and one or two probes (the highest clock, the lowest) on",
        "the other. With one probe no clock is chosen, because no clock below the lowest probe is",
        "allowed. *Card named* has public fits of the unseen card, including its static power.",
    ]
    for known, unseen in BOTH_WAYS:
        one, two = clocks.unseen_card(known, unseen)
        lines += judged([one], chosen=False) + judged([two])
    return lines


def unseen_kinds() -> list[str]:
    lines = ["## Another kind of operation on the same card", ""]
    lines += [
        "The public files have one model per card, so another kind of operation stands for another",
        "workload: forwards are swept and backwards probed, and vice versa.",
    ]
    for card in CARDS:
        for kind in KINDS:
            one, two = clocks.unseen_kind(card, kind)
            lines += judged([one], chosen=False) + judged([two])
    return lines


def bands() -> list[str]:
    lines = ["## Coverage of the 90 % band", ""]
    lines += ["Times of an application at clocks between its probes; all other applications are"]
    lines += ["known at every clock:", ""]
    rows = []
    for probes in (2, 5):
        found = clocks.unseen_applications(probes)
        together = scores.mean(found)
        numbers = (*clocks.median(found), together.covered or 0.0)
        rows.append([f"{probes} probes", *(f"{number:.1f}" for number in numbers)])
    head = ["", "median: time %", "power %", "energy %", "times in the 90 % band %"]
    return lines + table(head, rows)


PARTS: dict[str, Callable[[], list[str]]] = {
    "clocks": held_out_clocks,
    "cards": unseen_cards,
    "kinds": unseen_kinds,
    "bands": bands,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Joulecut's predictors on public measurements.")
    parser.add_argument("--only", help=f"some of {','.join(PARTS)}; all without it")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"--only {unknown[0]}: it is none of {', '.join(PARTS)}")
    if not STAGES_AT.is_dir():
        print(f"no {DATA}: nothing to judge", file=sys.stderr)
        return 1
    text = [HEAD.format(date=time.strftime("%Y-%m-%d")).rstrip()]
    print(text[0], flush=True)
    for name in names:
        block = ["", *PARTS[name]()]
        print("\n".join(block), flush=True)
        text += block
    if options.out is not None:
        options.out.write_text("\n".join(text) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
