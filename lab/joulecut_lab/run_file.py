"""Run files: a model, a system and a run, in YAML.

```yaml
model: {layers: 96, hidden: 12288, heads: 96, ffn: 49152, vocab: 51200}
system: {accelerator: a100-sxm-80gb, gpus_per_node: 8}
run: {gpus: 512, tensor: 8, pipeline: 8, microbatch: 1, global_batch: 512, sequence: 2048}
cost: {tokens: 300e9, kwh_price: 0.12, gpu_hour_price: 2.0}
```
A model may also be a name of the catalogue or {huggingface: config.json}, a system a name or
{file: calibrated.yaml}; cost may be left out.
Keys are the fields of the engine's values, so this file and the engine cannot drift apart.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from joulecut_engine.graph.pipeline import Pipeline, Profile
from joulecut_engine.money import Prices
from joulecut_lab.model import formula
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.choices import OF_CARD, USUAL, every, impossible
from joulecut_lab.model.huggingface import Unreadable, architecture_of
from joulecut_lab.model.power import blocking_power_w
from joulecut_lab.model.run import SIZES, Run, misfit
from joulecut_lab.model.stack import STACKS, Default, defaults_of
from joulecut_lab.model.stage_profile import stage_profile
from joulecut_lab.model.sweep import Space
from joulecut_lab.model.system import FITTED, System
from joulecut_wire import user_file
from joulecut_wire.document import Document, KeyPath, load
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import PUE_MAX, choice, flag, nearest, number, shown, text, whole
from joulecut_wire.section import Key, Section, key, taken
from joulecut_wire.section import read as read_section

WHOLE_MAX = 10**9
NUMBER_MAX = 1e18
CONFIG_BYTES_MAX = 1 << 20
ALL = "all"
VALUES_MAX = 1000  # of a swept key
SIZE_MAX = 200_000_000  # combinations: two hours on two cores
STEP_MHZ = 15  # of NVIDIA's clock tables
LOW_SHARE = 0.5  # of the highest clock; below, every stage costs more time and more energy

# Fields that the engine divides by; so it does by most that have no default.
DIVISORS = {
    "processors",
    "host_gb_s",
    "matrix_efficiency",
    "attention_efficiency",
    "hbm_efficiency",
    "scale_up_efficiency",
    "scale_out_efficiency",
    *SIZES,  # of a run: each is at least 1, also in the lists of a sweep
}
MAY_BE_ZERO = {"ffn", "idle_w"}  # experts have a width of their own; a card may be off
SHARES = {"memory_clock_share", "tensor_overlap"}
EFFICIENCIES = {name for name in FITTED if name.endswith("_efficiency")}

Reader = Callable[[object], Any]


@dataclass(frozen=True, slots=True)
class Cost:
    """How long the run is, and what it is paid with. Prices are in one currency of the user.

    The defaults are assumptions, printed with every answer: energy of an industrial contract, and
    a rented GPU of the A100 to H100 class.
    """

    tokens: float = 0.0  # of the whole run; 0: `iterations`
    iterations: float = 0.0
    kwh_price: float = 0.12
    gpu_hour_price: float = 2.0
    pue: float = 1.0  # energy of the building per energy of the machines

    @property
    def prices(self) -> Prices:
        return Prices(self.gpu_hour_price, self.kwh_price, self.pue)


def _as_it_is(value: object) -> object:
    """What is read later, once the section before it is known."""
    return value


@dataclass(frozen=True, slots=True)
class FileKeys:
    """The whole file."""

    model: object = key(_as_it_is)
    system: object = key(_as_it_is)
    run: object = key(_as_it_is)
    cost: object = key(_as_it_is, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepKeys(FileKeys):
    """A run file, and lists of values by key of the run. `data` is what the others leave."""

    sweep: object = key(_as_it_is)


@dataclass(frozen=True, slots=True)
class _SystemKeys:
    system: object = key(_as_it_is)
    notes: object = key(_as_it_is, None)


@dataclass(frozen=True, slots=True)
class _HuggingFaceKeys:
    huggingface: str = key(text(4096, "a path"))


@dataclass(frozen=True, slots=True)
class Predicted:
    """What stands in for a measured profile: options of one GPU, its power while it waits, and the
    pipeline that they belong to. Clocks above the one that the power limit leaves cost as that one,
    as a sweep of a card shows it.
    """

    profile: Profile
    blocking_power_w: float
    shape: Pipeline


@dataclass(frozen=True, slots=True)
class RunFile:
    """One run as its file describes it."""

    path: Path
    architecture: Architecture
    system: System
    run: Run
    cost: Cost
    document: Document
    stack: str = ""  # named in the file
    defaults: tuple[Default, ...] = ()  # that it sets


def read(path: Path) -> RunFile:
    """Raises BadInput with file, line and key."""
    return of_document(load(path), path)


def of_mapping(given: Mapping[str, object], name: str) -> RunFile:
    """The same of what a program gives in place of a file. Raises BadInput with the key."""
    return of_document(Document(name, given, {}), Path())


def of_document(document: Document, path: Path) -> RunFile:
    """As `read`; files are relative to `path`."""
    keys: FileKeys = read_section(document, FileKeys, document.data)
    file = _described(document, path, keys, keys.run)
    check(document, ("run",), file.run, file.architecture)
    check_limit(document, file.architecture, file.system, file.run)
    return file


def _described(document: Document, path: Path, keys: FileKeys, given: object) -> RunFile:
    """Its parts, with the run's keys as `given`; they are not checked against each other."""
    system = read_system(document, path, keys.system)
    stack, given, defaults = read_stack(document, ("run",), given, system)
    run = read_run(document, ("run",), given)
    architecture = read_model(document, path, keys.model, run.sequence)
    run = check_card(document, given, run, system)
    cost = read_cost(document, keys)
    return RunFile(path, architecture, system, run, cost, document, stack, defaults)


def predicted(file: RunFile) -> Predicted:
    """Times and energies of the run's operations at every clock, as a profile has them. Raises
    BadInput for an evaluation, which has no backward to plan.
    """
    system, run = file.system, file.run
    if run.forward_only:
        raise file.document.bad(("run", "forward_only"), "an evaluation has no plan", "false")
    held = formula.estimate(file.architecture, system, run).clock_mhz
    top = int(run.clock_mhz or system.clock_max_mhz)
    lowest = int(LOW_SHARE * system.clock_max_mhz)
    clocks = tuple(range(top, lowest, -STEP_MHZ)) or (top,)
    profile = stage_profile(file.architecture, system, run, clocks, round(held))
    watts = blocking_power_w(system, held)
    profile = replace(profile, source=f"predicted: {file.path}")
    return Predicted(profile, watts, run.shape())


def check(document: Document, place: KeyPath, run: Run, architecture: Architecture) -> None:
    """Raises BadInput where the run cannot be."""
    complaint = misfit(run, architecture)
    if complaint is not None:
        what = f"does not fit: {complaint.what}"
        raise document.bad((*place, complaint.key), what, complaint.allowed)


def check_card(document: Document, given: object, run: Run, system: System) -> Run:
    """The run with 16 bits that the card multiplies, where it names none. Raises BadInput for what
    the card cannot do."""
    named = isinstance(given, dict) and "dtype" in given
    if not named and impossible("dtype", run.dtype, system):
        run = replace(run, dtype="fp16")
    check_values(document, ("run",), {one: (getattr(run, one),) for one in OF_CARD}, system)
    return run


def check_values(
    document: Document, place: KeyPath, values: Mapping[str, Iterable[object]], system: System
) -> None:
    """Raises BadInput for the first value of a run's key that the card cannot do."""
    for name in OF_CARD:
        for value in values.get(name, ()):
            if found := impossible(name, value, system):
                raise document.bad((*place, name), *found)


def check_limit(document: Document, model: Architecture, system: System, run: Run) -> None:
    """Raises BadInput for a power limit that no clock of the card keeps."""
    place, limit_w = ("system", "power_cap_w"), system.power_cap_w
    found = formula.estimate(model, system, run)
    if found.clock_mhz <= system.clock_min_mhz + 1.0 and found.power_w_per_gpu > limit_w:
        drawn_w = found.power_w_per_gpu
        what = f"{limit_w:g} W: at the lowest clock this run draws {drawn_w:.0f} W"
        raise document.bad(place, what, f"{math.ceil(drawn_w)} W or more")


def read_cost(document: Document, keys: FileKeys) -> Cost:
    found: Cost = record(document, ("cost",), keys.cost or {}, Cost, Cost())
    if found.tokens and found.iterations:
        raise document.bad(("cost",), "tokens and iterations both give its length", "one of them")
    return found


def read_stack(
    document: Document, place: KeyPath, given: object, system: System
) -> tuple[str, object, tuple[Default, ...]]:
    """Name of the stack, the run's keys with what it sets, and that. Raises BadInput."""
    if not isinstance(given, dict) or "stack" not in given:
        return "", given, ()
    stack = taken(document, choice(*STACKS), given["stack"], (*place, "stack"))
    rest = {key: value for key, value in given.items() if key != "stack"}
    found = defaults_of(stack, rest, system)
    return stack, {**{one.key: one.value for one in found}, **rest}, found


def read_run(document: Document, place: KeyPath, given: object) -> Run:
    """`data` may be left out: the GPUs that tensor, pipeline and context leave."""
    found: Run = record(document, place, given, Run)
    if isinstance(given, dict) and "data" not in given:
        group = found.tensor * found.pipeline * found.context
        if found.gpus % group:
            what = f"{found.gpus} is no multiple of tensor x pipeline x context"
            raise document.bad((*place, "gpus"), what, f"a multiple of {group}")
        found = replace(found, data=found.gpus // group)
    return found


def read_sweep(path: Path) -> Space:
    """Raises BadInput."""
    document = load(path)
    keys: SweepKeys = read_section(document, SweepKeys, document.data)
    given_run = keys.run
    if isinstance(given_run, dict):  # the product is checked per layout
        given_run = {"data": 1, **given_run}
    file = _described(document, path, keys, given_run)
    shape = file.architecture, file.system, file.run
    choices = read_choices(document, keys.sweep, file.run, *shape[:2])
    check_values(document, ("sweep",), choices, file.system)
    space = Space(*shape, choices, file.cost.prices)
    if space.size > SIZE_MAX:
        what = f"{space.size:.3g} combinations"
        raise document.bad(("sweep",), what, f"at most {SIZE_MAX:.0e}")
    return space


def read_choices(
    document: Document, given: object, run: Run, architecture: Architecture, system: System
) -> dict[str, tuple[Any, ...]]:
    """By swept key: the values of its list, or with `all` every sensible one; `all` alone sweeps
    the usual keys.
    """
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


def read_model(document: Document, path: Path, given: object, sequence: int) -> Architecture:
    """A name, a configuration of Hugging Face, or the shape itself."""
    place = ("model",)
    if isinstance(given, str):
        return ARCHITECTURES[_known(document, place, given, tuple(ARCHITECTURES), "model")]
    if isinstance(given, dict) and "huggingface" in given:
        keys: _HuggingFaceKeys = read_section(document, _HuggingFaceKeys, given, place)
        file = path.parent / keys.huggingface
        return huggingface(user_file.read(file, CONFIG_BYTES_MAX), file)
    if not isinstance(given, dict):
        what = f"{shown(given)} is no model"
        raise document.bad(place, what, "a name, {huggingface: config.json}, or a shape")
    usual = usual_shape(given, sequence)
    found: Architecture = record(document, place, given, Architecture, usual)
    return found


def usual_shape(given: Mapping[str, object], sequence: int) -> dict[str, object]:
    """Defaults of a shape: gated models are like Llama; others like GPT-3, with biases, learnt
    positions and one matrix for embedding and logits.
    """
    like: dict[str, object] = {"kv_heads": given.get("heads")}
    hidden = given.get("hidden")
    if given.get("gated") is True or given.get("experts"):
        return like
    if isinstance(hidden, int):
        like["ffn"] = 4 * hidden
    return like | {"tied": True, "bias": True, "norm_bias": True, "positions": sequence}


def huggingface(raw: bytes, path: Path) -> Architecture:
    """Of a config.json. Raises BadInput with file and key."""
    try:
        config = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadInput(str(path), f"not JSON: {error}", "a config.json") from None
    if not isinstance(config, dict):
        raise BadInput(str(path), "not an object", "a config.json")
    try:
        return architecture_of(config, path.stem if path.stem != "config" else path.parent.name)
    except Unreadable as fault:
        raise BadInput(f"{path}: {fault.key}", fault.what, fault.allowed) from None


def read_system(document: Document, path: Path, given: object) -> System:
    """A name, an accelerator in a node of one's own, or a calibrated file; keys beside replace."""
    place = ("system",)
    if isinstance(given, str):
        return named_system(given, document.where(place))
    if not isinstance(given, dict) or ("accelerator" in given) == ("file" in given):
        what = f"{shown(given)} is no system"
        raise document.bad(place, what, "a name, {accelerator: NAME}, or {file: calibrated.yaml}")
    rest = {key: one for key, one in given.items() if key not in {"accelerator", "file"}}
    if "file" in given:
        name = taken(document, text(4096, "a path"), given["file"], (*place, "file"))
        base = system_file(path.parent / name)
    else:
        where = (*place, "accelerator")
        word = taken(document, text(200, "a name"), given["accelerator"], where)
        base = named_system(word, document.where(where))
        if "gpus_per_node" in rest and "host_w" not in rest:
            count = taken(
                document, whole(1, WHOLE_MAX), rest["gpus_per_node"], (*place, "gpus_per_node")
            )
            base = replace(base, host_w=base.host_w * count / base.gpus_per_node)
    found: System = record(document, place, rest, System, base)
    if found.clock_max_mhz <= found.clock_min_mhz:
        what = f"{found.clock_max_mhz:g} MHz is not above clock_min_mhz"
        raise document.bad((*place, "clock_max_mhz"), what, f"above {found.clock_min_mhz:g} MHz")
    if found.power_cap_w <= found.idle_w:
        what = f"{found.power_cap_w:g} W is not above idle power, {found.idle_w:g} W"
        raise document.bad((*place, "power_cap_w"), what, f"above {found.idle_w:g} W")
    return found


def named_system(name: str, where: str) -> System:
    """A system of the catalogue. Raises BadInput."""
    if name not in SYSTEMS:
        words = tuple(SYSTEMS)
        raise BadInput(where, f'no system "{name}"{nearest(name, words)}', ", ".join(words))
    return SYSTEMS[name]


def system_of(word: str, flag: str) -> System:
    """Of a flag: a file that ends in .yaml, or a name."""
    if word.endswith((".yaml", ".yml")):
        return system_file(Path(word))
    return named_system(word, flag)


def system_file(path: Path) -> System:
    """A system as `joulecut model calibrate` writes it. Raises BadInput."""
    document = load(path)
    keys: _SystemKeys = read_section(document, _SystemKeys, document.data)
    found: System = record(document, ("system",), keys.system, System)
    return found


def record(
    document: Document, place: KeyPath, given: object, kind: type[Any], base: object = None
) -> Any:
    """A dataclass of the engine from a mapping; missing keys come from `base`, an instance or a
    mapping, or from the class. Raises BadInput.
    """
    mapped = base is None or isinstance(base, Mapping)
    named: Mapping[str, object] = base if isinstance(base, Mapping) else {}
    keys = {}
    for one in fields(kind):
        needed = mapped and one.default is MISSING and one.name not in named
        keys[one.name] = Key(one.name, reader(one), needed)

    def make(**values: Any) -> Any:
        if mapped:
            return kind(**{**named, **values})
        return replace(base, **values)  # type: ignore[type-var]

    return read_section(document, Section(make, keys), given, place)


def reader(field: "Field[Any]") -> Reader:
    """Reads the values that a field of a dataclass takes."""
    if get_origin(field.type) is Literal:
        return choice(*get_args(field.type))
    if field.name == "pue":
        return number(1.0, PUE_MAX)
    if field.name in SHARES | EFFICIENCIES:
        return number(0.0, 1.0, above=field.name in EFFICIENCIES)
    divides = field.default is MISSING or field.name in DIVISORS
    if divides and field.name not in MAY_BE_ZERO:
        return _ABOVE_ZERO[field.type]
    return _FROM_ZERO[field.type]


_WHOLE, _TEXT = whole(0, WHOLE_MAX), text(200, "a name")
_FROM_ZERO: dict[Any, Reader] = {
    bool: flag,
    int: _WHOLE,
    float: number(0.0, NUMBER_MAX),
    str: _TEXT,
}
_ABOVE_ZERO: dict[Any, Reader] = {
    int: whole(1, WHOLE_MAX),
    float: number(0.0, NUMBER_MAX, above=True),
    str: _TEXT,
}


def _known(document: Document, place: KeyPath, name: str, words: tuple[str, ...], what: str) -> str:
    if name not in words:
        fault = f'no {what} "{name}"{nearest(name, words)}'
        raise document.bad(place, fault, ", ".join(words) + ", or a mapping")
    return name
