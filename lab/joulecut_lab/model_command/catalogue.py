"""`joulecut model catalogue`: the model's numbers, and where each comes from."""

from argparse import Namespace
from dataclasses import asdict

from joulecut_cli import figures
from joulecut_lab.model.catalogue import ARCHITECTURES, ENTRIES, SYSTEMS, sources_of
from joulecut_lab.model_command.shown import large
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput


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
