"""`joulecut model catalogue` and `technology`: the model's numbers, and where each comes from."""

import json
from argparse import Namespace
from dataclasses import asdict
from math import prod
from typing import Any

from joulecut_cli import figures, plot
from joulecut_lab.model import post_dennard, technology
from joulecut_lab.model.catalogue import ARCHITECTURES, ENTRIES, SYSTEMS, sources_of
from joulecut_lab.model.system import System
from joulecut_lab.model.technology import WIDTHS
from joulecut_lab.model_command.shown import large
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput

RESIDUAL = "residual: of the limit less idle power, and over the bits that HBM moves"
UNEXPLAINED = "{}: the parts exceed the card's limit; figures of 7 nm do not explain this rate"
CHECK = (
    "limit over rate; theory: the multiply at 7 nm; residual: the rest over the bits of three "
    "operands"
)
CARDS = ("a100-sxm-80gb", "h100-sxm")  # of effective energy by layer size


def show(options: Namespace) -> int:
    """All names, or one entry with its sources. Raises BadInput."""
    name: str | None = options.name
    if name is None:
        print("\n".join(_all()))
    elif name in SYSTEMS:
        source_of = sources_of(name)
        rows = [
            [key, f"{number:g}", source_of.get(key, "the model's default")]
            for key, number in asdict(SYSTEMS[name]).items()
            if key != "name"
        ]
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
    shown = _technology_json(system) if options.json else None
    print(*([json.dumps(shown, indent=1)] if shown else _technology_text(system)), sep="\n")
    return FINE


def _technology_json(system: System) -> dict[str, Any]:
    sums = ("power_w", "residual_w", "residual_pj_per_bit")
    return {
        "operations": [asdict(one) for one in technology.OPERATIONS],
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


def _technology_text(system: System) -> list[str]:
    head = ["operation", "45 nm, pJ", "7 nm, pJ", "7 nm, pJ/bit"]
    known: dict[str, dict[int, technology.Energy]] = {}
    for one in technology.OPERATIONS:
        known.setdefault(one.what, {})[one.nm] = one
    rows = [
        [what, *(f"{by[nm].pj:g}" if nm in by else figures.NONE for nm in (45, 7)),
         f"{bit:.2f}" if 7 in by and (bit := by[7].pj_per_bit) else ""]
        for what, by in known.items()
    ]  # fmt: skip
    lines = figures.table(head, rows, frozenset(head[1:]))
    sources = dict.fromkeys(one.source for one in technology.OPERATIONS)
    lines.append(f"sources: {'; '.join(sources)}")
    head = ["link", "pJ/bit", "source"]
    rows = [[o.what, f"{o.pj_per_bit:.3g}", o.source] for o in technology.LINKS]
    lines += ["", *figures.table(head, rows, frozenset(head[1:2]))]
    head = ["instruction", "does", "arithmetic", "overhead"]
    rows = [[i.name, i.what, f"{i.arithmetic_pj:g} pJ", f"{i.overhead * 100:.0f} %"]
            for i in technology.INSTRUCTIONS]  # fmt: skip
    lines += ["", *figures.table(head, rows, frozenset(head[2:]))]
    lines.append(f"source: {technology.DALLY}")
    lines += ["", *_number_check(system)]
    for block in (_formats, _gains, _generations, _effective):
        lines += ["", *block()]
    return lines


def _number_check(system: System) -> list[str]:
    head = [f"{system.name}, {system.power_cap_w:g} W", "TOP/s", "pJ/op", "theory", "pJ/bit"]
    found = post_dennard.number_check(system)
    rows = [
        [one.name, f"{one.tops:g}", f"{one.pj:.3g}", f"{one.multiply_pj:.2f}",
         figures.NONE if (bit := one.residual_pj_per_bit) is None else f"{bit:.2f}"]
        for one in found
    ]  # fmt: skip
    unknown = [one.name for one in found if one.residual_pj_per_bit is None]
    notes = [CHECK, *([UNEXPLAINED.format(", ".join(unknown))] if unknown else [])]
    return [*figures.table(head, rows, frozenset(head[1:])), *notes]


def _formats() -> list[str]:
    head = ["a100-sxm-80gb at its peak", "TFLOP/s", "arithmetic", "instruction", "HBM",
            "p = f (e_op + e_mem)", "residual", "pJ/bit"]  # fmt: skip
    rows = [
        [one.name, f"{one.tflops:g}",
         *(f"{pj:.3g} pJ" for pj in (one.arithmetic_pj, one.instruction_pj, one.memory_pj)),
         figures.watts(one.power_w), figures.watts(one.residual_w),
         figures.NONE if (bit := one.residual_pj_per_bit) is None else f"{bit:.1f}"]
        for one in post_dennard.formats()
    ]  # fmt: skip
    return [*figures.table(head, rows, frozenset(head[1:])), RESIDUAL]


def _gains() -> list[str]:
    head = ["gain of a decade", "by", "these tables", "published"]
    chain = post_dennard.gains()
    rows = [[one.what, one.how, f"x {one.factor:.1f}", f"x {one.published:g}"] for one in chain]
    whole, published = prod(one.factor for one in chain), prod(one.published for one in chain)
    rows.append(["together", "", f"x {whole:,.0f}", f"x {published:,.0f}"])
    return [*figures.table(head, rows, frozenset(head[2:])), f"source: {post_dennard.HOT_CHIPS}"]


def _generations() -> list[str]:
    head = ["generation", "year", "W per package", "TFLOP/J", "gain"]
    rows = [
        [g.system, str(g.year), f"{g.limit_w:g}", f"{g.tflops_per_w:.2f}",
         figures.NONE if g.gain is None else f"x {g.gain:.2f}"]
        for g in technology.generations()
    ]  # fmt: skip
    return [*figures.table(head, rows, frozenset(head[1:])), _outlook()]


def _outlook() -> str:
    year = technology.OUTLOOK
    grown = technology.package_w(year) / technology.package_w(year - 1) - 1.0
    watts = figures.watts(technology.package_w(year))
    return (
        f"power per package grew {figures.percent(grown)} a year; {watts} in {year}, extrapolated"
    )


def _effective() -> list[str]:
    head = ["pJ per FLOP by layer width", *map(str, WIDTHS)]
    rows = [
        [card, *(f"{technology.effective_pj(SYSTEMS[card], w):.3g}" for w in WIDTHS)]
        for card in CARDS
    ]
    return figures.table(head, rows, frozenset(head[1:]))
