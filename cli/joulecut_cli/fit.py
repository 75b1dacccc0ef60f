"""`joulecut fit PROFILE.csv --probes CLOCKS`: the predictors on a sweep of your own.

Only the probed rows are read for time and energy, so that what is printed for the other
clocks can be held against what was measured there. Predicted, never measured.
"""

import csv
import io
import json
import math
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from joulecut_cli import figures
from joulecut_controller.hardware import ClockOption
from joulecut_controller.predict.cap import POINTS_FOR_CAP
from joulecut_controller.predict.card import CARDS, Card, likely, recognised
from joulecut_controller.predict.choice import choose
from joulecut_controller.predict.estimator import Prediction
from joulecut_controller.predict.evidence import Evidence, Work, of_profile, sweep_of
from joulecut_controller.predict.forest import Fitted, ForestCurve, fit_work
from joulecut_controller.predict.smooth import DENSE_MIN
from joulecut_controller.sources import profile as profiles
from joulecut_controller.workload import Kind, Profile
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput

PROG = "joulecut fit"
BUDGETS = (0.02, 0.05, 0.10)  # what the table shows
NO_CARD = "none"
UNUSED = "1"  # stands for every time and energy that is not probed
OWN = ""  # workload name of PROFILE.csv; those of the others are their places
POWER_MIN_W, POWER_MAX_W = 1.0, 10_000.0  # no GPU idles below or draws more; 1.4 kW is the most
PROBES_MAX = 1000  # clock tables have some hundred entries
TIME_NUMBERS = 2  # of a time curve; and the cap, where one was looked for
CAP_NUMBERS = 1.5  # it is the best of many, which fits more noise than one number does
# What leftovers of a sweep are like before any was seen: two of a clean one (0.1 %).
NOISE_PRIOR, NOISE_PRIOR_COUNT = 0.001, 2
NOISE_MAX = 0.03  # of a sweep's times; what is beyond is no noise
UPPER = 0.95  # a band of nine in ten has one in twenty above it
NORMAL_UPPER = 1.645  # where a normal distribution has it, in standard deviations


def run(argv: list[str]) -> int:
    """Prints predictions for every clock of a sweep. Raises BadInput."""
    options = _parse(argv)
    probes = _probes(options.probes)
    sweep = _probed_only(options.profile, probes)
    others = [profiles.read(path, whole=False) for path in options.also]
    _check(options.profile, sweep, probes)
    fitted = _fit(sweep, others, frozenset(probes), options.card)
    if options.json:
        print(json.dumps(as_json(fitted), allow_nan=False, indent=1))
    else:
        print("\n".join(as_text(fitted, options.profile.name)))
    return FINE


@dataclass(frozen=True, slots=True)
class Result:
    """What was fitted, and for which clocks it is asked."""

    clocks: dict[tuple[int, Kind], tuple[int, ...]]  # of the sweep, ascending
    probes: frozenset[int]
    curves: dict[tuple[int, Kind], ForestCurve]
    card: Card | None
    others: int  # further sweeps that went in
    scatter: float = 0.0  # half width (a logarithm) that noise of the probes adds to bands

    def predicted(self, key: tuple[int, Kind]) -> Prediction:
        clocks, curve = self.clocks[key], self.curves[key]
        at_mhz = np.asarray(clocks, dtype=np.float64)
        low_s, high_s = curve.band_s(at_mhz, self.scatter)
        return Prediction(clocks, curve.time_s(at_mhz), curve.power_w(at_mhz), low_s, high_s)


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
    names = {card.name for card in CARDS} | {NO_CARD}
    if options.card is not None and options.card not in names:
        allowed = ", ".join([*(card.name for card in CARDS), NO_CARD])
        raise BadInput("--card", f'no card "{options.card}"', allowed)
    return options


def _probes(text: str) -> tuple[int, ...]:
    allowed = "clocks in whole MHz, separated by commas, as in 1410,1140,855"
    words = [word.strip() for word in text.split(",")]
    if len(words) > PROBES_MAX:
        raise BadInput("--probes", f"{len(words)} clocks", f"at most {PROBES_MAX}")
    for word in words:
        if not (word.isascii() and word.isdigit() and 1 <= len(word) <= 5):
            raise BadInput("--probes", f'"{word}" is no clock', allowed)
    probes = tuple(int(word) for word in words)
    for clock in probes:
        if probes.count(clock) > 1:
            raise BadInput("--probes", f"{clock} MHz given twice", "each clock once")
    return probes


def _probed_only(path: Path, probes: tuple[int, ...]) -> Profile:
    """The profile, with a placeholder for each time and energy that must not be used."""
    try:
        with path.open("rb") as file:
            raw = file.read(profiles.FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        what = getattr(error, "strerror", None) or "cannot be read"
        raise BadInput(str(path), what, "a readable CSV file") from None
    return profiles.parse(_without_unprobed(raw, frozenset(probes)), str(path), whole=False)


def _without_unprobed(raw: bytes, probes: frozenset[int]) -> bytes:
    """Same lines, same columns. What is no CSV is left for the reader to complain about."""
    try:
        text = raw.decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return raw
    if len(rows) != len(text.splitlines()):
        return raw  # a field over several lines: the reader will name it
    columns: list[str] = []
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        fields = [field.strip() for field in row]
        if not columns:
            columns = fields if any(fields) else []
        elif len(fields) == len(columns) and "frequency" in columns:
            clock = _whole(fields[columns.index("frequency")])
            if clock is not None and clock not in probes:
                for name in {"time", "energy"} & set(columns):
                    fields[columns.index(name)] = UNUSED
        writer.writerow(fields)
    return out.getvalue().encode()


def _whole(field: str) -> int | None:
    try:
        value = float(field)
    except ValueError:
        return None
    return int(value) if value.is_integer() else None


def _check(path: Path, sweep: Profile, probes: tuple[int, ...]) -> None:
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


def _fit(
    sweep: Profile, others: list[Profile], probes: frozenset[int], named: str | None
) -> Result:
    probed = Profile(
        {
            key: tuple(o for o in options if o.clock_mhz in probes)
            for key, options in sweep.options.items()
        },
        source=sweep.source,
    )
    clocks = {
        key: tuple(sorted(o.clock_mhz for o in options)) for key, options in sweep.options.items()
    }
    top_mhz = max(max(own) for own in clocks.values())
    blind = named == NO_CARD
    taught: list[Evidence] = []
    cards: list[Card | None] = []
    for place, other in enumerate(others, start=1):
        other_top_mhz = max(o.clock_mhz for options in other.options.values() for o in options)
        card = None if blind else _card(other, other_top_mhz, [])
        cards.append(card)
        taught += of_profile(str(place), other, card, other_top_mhz)
    card = None if blind else _card(probed, top_mhz, cards)
    if named is not None and not blind:
        card = next(one for one in CARDS if one.name == named)
    fitted = fit_work([*of_profile(OWN, probed, card, top_mhz), *taught])
    curves = {key: fitted.curves[Work(OWN, *key)] for key in clocks}
    scatter = max(_scatter(probed, curves), _scatter_of_others(fitted))
    return Result(clocks, probes, curves, card, len(others), scatter)


def _scatter_of_others(fitted: Fitted) -> float:
    """The same by what neighbouring clocks of dense other sweeps differ by: who measured those
    with so much noise probed with it too, and two or three probes cannot tell. 0 without any.
    """
    noises = [
        curve.time_left.noise
        for work, curve in fitted.curves.items()
        if work.workload != OWN and curve.clocks_mhz.size >= DENSE_MIN
    ]
    return (
        NORMAL_UPPER * min(NOISE_MAX, float(np.median(noises))) * math.sqrt(2.0) if noises else 0.0
    )


def _scatter(probed: Profile, curves: Mapping[tuple[int, Kind], ForestCurve]) -> float:
    """Half width that noise of the probed times adds.

    Few clocks of one curve cannot tell noise from misfit, and a curve passes close by each of
    them either way: so what all curves together leave over beside the form is taken for noise.
    It is in what a band must hold and in the fitted numbers, hence twice; and as few leftovers
    may be small by luck, it counts by Student's distribution, together with `NOISE_PRIOR`.
    """
    squares, spare = NOISE_PRIOR_COUNT * NOISE_PRIOR**2, float(NOISE_PRIOR_COUNT)
    for options, key in {options: key for key, options in probed.options.items()}.items():
        physics, sweep = curves[key].physics, sweep_of(options)
        sought = sweep.clocks_mhz.size >= POINTS_FOR_CAP or math.isfinite(physics.clock_cap_mhz)
        numbers = TIME_NUMBERS + CAP_NUMBERS * sought
        if sweep.clocks_mhz.size <= numbers:
            continue
        left = np.log(sweep.time_s / physics.time_s(sweep.clocks_mhz))
        squares += float(left @ left)
        spare += left.size - numbers
    noise = min(NOISE_MAX, math.sqrt(squares / spare))
    return float(stdtrit(spare, UPPER)) * noise * math.sqrt(2.0)


def _card(sweep: Profile, top_mhz: int, others: list[Card | None]) -> Card | None:
    """The card of a sweep; where two are possible, the one that other sweeps are of."""
    rows: list[ClockOption] = [o for options in sweep.options.values() for o in options]
    power_w = max(row.power_w for row in rows)
    for card in likely(top_mhz, power_w):
        if card in others:
            return card
    return recognised(top_mhz, power_w, max(row.clock_mhz for row in rows))


def as_json(fitted: Result) -> dict[str, Any]:
    """Every clock of the sweep; units are in the names."""
    rows = []
    for (stage, kind), clocks in fitted.clocks.items():
        predicted = fitted.predicted((stage, kind))
        rows += [
            {
                "stage": stage,
                "instruction": kind,
                "clock_mhz": clock,
                "time_s": float(predicted.time_s[i]),
                "power_w": float(predicted.power_w[i]),
                "time_low_s": float(predicted.time_low_s[i]),
                "time_high_s": float(predicted.time_high_s[i]),
                "probed": clock in fitted.probes,
            }
            for i, clock in enumerate(clocks)
        ]
    return {"card": fitted.card.name if fitted.card else None, "rows": rows}


def as_text(fitted: Result, name: str) -> list[str]:
    """One line per stage and instruction: what it costs, and the clocks it would be given."""
    head = ["stage", "instruction", "MHz", "time", "band", "power"]
    head += [f"within {budget * 100:.0f} %" for budget in BUDGETS]
    rows = [_row(fitted, key) for key in fitted.clocks]
    probes = sorted(fitted.probes)
    measured = f"one probed clock, {probes[0]} MHz"
    if len(probes) > 1:
        measured = f"{len(probes)} probed clocks, {probes[0]} to {probes[-1]} MHz"
    card = f"card: {fitted.card.name}" if fitted.card else "card not recognised: no data sheet used"
    others = "" if not fitted.others else ", one other sweep"
    if fitted.others > 1:
        others = f", {fitted.others} other sweeps"
    return [
        f"{name}: predicted from {measured}{others}; {card}",
        *_strange_powers(fitted),
        "",
        *figures.table(head, rows, frozenset(head) - {"instruction"}),
        "",
        "time and power at the highest clock; band: how much longer one in twenty times may be;",
        "within: clock of least predicted energy at that slowdown, and what it saves;",
        "none below the lowest probed clock. Every clock: --json",
    ]


def _strange_powers(fitted: Result) -> list[str]:
    """A line where an operation draws what no GPU does: milliseconds or kilojoules, most likely."""
    for key in fitted.clocks:
        power_w = float(fitted.predicted(key).power_w[-1])
        if not POWER_MIN_W <= power_w <= POWER_MAX_W:
            said = f"{figures.watts(power_w)} at stage {key[0]} {key[1]} is no GPU's power"
            return [f"{said}: is time in seconds, and energy in joules?"]
    return []


def _row(fitted: Result, key: tuple[int, Kind]) -> list[str]:
    stage, kind = key
    predicted = fitted.predicted(key)
    own = tuple(clock for clock in predicted.clocks_mhz if clock in fitted.probes)
    inside = np.array([clock >= own[0] for clock in predicted.clocks_mhz])
    band = float(np.max((predicted.time_high_s / predicted.time_s)[inside])) - 1.0
    cells = []
    for budget in BUDGETS:
        found = choose(predicted, budget, known_mhz=own)
        cells.append(f"{found.clock_mhz}: {figures.percent(found.saved_ratio)}")
    return [
        str(stage),
        kind,
        str(predicted.clocks_mhz[-1]),
        figures.seconds(float(predicted.time_s[-1])),
        f"+{figures.percent(band)}",
        figures.watts(float(predicted.power_w[-1])),
        *cells,
    ]
