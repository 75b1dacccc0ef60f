"""`joulecut fit PROFILE.csv --probes CLOCKS`: its flags, and its parts in order."""

import json
from argparse import Namespace
from pathlib import Path

from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput

PROG = "joulecut fit"


def run(argv: list[str]) -> int:
    """Prints predictions for every clock of a sweep. Raises BadInput."""
    options = _parse(argv)
    from joulecut_cli.fit import probed
    from joulecut_cli.fit.fitted import fit
    from joulecut_cli.fit.shown import as_json, as_text
    from joulecut_controller.sources import profile as profiles

    probes = probed.clocks_of(options.probes)
    sweep = probed.read(options.profile, probes)
    others = [profiles.read(path, whole=False) for path in options.also]
    probed.check(options.profile, sweep, probes)
    fitted = fit(sweep, others, frozenset(probes), options.card)
    if options.json:
        print(json.dumps(as_json(fitted), allow_nan=False, indent=1))
    else:
        print("\n".join(as_text(fitted, options.profile.name)))
    return FINE


def _parse(argv: list[str]) -> Namespace:
    parser = Parser(PROG, "Predicted time and power at every clock, from a few probed ones.")
    parser.add_argument("profile", type=Path, metavar="PROFILE.csv")
    parser.add_argument(
        "--probes", required=True, metavar="MHZ,MHZ,...", help="clocks whose rows may be used"
    )
    parser.add_argument(
        "--also",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="OTHER.csv",
        help="sweeps of other work, used whole",
    )
    parser.add_argument(
        "--card",
        metavar="NAME",
        help="of PROFILE.csv (default: as clocks and power say); none: no data sheet at all",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    if options.card is None:
        return options
    from joulecut_cli.fit.fitted import NO_CARD
    from joulecut_engine.estimate.card import CARDS

    names = {card.name for card in CARDS} | {NO_CARD}
    if options.card not in names:
        allowed = ", ".join([*(card.name for card in CARDS), NO_CARD])
        raise BadInput("--card", f'no card "{options.card}"', allowed)
    return options
