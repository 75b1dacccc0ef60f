"""`joulecut study teach`: measured layers become known jobs in a controller's store.

A layer at default clocks, and the two shares that its lower clocks show, are what the controller
learns from any measured job. Its online predictor takes them at its next start.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from joulecut_controller.known_jobs import KNOWN_KEPT, NAME, decoded, encoded, hashed
from joulecut_controller.store.database import open_store
from joulecut_engine.estimate.card import find_card
from joulecut_engine.estimate.other_jobs import (
    LOWEST_RATIO,
    Counters,
    KnownJob,
    OtherJobs,
    measured,
)
from joulecut_lab.study.fit import usable
from joulecut_lab.study.row import Row, curves
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput

KINDS = {"forward": "forward", "training": ""}  # a training pass is both kinds: a whole iteration


def run(argv: list[str]) -> int:
    """The exit status. Raises BadInput, Unavailable."""
    parser = Parser("joulecut study teach", "Measured layers teach a controller's predictor.")
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="table of joulecut study layer --out"
    )
    parser.add_argument(
        "--store", required=True, metavar="URL", help="as store: in the controller's configuration"
    )
    parser.add_argument(
        "--simulated", action="store_true", help="rows of simulated cards may teach too"
    )
    args = parser.parse_args(argv)
    rows, _ = usable(args.files)
    if rows[0].basis == "simulated" and not args.simulated:
        allowed = "measured rows; --simulated for a controller of simulated GPUs"
        raise BadInput(", ".join(args.files), "rows of simulated cards", allowed)
    lessons = list(known_jobs(rows))
    if not lessons:
        what = "no layer has a clock clearly below its highest one"
        raise BadInput(", ".join(args.files), what, "a sweep of a card of the catalogue")
    workloads = {one.workload for one in lessons}
    if len(lessons) > KNOWN_KEPT:
        what = f"{len(lessons)} layers and passes"
        raise BadInput(", ".join(args.files), what, f"at most {KNOWN_KEPT} in a store")
    store = open_store(args.store)
    try:
        before = [one for one in decoded(store.learnt(NAME)) if one.workload not in workloads]
        kept = [*before, *lessons][-KNOWN_KEPT:]
        store.keep_learnt(NAME, encoded(kept))
    except ValueError as error:
        what = f"its known jobs cannot be read: {error}"
        raise BadInput("--store", what, "those of this version") from None
    finally:
        store.close()
    print("\n".join(_said(lessons, kept)))
    return FINE


def known_jobs(rows: Sequence[Row]) -> Iterator[KnownJob]:
    """A layer's pass each, by the clocks from LOWEST_RATIO of its highest one on. A layer runs
    without a pause, so its utilisation is 1; a study reads no other counter than power. Cards
    outside of the catalogue are passed over, since their power limit is not known.
    """
    for setting, curve in curves(rows).items():
        card, top = find_card(setting[0]), max(curve, key=lambda row: row.clock_mhz)
        if card is None:
            continue
        lower = [row for row in curve if LOWEST_RATIO * top.clock_mhz <= row.clock_mhz]
        lower = [row for row in lower if row.clock_mhz < top.clock_mhz]
        counters = Counters(
            setting[0],
            min(1.0, top.clock_mhz / card.clock_max_mhz),
            top.power_w / card.power_limit_w,
            gpu_ratio=1.0,
            kind=KINDS[top.which],
        )
        job = measured(
            hashed(" ".join(map(str, setting[:5]))), counters,
            np.array([row.clock_mhz / top.clock_mhz for row in lower]),
            np.array([row.time_s / top.time_s for row in lower]),
            np.array([row.power_w / top.power_w for row in lower]),
            default_mhz=top.clock_mhz, top_mhz=card.clock_max_mhz,
        )  # fmt: skip
        if job is not None:
            yield job


def _said(lessons: Sequence[KnownJob], kept: Sequence[KnownJob]) -> Iterator[str]:
    model = OtherJobs(kept)
    layers = len({one.workload for one in lessons})
    yield f"{layers} layers teach; the store knows {model.known} workloads"
    yield f"of workloads left out, predicted by the others ({model.predicts} predicts):"
    for name, each in model.erred.items():
        time, power = np.mean(list(each.values()), axis=0)
        yield f"  {name:<10} time {time:.1%}, power {power:.1%} at 85 % of default clocks"
    yield "the controller reads them at its next start"
