"""`joulecut model catalogue` and `technology`: the model's numbers, and where each comes from."""

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from joulecut_cli import figures, plot
from joulecut_lab.model import post_dennard, technology
from joulecut_lab.model.catalogue import ARCHITECTURES, ENTRIES, SYSTEMS, sources_of
from joulecut_lab.model.system import System
from joulecut_lab.model.technology import WIDTHS
from joulecut_lab.model_command.shown import large
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput

CHECK = (
    "number check: limit over rate, the multiply at 7 nm, and the rest over the bits of three "
    "operands"
)
UNEXPLAINED = "{}: the parts exceed the card's limit; figures of 7 nm do not explain this rate"
CARDS = ("a100-sxm-80gb", "h100-sxm")  # of effective energy by layer size


def show(options: Namespace) -> int:
    """All names, or one entry with its sources. Raises BadInput."""
    name: str | None = options.name
    if name is None:
        print("\n".join(_all()))
    elif name in SYSTEMS:
        source_of = sources_of(name)
        rows = [
            [key, value if isinstance(value, str) else f"{value:g}",
             source_of.get(key, "the model's default")]
            for key, value in asdict(SYSTEMS[name]).items()
            if key != "name"
        ]  # fmt: skip
        print("\n".join(figures.table(["key", "value", "source"], rows, frozenset({"value"}))))
    elif name in ARCHITECTURES:
        model = ARCHITECTURES[name]
        given = {k: v for k, v in asdict(model).items() if v and k != "name"}
        print(f"{name}: {large(model.parameters)} parameters")
        print("{" + ", ".join(f"{k}: {str(v).lower()}" for k, v in given.items()) + "}")
    else:
        raise BadInput(f'"{name}"', "not in the catalogue", "see joulecut model catalogue")
    return FINE


def _all() -> list[str]:
    head = ["system", "node", "GPUs", "TFLOP/s", "memory", "limit"]
    rows = [
        [e.system.name, e.node, str(e.system.gpus_per_node), f"{e.system.bf16_tflops:g}",
         f"{e.system.hbm_bytes / 1e9:g} GB", f"{e.system.power_cap_w:g} W"]
        for e in ENTRIES
    ]  # fmt: skip
    models = [[m.name, large(m.parameters), large(m.active_parameters), str(m.layers),
               str(m.hidden)] for m in ARCHITECTURES.values()]  # fmt: skip
    names = ["model", "parameters", "per token", "layers", "hidden"]
    return [
        *figures.table(head, rows, frozenset(head[2:])),
        "",
        *figures.table(names, models, frozenset(names[1:])),
    ]


def technologies(options: Namespace) -> int:
    """Energy per operation and bit, and growth. Raises BadInput, Unavailable."""
    picture = plot.target(options.plot)
    if picture is not None:
        from joulecut_engine.panel import figure
        from joulecut_lab.model_chart import package_panel

        drawn = [figure([package_panel()])]
        plot.write(picture, "power per package", drawn, ((), ()), [_outlook()])
    system = SYSTEMS.get(options.system)
    if system is None:
        what = f'"{options.system}" is not in the catalogue'
        raise BadInput("--system", what, "see joulecut model catalogue")
    shown = _technology_json(system)
    print(json.dumps(shown, indent=1) if options.json else "\n".join(_technology_text(shown)))
    return FINE


def _technology_json(system: System) -> dict[str, Any]:
    sums = ("power_w", "residual_w", "residual_pj_per_bit")
    return {
        "operations": [_with(one, "pj_per_bit") for one in technology.OPERATIONS],
        "links": [asdict(one) for one in technology.LINKS],
        "instruction_overhead": {
            one.name: {"arithmetic_pj": one.arithmetic_pj, "overhead": one.overhead}
            for one in technology.INSTRUCTIONS
        },
        "power_check": _split(),
        "number_check": {
            "system": system.name,
            "rows": [
                _with(one, "pj", "residual_pj_per_bit") for one in post_dennard.number_check(system)
            ],
        },
        "formats": [_with(one, *sums) for one in post_dennard.formats()],
        "gains": [asdict(one) for one in post_dennard.gains()],
        "generations": [asdict(one) for one in technology.generations()],
        "effective_pj_per_flop": {
            card: {str(width): technology.effective_pj(SYSTEMS[card], width) for width in WIDTHS}
            for card in CARDS
        },
    }


def _split() -> dict[str, Any]:
    """An A100 at its 16-bit peak: what neither arithmetic nor idle power takes moves data."""
    card, bf16 = post_dennard.SYSTEM, next(x for x in post_dennard.formats() if x.name == "bf16")
    parts = {
        "arithmetic_w": bf16.tflops * bf16.arithmetic_pj,  # T x p cancel
        "instructions_w": bf16.tflops * bf16.instruction_pj,
        "idle_w": card.idle_w,
    }
    rest_w = card.power_cap_w - sum(parts.values())
    return {
        "system": card.name, "limit_w": card.power_cap_w, **parts, "data_movement_w": rest_w,
    }  # fmt: skip


def _with(value: Any, *sums: str) -> dict[str, Any]:
    return asdict(value) | {name: getattr(value, name) for name in sums}


def _technology_text(shown: dict[str, Any]) -> Iterator[str]:
    """The tables of the JSON object, then what they leave open."""
    for name, found in shown.items():
        rows = _rows(found)
        head = tuple(map(_words, (name, *rows[0][1])))
        cells = [(first, *map(_cell, row.values())) for first, row in rows]
        yield from (*figures.table(head, cells, frozenset(head[1:])), "")
    yield CHECK
    checked = shown["number_check"]["rows"]
    if unknown := [row["name"] for row in checked if row["residual_pj_per_bit"] is None]:
        yield UNEXPLAINED.format(", ".join(unknown))
    yield _outlook()


def _rows(found: Any) -> list[tuple[str, dict[str, Any]]]:
    """Names and columns of a list, of a mapping by name, or of one row."""
    if isinstance(found, dict):
        if "rows" in found:
            return _rows(found["rows"])
        if not all(isinstance(one, dict) for one in found.values()):
            return [("", found)]
        return list(found.items())
    return [(str(next(iter(row.values()))), dict(list(row.items())[1:])) for row in found]


def _words(key: str) -> str:
    """A key's words, with the symbols of units."""
    return " ".join({"pj": "pJ", "w": "W"}.get(word, word) for word in key.split("_"))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return figures.NONE if value is None else str(value)


def _outlook() -> str:
    year = technology.OUTLOOK
    grown = technology.package_w(year) / technology.package_w(year - 1) - 1.0
    watts = figures.watts(technology.package_w(year))
    return (
        f"power per package grew {figures.percent(grown)} a year; {watts} in {year}, extrapolated"
    )
