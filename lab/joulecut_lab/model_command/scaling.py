"""`joulecut model marginal` and `joulecut model scale`: one component's clock, time and energy."""

import json
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict

from joulecut_cli import figures, plot
from joulecut_lab.model import marginal as model
from joulecut_lab.model.marginal import NAMES
from joulecut_lab.model_command.shown import title
from joulecut_lab.run_file import read
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput

HEAD = ("1 % more clock of", "time", "GPU energy", "with hosts")
FACTOR_MIN, FACTOR_MAX = 0.1, 10.0
_RANGE = re.compile(r"([0-9]*\.?[0-9]+):([0-9]*\.?[0-9]+)")
ASSUMED = (
    "predicted; voltage follows the clock: SM as its curve, HBM and links "
    f"{model.VOLTAGE_SHARE:g} % per 1 % more (assumed); power limit lifted"
)


def marginal(options: Namespace) -> int:
    """Raises BadInput."""
    file = read(options.run)
    found = model.marginal(file.architecture, file.system, file.run)
    if options.json:
        print(json.dumps({"marginal": [asdict(one) for one in found]}, indent=1))
        return FINE
    table = figures.table(HEAD, elasticities(found), frozenset(HEAD[1:]))
    print("\n".join([title(file), ASSUMED, "", *table, "", figures.sentence(pays(found))]))
    return FINE


def elasticities(found: Sequence[model.Marginal]) -> list[tuple[str, ...]]:
    """Rows below `HEAD`."""
    return [
        (NAMES[one.component], *(f"{value:+.3f} %" for value in (one.time, one.energy, one.total)))
        for one in found
    ]


def pays(found: Sequence[model.Marginal]) -> str:
    """The component whose clock saves most."""
    best = min(found, key=lambda one: one.total)
    if best.total >= 0.0:
        return "no component saves energy when it runs faster"
    return f"{NAMES[best.component]} pays most: {-best.total:.3f} % of the energy per 1 %"


def scale(options: Namespace) -> int:
    """Raises BadInput, Unavailable."""
    low, high = _range(options.range)
    picture = plot.target(options.plot)
    file = read(options.run)
    step = (high - low) / (options.points - 1)
    factors = [low + i * step for i in range(options.points)]
    component = options.component
    found = model.scale(file.architecture, file.system, file.run, component, factors)
    (today,) = model.scale(file.architecture, file.system, file.run, component, (1.0,))
    if picture is not None:
        from joulecut_lab.model_chart import scale_figure

        points = [
            (one.factor, one.iteration_time_s / today.iteration_time_s, one.total_j / today.total_j)
            for one in found
        ]
        name = f"{title(file)}: clock of {NAMES[component]}"
        plot.write(picture, name, [scale_figure(points)], ((), ()), [ASSUMED])
    if options.json:
        rows = [{**asdict(one), "total_j": one.total_j} for one in found]
        print(json.dumps({"component": component, "points": rows}, indent=1))
        return FINE
    head = [f"{NAMES[component]} clock", "iteration", "change", "energy with hosts", "change"]
    table = [
        [f"x {one.factor:.3g}", figures.seconds(one.iteration_time_s),
         figures.percent(one.iteration_time_s / today.iteration_time_s - 1, signed=True),
         figures.joules(one.total_j), figures.percent(one.total_j / today.total_j - 1, signed=True)]
        for one in found
    ]  # fmt: skip
    print("\n".join([title(file), ASSUMED, "", *figures.table(head, table, frozenset(head))]))
    return FINE


def _range(text: str) -> tuple[float, float]:
    match = _RANGE.fullmatch(text)
    allowed = f"LOW:HIGH with {FACTOR_MIN:g} <= LOW < HIGH <= {FACTOR_MAX:g}, as in 0.5:1.5"
    if match is None:
        raise BadInput("--range", f'"{text}" is no range', allowed)
    low, high = float(match[1]), float(match[2])
    if not FACTOR_MIN <= low < high <= FACTOR_MAX:
        raise BadInput("--range", f'"{text}" is out of range', allowed)
    return low, high
