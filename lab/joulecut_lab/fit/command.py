"""`joulecut fit PROFILE.csv --probes CLOCKS`: flags, reading of the probed rows, output.

Unprobed rows keep their clocks; their times and energies are blanked before anything reads them.
"""

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path

from joulecut_cli.money import add_price_flags, given_prices
from joulecut_controller.sources import csv_file
from joulecut_controller.sources import profile as profiles
from joulecut_engine.graph.pipeline import Profile
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput
from joulecut_wire.flags import listed, plain, whole
from joulecut_wire.quantity import Fault

PROG = "joulecut fit"
UNUSED = "1"  # in place of every unprobed time and energy
CLOCK_MHZ_MAX = 10_000  # as in a profile
KINDS = {"training": "backward"}  # of a layer's passes: two thirds of training are backward
LAYER = {"card", "model", "sequence", "batch", "dtype", "pass", "stable"}
LAYER |= {"clock_asked_mhz", "time_s", "energy_j"}
PROBES_MAX = 1000  # clock tables have some hundred entries


def run(argv: list[str]) -> int:
    """Prints predictions for every clock of a sweep. Raises BadInput."""
    options = _parse(argv)
    from joulecut_lab.fit.fitted import fit
    from joulecut_lab.fit.shown import as_json, as_text

    probes = options.probes
    sweep = _read(options.profile, probes)
    others = [
        profiles.of_rows(
            _layers_as_stages(csv_file.lines(path, profiles.FILE_BYTES_MAX)), str(path), whole=False
        )
        for path in options.also
    ]
    _check(options.profile, sweep, probes)
    fitted = fit(sweep, others, frozenset(probes), options.card)
    prices = given_prices(options)
    if options.json:
        print(json.dumps(as_json(fitted, prices), allow_nan=False, indent=1))
    else:
        print("\n".join(as_text(fitted, options.profile.name, prices)))
    return FINE


def _parse(argv: list[str]) -> Namespace:
    parser = Parser(PROG, "Predicted time and power at every clock, from a few probed ones.")
    parser.add_argument("profile", type=Path, metavar="PROFILE.csv")
    parser.add_argument(
        "--probes",
        required=True,
        type=_clocks,
        metavar="MHZ,MHZ,...",
        help="clocks whose rows may be used",
    )
    parser.add_argument(
        "--also",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="OTHER.csv",
        help="sweeps of other work, or of joulecut study layer; all rows are used",
    )
    parser.add_argument(
        "--card",
        metavar="NAME",
        help="of PROFILE.csv (default: recognised by clocks and power); none: no data sheet",
    )
    add_price_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    if options.card is None:
        return options
    from joulecut_engine.estimate.card import CARDS
    from joulecut_lab.fit.fitted import NO_CARD

    names = {card.name for card in CARDS} | {NO_CARD}
    if options.card not in names:
        allowed = ", ".join([*(card.name for card in CARDS), NO_CARD])
        raise BadInput("--card", f'no card "{options.card}"', allowed)
    return options


def _clocks(text: str) -> tuple[int, ...]:
    """The clocks of `--probes`, in MHz. Raises Fault."""
    probes = listed(whole(1, CLOCK_MHZ_MAX), PROBES_MAX)(text)
    for clock in probes:
        if probes.count(clock) > 1:
            raise Fault(f"{clock} MHz given twice", "each clock once")
    return probes


def _layers_as_stages(rows: Iterable[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Rows of a profile as they are; of a table of `joulecut study layer`, a stage for each layer.
    Rows that had not settled, and those at the driver's own clock, are left out.
    """
    columns: list[str] = []
    stages: dict[tuple[str, ...], int] = {}
    for line, fields in rows:
        first, columns = not columns, columns or fields
        if not LAYER.issubset(columns) or len(fields) != len(columns):
            yield line, fields
            continue
        one = dict(zip(columns, fields, strict=True))
        if first:
            yield line, ["stage", "instruction", "frequency", "time", "energy"]
        elif one["stable"] == "yes" and one["clock_asked_mhz"] != "0":
            layer = tuple(one[name] for name in ("card", "model", "sequence", "batch", "dtype"))
            stage = str(stages.setdefault(layer, len(stages)))
            kind = KINDS.get(one["pass"], one["pass"])
            yield line, [stage, kind, one["clock_asked_mhz"], one["time_s"], one["energy_j"]]


def _read(path: Path, probes: tuple[int, ...]) -> Profile:
    """The profile, with a placeholder for each time and energy that must not be used.

    Raises BadInput.
    """
    rows = csv_file.lines(path, profiles.FILE_BYTES_MAX)
    return profiles.of_rows(_without_unprobed(rows, frozenset(probes)), str(path), whole=False)


def _without_unprobed(
    rows: Iterable[tuple[int, list[str]]], probes: frozenset[int]
) -> Iterator[tuple[int, list[str]]]:
    """The same rows; malformed ones as they are, for the reader to refuse."""
    columns: list[str] = []
    for line, fields in rows:
        if not columns:
            columns = fields
        elif len(fields) == len(columns) and "frequency" in columns:
            clock = plain(fields[columns.index("frequency")])
            if isinstance(clock, int) and clock not in probes:
                for name in {"time", "energy"} & set(columns):
                    fields[columns.index(name)] = UNUSED
        yield line, fields


def _check(path: Path, sweep: Profile, probes: tuple[int, ...]) -> None:
    """Raises BadInput if a probe is not in the sweep, or an operation has none."""
    listed = {o.clock_mhz for options in sweep.options.values() for o in options}
    for clock in probes:
        if clock not in listed:
            shown = ", ".join(map(str, sorted(listed, reverse=True)))
            raise BadInput("--probes", f"{clock} MHz is not in {path}", shown)
    for (stage, kind), options in sweep.options.items():
        own = sorted((o.clock_mhz for o in options), reverse=True)
        if not set(own) & set(probes):
            what = f"stage {stage} {kind} of {path} has none of them"
            raise BadInput("--probes", what, f"one of {', '.join(map(str, own))}")
