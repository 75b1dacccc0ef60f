"""Sweep files: a run file whose key `sweep` gives lists of values.

```yaml
model: megatron-1t
system: dgx-a100
run: {gpus: 4096, global_batch: 4096, sequence: 2048}
sweep: {tensor: all, pipeline: all, microbatch: [1, 2, 4], recompute: all, clock_mhz: [1410, 1200]}
```
`all` stands for every sensible value of a key; `sweep: all` for that of the usual keys. `data` is
what the other keys leave.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.choices import USUAL, every
from joulecut_lab.model.run import Run
from joulecut_lab.model.sweep import Space
from joulecut_lab.model.system import System
from joulecut_lab.run_file import (
    FileKeys,
    check_card,
    check_values,
    read_cost,
    read_model,
    read_run,
    read_stack,
    read_system,
    reader,
)
from joulecut_wire.document import Document, load
from joulecut_wire.quantity import nearest, shown
from joulecut_wire.section import key, taken
from joulecut_wire.section import read as read_section

ALL = "all"
VALUES_MAX = 1000
SIZE_MAX = 200_000_000  # two hours on two cores


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepKeys(FileKeys):
    """A run file, and what is swept."""

    sweep: object = key(lambda value: value)


def read(path: Path) -> Space:
    """Raises BadInput."""
    document = load(path)
    keys: SweepKeys = read_section(document, SweepKeys, document.data)
    given_run = keys.run
    if isinstance(given_run, dict):  # the product is checked per layout
        given_run = {"data": 1, **given_run}
    system = read_system(document, path, keys.system)
    _, given_run, _ = read_stack(document, ("run",), given_run, system)
    run = read_run(document, ("run",), given_run)
    architecture = read_model(document, path, keys.model, run.sequence)
    choices = _choices(document, keys.sweep, run, architecture, system)
    run = check_card(document, given_run, run, system)
    check_values(document, ("sweep",), choices, system)
    cost = read_cost(document, keys)
    space = Space(
        architecture, system, run, choices, cost.kwh_price, cost.gpu_hour_price, cost.pue
    )  # fmt: skip
    if space.size > SIZE_MAX:
        what = f"{space.size:.3g} combinations"
        raise document.bad(("sweep",), what, f"at most {SIZE_MAX:.0e}")
    return space


def _choices(
    document: Document, given: object, run: Run, architecture: Architecture, system: System
) -> dict[str, tuple[Any, ...]]:
    place = ("sweep",)
    if given == ALL:
        given = dict.fromkeys(USUAL, ALL)
    known = {field.name: field for field in fields(Run)}
    if not isinstance(given, dict) or not given:
        allowed = f"{ALL}, or a mapping of keys of run to lists"
        raise document.bad(place, f"{shown(given)} sweeps nothing", allowed)
    found: dict[str, tuple[Any, ...]] = {}
    for name, values in given.items():
        where = (*place, name)
        if name not in known:
            what = f"unknown key{nearest(name, tuple(known))}"
            raise document.bad(where, what, ", ".join(known))
        if values == ALL:
            found[name] = every(name, run, architecture, system)
            if not found[name]:
                raise document.bad(where, f"{ALL} has no meaning here", "a list")
            continue
        if not isinstance(values, list) or not 1 <= len(values) <= VALUES_MAX:
            allowed = f"{ALL}, or a list of 1 to {VALUES_MAX} values"
            raise document.bad(where, f"{shown(values)} is no list", allowed)
        read_one = reader(known[name])
        each = [taken(document, read_one, one, (*where, i)) for i, one in enumerate(values)]
        found[name] = tuple(dict.fromkeys(each))
    return found
